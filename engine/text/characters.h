// Byte-pair encoding of characters, with tokens for the bytes of those that the vocabulary lacks (Kudo and Richardson
// 2018, arXiv:1808.06226): the `llama` model of GGUF files, and BPE in a tokenizer.json that is not of bytes.
//
// A word begins as its characters; of all neighbouring pairs that can be joined the best is, again and again. Which is
// best, either scores say (of the token that is made, in GGUF files) or the list of merges.

#ifndef EBB_ENGINE_TEXT_CHARACTERS_H_
#define EBB_ENGINE_TEXT_CHARACTERS_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "engine/text/vocabulary.h"
#include "engine/text/word_encoder.h"

namespace ebb {

struct CharacterRules {
  bool by_scores = true;            // else by merges
  bool byte_tokens = true;          // <0xNN> for characters that are no token
  std::optional<int32_t> unk = {};  // else this one
  bool fuse_unk = false;            // one for several in a row
  bool whole_words = false;         // a word that is a token is that token
};

// `table` outlives the encoder. DATA_LOSS naming the key: no scores; Merges (bpe.h); a byte without a token; nothing
// that stands for an unknown character.
absl::StatusOr<std::unique_ptr<const WordEncoder>> MakeCharacters(const TokenTable& table, const CharacterRules& rules);

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_CHARACTERS_H_
