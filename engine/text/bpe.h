// Byte-level byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909, on the bytes of UTF-8 as in GPT-2): the `gpt2`
// model of GGUF files.
//
// Text is cut into words (pretokenize.h); a word begins as its bytes, and of all neighbouring pairs that stand in the
// list of merges the one listed first is joined, again and again. Any bytes can be encoded, and decode to themselves.

#ifndef EBB_ENGINE_TEXT_BPE_H_
#define EBB_ENGINE_TEXT_BPE_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/pretokenize.h"
#include "engine/text/text_encoder.h"
#include "engine/text/vocabulary.h"

namespace ebb {

// `table` outlives the encoder. DATA_LOSS naming the key: a merge that is not two tokens whose joined text is a token;
// a byte without a token.
absl::StatusOr<std::unique_ptr<const TextEncoder>> MakeBpe(const TokenTable& table, Pretokenizer pretokenizer);

// The files write bytes as characters that print: 0x20 is U+0120, Ġ. Back to bytes; absent if some character stands for
// no byte.
std::optional<std::string> BytesOfPrintable(std::string_view text);

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_BPE_H_
