#include <fcntl.h>
#include <openssl/sha.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "client/cli/shell.h"

namespace ebb::cli {
namespace {

struct TokenFlags {
  std::string tenant = {};
  std::string out = {};
  bool admin = false;
};

// 256 random bits. Ends the program where the system has none.
std::string NewToken() {
  std::array<char, 32> bytes = {};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) std::abort();
  return "ebb_" + absl::WebSafeBase64Escape(absl::string_view(bytes.data(), bytes.size()));
}

std::string DigestOf(const std::string& token) {
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest = {};
  SHA256(reinterpret_cast<const uint8_t*>(token.data()), token.size(), digest.data());
  return "sha256:" + absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

// A new file that its owner alone may read. 0, or what went wrong.
int WriteNew(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return errno;
  const int error = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : EIO;
  return close(fd) == 0 ? error : errno;
}

void MakeToken(Shell& shell, const TokenFlags& flags) {
  const std::string token = NewToken();
  if (const int error = WriteNew(flags.out, token + "\n"); error != 0) {
    return shell.Failed("FAILED_PRECONDITION", "", absl::StrFormat("%s: %s", flags.out, std::strerror(error)));
  }
  const std::string digest = DigestOf(token);
  if (shell.json) {
    const nlohmann::json line = {{"tenant", flags.tenant}, {"digest", digest}, {"admin", flags.admin}};
    std::printf("%s\n", line.dump().c_str());
  } else {
    std::printf("%s %s%s\n", flags.tenant.c_str(), digest.c_str(), flags.admin ? " admin" : "");
  }
}

}  // namespace

void AddToken(Command app, Shell& shell) {
  const Command command = app.add_subcommand(
      "token", "Make a token: into a file for its bearer, and the line for the server's auth.token_file to stdout");
  const auto flags = std::make_shared<TokenFlags>();
  command.add_option("name", flags->tenant, "The tenant whose token it is")
      .required()
      .check(
          [](const std::string& name) {
            const bool valid = name.size() <= 63 &&
                               name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789._-") == std::string::npos &&
                               !name.empty() && absl::ascii_isalnum(static_cast<unsigned char>(name[0]));
            return valid ? std::string() : "'" + name + "' is no tenant's name, [a-z0-9][a-z0-9._-]{0,62}";
          },
          "NAME");
  command.add_option("--out", flags->out, "A new file for the token, readable for you alone").required();
  command.add_flag("--admin", flags->admin, "It may also call what is of all tenants");
  command.footer("Example:\n  ebb token acme --out acme.token >> /etc/ebb/tokens");
  command.callback([&shell, flags] { MakeToken(shell, *flags); });
}

}  // namespace ebb::cli
