// How a text becomes tokens, as a list of steps of few kinds: normalizer -> pre-tokenizer -> model, and what pieces
// stand for. Both kinds of files come to this: tokenizer.json states the steps, GGUF files name them.
//
// Of a tokenizer.json (Hugging Face's tokenizers) these types are known; another, or a member that is not known, is
// refused by name and place:
//   normalizer      Sequence, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, Replace, Precompiled
//   pre_tokenizer   Sequence, Split, ByteLevel, Digits, Punctuation, Metaspace, Whitespace, WhitespaceSplit,
//                   CharDelimiterSplit
//   model           BPE (of bytes, or of characters with or without byte_fallback), Unigram
//   post_processor  Sequence, ByteLevel, TemplateProcessing, RobertaProcessing; of what they add, one token before the
//                   text is kept
//   decoder         Sequence, ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip of one space at the beginning

#ifndef EBB_ENGINE_TEXT_TOKENIZER_RULES_H_
#define EBB_ENGINE_TEXT_TOKENIZER_RULES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/text/characters.h"
#include "engine/text/normalizer.h"
#include "engine/text/pretokenize.h"
#include "engine/text/unigram.h"
#include "engine/text/vocabulary.h"

namespace ebb {

// Where a token is found by its name.
struct AddedToken {
  bool left_strip = false;   // takes the spaces before it along
  bool right_strip = false;  // and behind it
  bool single_word = false;  // not beside a letter
  bool normalized = false;   // in the text as the normalizer leaves it
};

struct TokenizerRules {
  enum class Model { kBytes, kCharacters, kUnigram };

  Normalizer normalizer = {};
  Pretokenizer pretokenizer = Pretokenizer({});
  Model model = Model::kBytes;
  bool whole_words = false;  // of kBytes
  CharacterRules characters = {};
  UnigramRules unigram = {};
  bool bytes_print = true;  // pieces write bytes as characters that print
  std::string space = {};   // else what pieces write for a space; empty: a space
  bool adds_space = false;  // a space comes before text that goes on no other
  bool adds_bos = false;    // where the file does not say otherwise
  // The first token of a sequence, where the rules name one.
  std::optional<int32_t> bos = {};
  std::map<int32_t, AddedToken> added = {};  // those that are more than their text
  bool leftmost_first = false;               // of names that overlap the one that begins first counts, else the longest
};

// FAILED_PRECONDITION UNSUPPORTED_TOKENIZER or UNKNOWN_PRE_TOKENIZER, naming what the file asks for and what is known;
// DATA_LOSS MODEL_DAMAGED.
absl::StatusOr<TokenizerRules> ReadTokenizerRules(const TokenTable& table);

// The same, of the text of a tokenizer.json without its vocabulary; errors name the place in it.
absl::StatusOr<TokenizerRules> ReadTokenizerJson(const TokenTable& table);

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_TOKENIZER_RULES_H_
