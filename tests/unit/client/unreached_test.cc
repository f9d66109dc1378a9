#include "client/cli/unreached.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ebb::cli {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

// As gRPC 1.51 and OpenSSL 3 say it.
TEST(DescribeUnreached, SaysWhatIsLikelyWrongAndKeepsTheWords) {
  const std::string failed = "failed to connect to all addresses; last error: ";
  const client::CredentialFiles plain, tls = {.tls = true}, ca = {.ca = "ca.pem"};
  struct Case {
    client::CredentialFiles shown;
    std::string words;
    std::string said;
  };
  const std::vector<Case> cases = {
      {plain, "DNS resolution failed for a:1: C-ares status is not ARES_SUCCESS", "a:1 is the address of no host"},
      {tls, "DNS resolution failed for a:1: C-ares status is not ARES_SUCCESS", "a:1 is the address of no host"},
      {plain, failed + "UNAVAILABLE: ipv4:127.0.0.1:1: Socket closed",
       "a:1 hangs up at once, as a port does that speaks TLS"},
      {tls, failed + "UNAVAILABLE: ipv4:127.0.0.1:1: Socket closed",
       "a:1 hangs up at once, as a port does that wants its callers'"},
      {plain, failed + "INTERNAL: ipv4:127.0.0.1:1: Trying to connect an http1.x server",
       "a:1 does not speak gRPC. Name"},
      {plain, failed + "UNAVAILABLE: ipv4:127.0.0.1:1: Failed parsing HTTP/2", "a:1 does not speak gRPC. Name"},
      {ca,
       failed + "UNKNOWN: ipv4:127.0.0.1:1: Ssl handshake failed: SSL_ERROR_SSL: error:0A00010B:SSL routines::wrong "
                "version number",
       "a:1 does not speak TLS. Leave out --tls"},
      {tls,
       failed + "UNKNOWN: ipv4:127.0.0.1:1: Ssl handshake failed: SSL_ERROR_SSL: error:0A000086:SSL "
                "routines::certificate verify failed",
       "a:1 shows a certificate that is not trusted here. Name"},
      {tls, failed + "UNKNOWN: ipv4:127.0.0.1:1: Peer name localhost is not in peer certificate",
       "a:1 shows a certificate for another"},
      {plain, failed + "UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused",
       "no server answers at a:1 ("},
      {plain, "Socket closed", "no server answers at a:1 (Socket closed). Start one"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.words);
    const std::string said = DescribeUnreached("a:1", c.shown, c.words);
    EXPECT_THAT(said, StartsWith(c.said));
    EXPECT_THAT(said, EndsWith(said.starts_with("no server") ? "--addr or EBB_ADDR." : "(gRPC: " + c.words + ")."));
  }
}

}  // namespace
}  // namespace ebb::cli
