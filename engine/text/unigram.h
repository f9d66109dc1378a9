// Pieces of which a text is most likely made, each by itself (Kudo 2018, arXiv:1804.10959): Unigram in a
// tokenizer.json, the `t5` model of GGUF files.
//
// A score is the logarithm of a piece's probability; of all ways to cut a word the one whose scores add up highest is
// taken (Viterbi). A character that no piece begins with costs 10 more than the worst piece.

#ifndef EBB_ENGINE_TEXT_UNIGRAM_H_
#define EBB_ENGINE_TEXT_UNIGRAM_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "engine/text/vocabulary.h"
#include "engine/text/word_encoder.h"

namespace ebb {

struct UnigramRules {
  bool byte_tokens = false;         // <0xNN> for characters that are in no piece
  std::optional<int32_t> unk = {};  // else this one, for several in a row
};

// `table` outlives the encoder. DATA_LOSS naming the key: no scores; a byte without a token; nothing that stands for an
// unknown character.
absl::StatusOr<std::unique_ptr<const WordEncoder>> MakeUnigram(const TokenTable& table, const UnigramRules& rules);

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_UNIGRAM_H_
