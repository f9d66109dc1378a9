#include "engine/text/bpe.h"

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "engine/model/gguf.h"
#include "engine/text/byte_alphabet.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr int kByteCount = 256;

// Whether a user-defined token's letters read as other bytes than its text.
bool IsNameOfOtherText(const TokenTable& table, int32_t id) {
  if (table.type(id) != TokenType::kUserDefined) return false;
  const std::optional<std::string> bytes = BytesOfPrintable(table.text(id));
  return bytes && *bytes != table.text(id);
}

class Bpe final : public WordEncoder {
 public:
  Bpe(const TokenTable& table, Merges merges) : table_(table), merges_(std::move(merges)) {}

  absl::Status ReadBytes();
  void IndexWords();

  void Encode(std::string_view word, std::vector<int32_t>& ids) const override;

 private:
  const TokenTable& table_;
  Merges merges_;
  std::array<int32_t, kByteCount> byte_ids_ = {};
  absl::flat_hash_map<std::string, int32_t> words_ = {};  // bytes to token; only with whole_words
};

absl::Status Bpe::ReadBytes() {
  for (int byte = 0; byte < kByteCount; ++byte) {
    const char raw = static_cast<char>(byte);
    const std::string text = PrintableOfBytes({&raw, 1});
    const std::optional<int32_t> id = table_.Find(text);
    if (!id || !table_.CanBeMade(*id)) {
      return VocabularyDamaged("tokens",
                               absl::StrFormat("expected a token '%s' for byte 0x%02X, found none", text, byte));
    }
    byte_ids_[byte] = *id;
  }
  return absl::OkStatus();
}

void Bpe::IndexWords() {
  for (int32_t id = 0; id < table_.size(); ++id) {
    if (!table_.CanBeMade(id) || IsNameOfOtherText(table_, id)) continue;
    std::optional<std::string> bytes = BytesOfPrintable(table_.text(id));
    if (bytes) words_.try_emplace(*std::move(bytes), id);
  }
}

void Bpe::Encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (const auto whole = words_.find(absl::string_view(word.data(), word.size())); whole != words_.end()) {
    ids.push_back(whole->second);
    return;
  }
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (size_t i = 0; i < word.size(); ++i) {
    symbols.push_back({.id = byte_ids_[static_cast<uint8_t>(word[i])], .begin = static_cast<int32_t>(i), .size = 1});
  }
  MergeSymbols(symbols, [this](const Symbol& left, const Symbol& right) { return merges_.Find(left.id, right.id); });
  for (const Symbol& symbol : symbols) {
    if (symbol.size > 0) ids.push_back(symbol.id);
  }
}

}  // namespace

absl::StatusOr<Merges> Merges::Make(const TokenTable& table) {
  const std::vector<std::string>& merges = table.vocabulary().merges;
  Merges made;
  made.joins_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string& merge = merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == std::string::npos || space + 1 == merge.size()) {
      return VocabularyDamaged(
          "merges", absl::StrFormat("expected 'left right' in merge %d, found '%s'", rank, Printable(merge)));
    }
    const std::string left_text = merge.substr(0, space);
    const std::string right_text = merge.substr(space + 1);
    std::array<int32_t, 3> ids = {};
    for (size_t i = 0; const std::string& text : {left_text, right_text, left_text + right_text}) {
      const std::optional<int32_t> id = table.Find(text);
      if (!id) {
        return VocabularyDamaged("merges", absl::StrFormat("expected tokens in merge %d '%s', found no token '%s'",
                                                           rank, Printable(merge), Printable(text)));
      }
      ids[i++] = *id;
    }
    const auto [left, right, joined] = ids;
    if (!table.CanBeMade(joined)) continue;  // special tokens are not made by cutting, whatever the file says
    made.joins_.try_emplace(Pair(left, right), Join{.cost = static_cast<double>(rank), .id = joined});
  }
  return made;
}

void DropNamesOfBytes(TokenTable& table) {
  std::vector<int32_t> unclear;
  for (int32_t id = 0; id < table.size(); ++id) {
    if (IsNameOfOtherText(table, id)) unclear.push_back(id);
  }
  if (unclear.empty()) return;
  absl::flat_hash_set<std::string> made;
  for (const std::string& merge : table.vocabulary().merges) made.insert(absl::StrReplaceAll(merge, {{" ", ""}}));
  for (const int32_t id : unclear) {
    const std::string& text = table.text(id);
    if (BytesOfPrintable(text)->size() == 1 || made.contains(text)) table.MakeNormal(id);
  }
}

absl::StatusOr<std::unique_ptr<const WordEncoder>> MakeBpe(const TokenTable& table, bool whole_words) {
  EBB_ASSIGN(Merges merges, Merges::Make(table));
  auto bpe = std::make_unique<Bpe>(table, std::move(merges));
  EBB_TRY(bpe->ReadBytes());
  if (whole_words) bpe->IndexWords();
  return bpe;
}

}  // namespace ebb
