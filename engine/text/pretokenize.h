// The splitting rules of byte-level BPE: where text is cut before merging, so that no token spans a cut.
//
// A rule is a regular expression, and a row of the table in pretokenize.cc. A model file names it in
// `tokenizer.ggml.pre`; guessing another rule would shift every token a little, so an unknown name is refused.
//
// Thread safety: immutable after Make.

#ifndef EBB_ENGINE_TEXT_PRETOKENIZE_H_
#define EBB_ENGINE_TEXT_PRETOKENIZE_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ebb {

class Pretokenizer {
 public:
  // FAILED_PRECONDITION, reason UNKNOWN_PRE_TOKENIZER, names the rule and the known ones. An empty name, of files older
  // than the key, is GPT-2's rule.
  static absl::StatusOr<Pretokenizer> Make(std::string_view name);

  // Cuts `text` into words; put together again they are `text`. Bytes that are not UTF-8 are words of their own, all in
  // a row one word. Time is linear in the text.
  std::vector<std::string_view> Split(std::string_view text) const;

  // A word that is a token is that token, also where the merges would not lead there (Llama 3).
  bool whole_words() const { return whole_words_; }
  // Whether a begin token is usual for models with this rule.
  bool add_bos() const { return add_bos_; }

 private:
  struct Regex;  // a compiled PCRE2 pattern
  struct FreeRegex {
    void operator()(Regex* regex) const;
  };

  Pretokenizer() = default;
  void SplitValid(std::string_view text, std::vector<std::string_view>& words) const;

  std::unique_ptr<Regex, FreeRegex> regex_ = {};
  bool whole_words_ = false;
  bool add_bos_ = false;
};

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_PRETOKENIZE_H_
