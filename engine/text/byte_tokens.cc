#include "engine/text/byte_tokens.h"

#include <charconv>
#include <string>

#include "absl/strings/str_format.h"

namespace ebb {

std::optional<uint8_t> ByteOfText(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') return std::nullopt;
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(text.data() + 3, text.data() + 5, byte, 16);
  if (error != std::errc() || end != text.data() + 5) return std::nullopt;
  return byte;
}

absl::StatusOr<ByteTokens> FindByteTokens(const TokenTable& table) {
  ByteTokens tokens = {};
  for (size_t byte = 0; byte < tokens.size(); ++byte) {
    const std::string text = absl::StrFormat("<0x%02X>", byte);
    const std::optional<int32_t> id = table.Find(text);
    if (!id || table.type(*id) != TokenType::kByte) {
      return VocabularyDamaged("tokens", absl::StrFormat("expected a token '%s' of type byte, found none", text));
    }
    tokens[byte] = *id;
  }
  return tokens;
}

}  // namespace ebb
