// Where a text is cut into words before merging, so that no token spans a cut: a list of steps, applied in order, each
// to the words that the one before it left.
//
// A tokenizer.json states the steps (tokenizer_rules.h); a GGUF file names them in `tokenizer.ggml.pre`, a row of the
// table in pretokenize.cc. Guessing other steps would shift every token a little, so an unknown name is refused.
//
// Thread safety: immutable after Make.

#ifndef EBB_ENGINE_TEXT_PRETOKENIZE_H_
#define EBB_ENGINE_TEXT_PRETOKENIZE_H_

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/normalizer.h"
#include "engine/text/regex.h"

namespace ebb {

struct CutStep {
  enum class Kind {
    kSplit,    // at matches of `pattern`
    kReplace,  // each space becomes `content`
    kPrefix,   // puts `content` before a word that does not begin with it
    kBytes,    // writes each byte as a character that prints (byte_alphabet.h)
  };
  // What becomes of matches, and of what lies between them.
  enum class Matches { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };

  Kind kind = Kind::kSplit;
  std::optional<Regex> pattern = {};
  Matches matches = Matches::kIsolated;
  bool invert = false;  // what lies between matches counts as match
  std::string content = {};
  bool at_start_only = false;  // kPrefix: only where the text begins with Before::kNothing
};

// GPT-2's own rule (Radford et al. 2019): contractions, words, numbers and the rest, each with the one space before it.
inline constexpr char kGpt2Pattern[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// What the types of tokenizer.json cut at that have no pattern of their own.
inline constexpr char kDigitPattern[] = R"(\p{N})";
inline constexpr char kPunctuationPattern[] = R"([!-\/:-@\[-`{-~\p{P}])";

class Pretokenizer {
 public:
  explicit Pretokenizer(std::vector<CutStep> steps);
  // By the name in a GGUF file. FAILED_PRECONDITION, reason UNKNOWN_PRE_TOKENIZER, names the rule and the known ones.
  // An empty name, of files older than the key, is GPT-2's rule.
  static absl::StatusOr<Pretokenizer> Make(std::string_view name);

  // Words, and the memory of those that are not text as it came.
  struct Words {
    std::vector<std::string_view> words = {};
    std::deque<std::string> memory = {};
  };

  // The words of `text`, none of them empty. REQUIRES: `text` is valid UTF-8, and outlives the result.
  Words Split(std::string_view text, Before before) const;

  // A word that is a token is that token, also where the merges would not lead there (Llama 3).
  bool whole_words() const { return whole_words_; }
  // Whether a begin token is usual for models with this rule.
  bool add_bos() const { return add_bos_; }

 private:
  std::vector<CutStep> steps_ = {};
  bool whole_words_ = false;
  bool add_bos_ = false;
};

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_PRETOKENIZE_H_
