#include "engine/text/spm.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "engine/text/merge.h"
#include "engine/text/utf8.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr int kByteTokens = 256;
constexpr char kSpace[] = "\xE2\x96\x81";  // U+2581

// 65 for "<0x41>".
std::optional<uint8_t> ByteOfText(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') return std::nullopt;
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(text.data() + 3, text.data() + 5, byte, 16);
  if (error != std::errc() || end != text.data() + 5) return std::nullopt;
  return byte;
}

class Spm final : public TextEncoder {
 public:
  Spm(const TokenTable& table, bool space_prefix) : table_(table), space_prefix_(space_prefix) {}

  absl::Status Check();
  void Encode(std::string_view text, Before before, std::vector<int32_t>& ids) const override;

  std::string Bytes(int32_t id) const override {
    const std::optional<uint8_t> byte = ByteOfText(table_.text(id));
    if (table_.type(id) == TokenType::kByte && byte) return std::string(1, static_cast<char>(*byte));
    return absl::StrReplaceAll(table_.text(id), {{kSpace, " "}});
  }

 private:
  std::optional<int32_t> FindPiece(std::string_view text) const {
    if (text.size() > longest_) return std::nullopt;  // keeps the cost of a look-up bounded as symbols grow
    const std::optional<int32_t> id = table_.Find(text);
    if (!id || !table_.IsOrdinary(*id)) return std::nullopt;
    return id;
  }

  const TokenTable& table_;
  const bool space_prefix_;
  size_t longest_ = 0;  // bytes of the longest token's text
  std::array<int32_t, kByteTokens> byte_ids_ = {};
};

absl::Status Spm::Check() {
  if (table_.vocabulary().scores.empty()) {
    return VocabularyDamaged("scores", "expected one score per token, found none");
  }
  for (int32_t id = 0; id < table_.size(); ++id) longest_ = std::max(longest_, table_.text(id).size());
  for (int byte = 0; byte < kByteTokens; ++byte) {
    const std::string text = absl::StrFormat("<0x%02X>", byte);
    const std::optional<int32_t> id = table_.Find(text);
    if (!id || table_.type(*id) != TokenType::kByte) {
      return VocabularyDamaged("tokens", absl::StrFormat("expected a token '%s' of type byte, found none", text));
    }
    byte_ids_[byte] = *id;
  }
  return absl::OkStatus();
}

void Spm::Encode(std::string_view text, Before before, std::vector<int32_t>& ids) const {
  std::string escaped = absl::StrReplaceAll(absl::string_view(text.data(), text.size()), {{" ", kSpace}});
  if (space_prefix_ && before == Before::kNothing) escaped.insert(0, kSpace);
  const std::string_view whole = escaped;

  std::vector<Symbol> symbols;
  for (size_t begin = 0; begin < whole.size(); begin += symbols.back().size) {
    const int32_t size = FirstUtf8(whole.substr(begin)).size;
    symbols.push_back(
        {.id = FindPiece(whole.substr(begin, size)).value_or(-1), .begin = static_cast<int32_t>(begin), .size = size});
  }
  MergeSymbols(symbols, [&](const Symbol& left, const Symbol& right) -> std::optional<Join> {
    const std::optional<int32_t> id = FindPiece(whole.substr(left.begin, left.size + right.size));
    if (!id) return std::nullopt;
    return Join{.cost = -static_cast<double>(table_.vocabulary().scores[*id]), .id = *id};
  });
  for (const Symbol& symbol : symbols) {
    if (symbol.size > 0 && symbol.id >= 0) {
      ids.push_back(symbol.id);
    } else {
      for (const char byte : whole.substr(symbol.begin, symbol.size))
        ids.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<const TextEncoder>> MakeSpm(const TokenTable& table, bool space_prefix) {
  auto spm = std::make_unique<Spm>(table, space_prefix);
  EBB_TRY(spm->Check());
  return spm;
}

}  // namespace ebb
