// Tokens <0xNN>, for the bytes of characters that a vocabulary lacks.

#ifndef EBB_ENGINE_TEXT_BYTE_TOKENS_H_
#define EBB_ENGINE_TEXT_BYTE_TOKENS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/vocabulary.h"

namespace ebb {

using ByteTokens = std::array<int32_t, 256>;  // id by byte

// DATA_LOSS naming `tokens`: a byte without a token of type byte.
absl::StatusOr<ByteTokens> FindByteTokens(const TokenTable& table);

// 65 for "<0x41>".
std::optional<uint8_t> ByteOfText(std::string_view text);

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_BYTE_TOKENS_H_
