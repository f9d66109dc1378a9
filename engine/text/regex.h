// The regular expressions of tokenizers: written for Oniguruma, which makers' own software uses, matched by PCRE2.
//
// What the two read differently is rewritten (\s, \w, \d, \h, \v, \p{Script}) or refused; the rest means the same to
// both, but for one thing: where case does not count, characters that fold to several are not followed, so that (?i:ss)
// does not match U+00DF.
//
// Thread safety: immutable after Make.

#ifndef EBB_ENGINE_TEXT_REGEX_H_
#define EBB_ENGINE_TEXT_REGEX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ebb {

class Regex {
 public:
  static constexpr size_t kBytesMax = 16384;  // of a pattern

  // INVALID_ARGUMENT says what about the pattern is not understood, and where in it.
  static absl::StatusOr<Regex> Make(std::string_view pattern);
  // Matches exactly this text. INVALID_ARGUMENT: it is too long, or no UTF-8.
  static absl::StatusOr<Regex> Literal(std::string_view text);

  struct Match {
    size_t begin = 0;  // bytes
    size_t end = 0;
  };

  struct Found {
    std::vector<Match> matches = {};
    bool ended_early = false;  // what follows the last match was not searched to its end
  };

  // All matches from left to right, none of them inside another; some may be empty. Time is linear in the text for the
  // patterns that tokenizers have; a search that takes more than 10^7 steps, or 64 MiB for the places it could go back
  // to, ends early. REQUIRES: `text` is valid UTF-8.
  Found FindAll(std::string_view text) const;

 private:
  struct Code;  // a compiled PCRE2 pattern
  struct FreeCode {
    void operator()(Code* code) const;
  };

  Regex() = default;
  static absl::StatusOr<Regex> Compile(std::string_view pattern, uint32_t options);

  std::unique_ptr<Code, FreeCode> code_ = {};
};

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_REGEX_H_
