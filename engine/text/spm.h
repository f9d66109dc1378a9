// SentencePiece-style pieces with scores (Kudo and Richardson 2018, arXiv:1808.06226): the `llama` model of GGUF files.
//
// Spaces are written U+2581. The text begins as its characters; of all neighbouring pairs whose joined text is a token
// the one with the highest score is joined, again and again. A character that is no token becomes the byte tokens
// <0xNN> of its UTF-8, so any bytes can be encoded.
//
// A literal U+2581 in the text cannot be told from a space and decodes to one; everything else decodes to itself, after
// the space that is put before the text where the model says so.

#ifndef EBB_ENGINE_TEXT_SPM_H_
#define EBB_ENGINE_TEXT_SPM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/text/text_encoder.h"
#include "engine/text/vocabulary.h"

namespace ebb {

// `table` outlives the encoder. `space_prefix`: a space is put before text that goes on no other. DATA_LOSS naming the
// key: no scores; a byte without a token.
absl::StatusOr<std::unique_ptr<const TextEncoder>> MakeSpm(const TokenTable& table, bool space_prefix);

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_SPM_H_
