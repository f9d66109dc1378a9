// Tokens and whose they are. The server knows a token by its SHA-256 alone, so that a file that is read by the wrong
// eyes lets nobody in. A line of the file:
//
//   acme sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08        # `ebb token acme` prints one
//   ops  sha256:60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752 admin
//
// A tenant may have several lines: two while a token is changed for another. `#` begins a comment.

#ifndef EBB_SERVER_TOKENS_H_
#define EBB_SERVER_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ebb {

// Who calls, as its credential says.
struct Caller {
  std::string tenant = {};
  bool admin = false;  // may call what Role::kAdmin asks for
};

class BearerTokens {
 public:
  // INVALID_ARGUMENT BAD_TOKEN_FILE naming the line, never what it holds. No line at all is fine, and lets nobody in.
  static absl::StatusOr<BearerTokens> Parse(std::string_view text);

  // Whose `token` it is; null if nobody's. Takes as long for every token of a length: all lines are compared, whole.
  const Caller* Find(std::string_view token) const;

  size_t size() const { return lines_.size(); }

 private:
  using Digest = std::array<uint8_t, 32>;
  struct Line {
    Digest digest = {};
    Caller caller = {};
  };

  std::vector<Line> lines_ = {};
};

}  // namespace ebb

#endif  // EBB_SERVER_TOKENS_H_
