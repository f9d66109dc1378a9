// Byte-level vocabularies write bytes as characters that print: 0x20 is U+0120, Ġ (Radford et al. 2019).

#ifndef EBB_ENGINE_TEXT_BYTE_ALPHABET_H_
#define EBB_ENGINE_TEXT_BYTE_ALPHABET_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ebb {

std::string PrintableOfBytes(std::string_view bytes);

// Back to bytes; absent if some character stands for no byte.
std::optional<std::string> BytesOfPrintable(std::string_view text);

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_BYTE_ALPHABET_H_
