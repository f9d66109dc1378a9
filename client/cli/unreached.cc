#include "client/cli/unreached.h"

#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"

namespace ebb::cli {
namespace {

enum class Called { kPlain, kWithTls, kEither };

struct Likely {
  Called called;
  const char* words;  // among gRPC's
  const char* wrong;  // follows the address
  const char* right;
};

constexpr char kHangsUp[] = "hangs up at once, as a port does that speaks TLS, or a proxy whose server is away";
constexpr char kSayTls[] = "Say --tls, or --ca with who signed its certificate";
constexpr char kNoGrpc[] = "does not speak gRPC";
constexpr char kNameGrpc[] = "Name ebbd's server.listen with --addr";
// A connection that was there and broke is a server's that ended.
constexpr char kNeverThere[] = "failed to connect";
constexpr char kNoHost[] = "DNS resolution failed";

// The first that fits. The words are of gRPC and OpenSSL, which promise nothing: others are shown as they are.
constexpr std::array kLikely = {
    Likely{Called::kEither, kNoHost, "is the address of no host that can be found",
           "Look at --addr or EBB_ADDR, which is host:port"},
    Likely{
        Called::kWithTls, "wrong version number", "does not speak TLS",
        "Leave out --tls, --ca, --cert and --key, and their variables EBB_TLS, EBB_CA, EBB_CERT and EBB_KEY, or name "
        "a port that does with --addr"},
    Likely{Called::kWithTls, "certificate verify failed", "shows a certificate that is not trusted here",
           "Name who signed it with --ca, and look whether it has ended"},
    Likely{Called::kWithTls, "not in peer certificate", "shows a certificate for another host",
           "Say --addr with a name that the certificate has"},
    Likely{Called::kWithTls, "Socket closed", "hangs up at once, as a port does that wants its callers' certificates",
           "Show yours with --cert and --key"},
    Likely{Called::kWithTls, "handshake failed", "and this client do not agree on TLS",
           "Look at --ca, --cert and --key"},
    Likely{Called::kPlain, "Socket closed", kHangsUp, kSayTls},
    Likely{Called::kPlain, "Connection reset by peer", kHangsUp, kSayTls},
    Likely{Called::kPlain, "http1.x server", kNoGrpc, kNameGrpc},
    Likely{Called::kPlain, "parsing HTTP/2", kNoGrpc, kNameGrpc},
};

}  // namespace

std::string DescribeUnreached(const std::string& address, const client::CredentialFiles& shown,
                              const std::string& words) {
  const bool tls = shown.tls || !shown.ca.empty() || !shown.cert.empty() || !shown.key.empty();
  const bool never_there = absl::StrContains(words, kNeverThere) || absl::StrContains(words, kNoHost);
  for (const Likely& likely : kLikely) {
    const bool fits = never_there && likely.called != (tls ? Called::kPlain : Called::kWithTls);
    if (!fits || !absl::StrContains(words, likely.words)) continue;
    return absl::StrFormat("%s %s. %s; `ebb --help` has all flags (gRPC: %s).", address, likely.wrong, likely.right,
                           words);
  }
  return absl::StrFormat(
      "no server answers at %s (%s). Start one with `ebbd`, or name another with --addr or EBB_ADDR.", address, words);
}

}  // namespace ebb::cli
