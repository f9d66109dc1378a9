// The regular expressions of tokenizers: written for Oniguruma, which makers' own software uses, matched by PCRE2.
//
// What the two read differently is rewritten (\s, \w, \d, \h, \v, \p{Script}) or refused; the rest means the same to
// both.
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
  // INVALID_ARGUMENT says what about the pattern is not understood, and where in it.
  static absl::StatusOr<Regex> Make(std::string_view pattern);
  // Matches exactly this text.
  static Regex Literal(std::string_view text);

  struct Match {
    size_t begin = 0;  // bytes
    size_t end = 0;
  };

  // All matches from left to right, none of them inside another; some may be empty. Time is linear in the text for the
  // patterns that tokenizers have; where PCRE2's own limits end a search (10^7 steps back), what was found until then.
  // REQUIRES: `text` is valid UTF-8.
  std::vector<Match> FindAll(std::string_view text) const;

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
