#include "server/tokens.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "policies/status.h"
#include "server/resource_name.h"

namespace ebb {
namespace {

constexpr absl::string_view kPrefix = "sha256:";

absl::Status BadLine(size_t number, const std::string& what) {
  return Refuse(absl::StatusCode::kInvalidArgument, absl::StrFormat("line %d: %s", number, what),
                {.reason = "BAD_TOKEN_FILE"});
}

bool IsDigest(absl::string_view word) {
  if (word.substr(0, kPrefix.size()) != kPrefix) return false;
  const absl::string_view hex = word.substr(kPrefix.size());
  return hex.size() == 2 * SHA256_DIGEST_LENGTH && std::all_of(hex.begin(), hex.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
         });
}

}  // namespace

absl::StatusOr<BearerTokens> BearerTokens::Parse(std::string_view text) {
  BearerTokens table;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    if (!IsResourceName({words[0].data(), words[0].size()})) {
      return BadLine(number, absl::StrFormat("it begins with a tenant's name, %s", kResourceNamePattern));
    }
    if (words.size() < 2 || !IsDigest(words[1])) {
      return BadLine(number, "after the tenant comes sha256: and the 64 hexadecimal digits of the token's SHA-256");
    }
    if (words.size() > 3 || (words.size() == 3 && words[2] != "admin")) {
      return BadLine(number, "after the digest may come admin, and nothing else");
    }
    Line parsed = {.caller = {.tenant = std::string(words[0]), .admin = words.size() == 3}};
    const std::string bytes = absl::HexStringToBytes(words[1].substr(kPrefix.size()));
    std::copy(bytes.begin(), bytes.end(), parsed.digest.begin());
    const bool twice = std::any_of(table.lines_.begin(), table.lines_.end(),
                                   [&](const Line& other) { return other.digest == parsed.digest; });
    if (twice) return BadLine(number, "a line before it has the same token");
    table.lines_.push_back(std::move(parsed));
  }
  return table;
}

const Caller* BearerTokens::Find(std::string_view token) const {
  Digest digest;
  SHA256(reinterpret_cast<const uint8_t*>(token.data()), token.size(), digest.data());
  const Caller* found = nullptr;
  for (const Line& line : lines_) {
    if (CRYPTO_memcmp(line.digest.data(), digest.data(), digest.size()) == 0) found = &line.caller;
  }
  return found;
}

}  // namespace ebb
