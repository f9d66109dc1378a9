// What is done to a text before it is cut: a list of steps, applied in order.
//
// Thread safety: immutable.

#ifndef EBB_ENGINE_TEXT_NORMALIZER_H_
#define EBB_ENGINE_TEXT_NORMALIZER_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/chars_map.h"
#include "engine/text/regex.h"

namespace ebb {

// What lies before a text.
enum class Before {
  kNothing,  // it is the beginning
  kToken,    // a token that was found by its name
  kText,     // ordinary text, which it goes on: nothing is put between
};

struct NormalizerStep {
  enum class Kind {
    kNfc,  // normal forms of Unicode (UAX 15)
    kNfd,
    kNfkc,
    kNfkd,
    kLowercase,
    kStripAccents,  // drops marks
    kStripLeft,     // drops spaces at the beginning
    kStripRight,
    kPrepend,   // puts `content` before text that is not empty and goes on no other
    kReplace,   // matches of `pattern` by `content`
    kCharsMap,  // SentencePiece's own table of replacements
  };

  Kind kind = Kind::kNfc;
  std::string content = {};
  std::optional<Regex> pattern = {};
  std::optional<CharsMap> chars_map = {};
};

class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  bool empty() const { return steps_.empty(); }

  // What is put before text that goes on no other.
  std::string Prefix() const;

  // REQUIRES: `text` is valid UTF-8; the result is, too.
  std::string Apply(std::string_view text, Before before) const;

 private:
  std::vector<NormalizerStep> steps_ = {};
};

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_NORMALIZER_H_
