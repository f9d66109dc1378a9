#include "engine/text/characters.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "engine/text/bpe.h"
#include "engine/text/byte_tokens.h"
#include "engine/text/merge.h"
#include "engine/text/utf8.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr int32_t kNoToken = -1;
constexpr char32_t kAlone = 0x110000;  // no character

class Characters final : public WordEncoder {
 public:
  Characters(const TokenTable& table, const CharacterRules& rules) : table_(table), rules_(rules) {}

  absl::Status Read() {
    if (rules_.by_scores && table_.vocabulary().scores.empty()) {
      return VocabularyDamaged("scores", "expected one score per token, found none");
    }
    if (!rules_.by_scores) {
      EBB_ASSIGN(merges_, Merges::Make(table_));
    }
    for (int32_t id = 0; id < table_.size(); ++id) {
      longest_ = std::max(longest_, table_.text(id).size());
      if (table_.CanBeMade(id)) AddNeighbours(table_.text(id));
    }
    if (rules_.byte_tokens) {
      EBB_ASSIGN(byte_ids_, FindByteTokens(table_));
    } else if (!rules_.unk) {
      return VocabularyDamaged("tokens", "expected tokens for bytes, or one for the unknown, found neither");
    }
    return absl::OkStatus();
  }

  void Encode(std::string_view word, std::vector<int32_t>& ids) const override {
    if (rules_.whole_words) {
      if (const std::optional<int32_t> whole = FindPiece(word)) {
        ids.push_back(*whole);
        return;
      }
    }
    std::vector<Symbol> symbols;
    symbols.reserve(word.size());
    for (size_t begin = 0; begin < word.size();) AddSymbols(word, begin, symbols);
    if (rules_.by_scores) {
      MergeSymbols(symbols, [&](const Symbol& left, const Symbol& right) -> std::optional<Join> {
        const std::optional<int32_t> id = FindPiece(word.substr(left.begin, left.size + right.size));
        if (!id) return std::nullopt;
        return Join{.cost = -static_cast<double>(table_.vocabulary().scores[*id]), .id = *id};
      });
    } else {
      MergeSymbols(symbols, [&](const Symbol& left, const Symbol& right) { return merges_.Find(left.id, right.id); });
    }
    for (const Symbol& symbol : symbols) {
      if (symbol.size > 0) Add(symbol, word, ids);
    }
  }

  // A part ends between two characters that stand side by side in no token. Those that are no token themselves stay
  // together: one token may stand for several of them.
  size_t FirstPart(std::string_view word) const override {
    if (rules_.whole_words) return word.size();
    Utf8Unit left = FirstUtf8(word);
    auto size = static_cast<size_t>(left.size);
    while (size < word.size()) {
      const Utf8Unit right = FirstUtf8(word.substr(size));
      const bool known =
          left.kind == Utf8Kind::kCharacter && right.kind == Utf8Kind::kCharacter &&
          (neighbours_.contains(Neighbours(left.code, kAlone)) || neighbours_.contains(Neighbours(right.code, kAlone)));
      if (known && !neighbours_.contains(Neighbours(left.code, right.code))) break;
      size += static_cast<size_t>(right.size);
      left = right;
    }
    return size;
  }

 private:
  static uint64_t Neighbours(char32_t left, char32_t right) { return static_cast<uint64_t>(left) << 32 | right; }

  void AddNeighbours(std::string_view text) {
    std::optional<char32_t> left;
    while (!text.empty()) {
      const Utf8Unit unit = FirstUtf8(text);
      text.remove_prefix(static_cast<size_t>(unit.size));
      if (left) neighbours_.insert(Neighbours(*left, unit.code));
      if (!left && text.empty()) neighbours_.insert(Neighbours(unit.code, kAlone));
      left = unit.code;
    }
  }

  // The symbols of the character, or what is none, at `begin`, which goes on behind it.
  void AddSymbols(std::string_view word, size_t& begin, std::vector<Symbol>& symbols) const {
    const Utf8Unit unit = FirstUtf8(word.substr(begin));
    const std::string_view character = word.substr(begin, static_cast<size_t>(unit.size));
    const auto place = static_cast<int32_t>(begin);
    begin += character.size();
    const int32_t id = FindPiece(character).value_or(kNoToken);
    // Merges may name tokens of bytes; scores join texts.
    if (id == kNoToken && rules_.byte_tokens && !rules_.by_scores) {
      for (int32_t i = 0; i < unit.size; ++i) {
        symbols.push_back({.id = byte_ids_[static_cast<uint8_t>(character[i])], .begin = place + i, .size = 1});
      }
    } else if (id == kNoToken && rules_.fuse_unk && !rules_.byte_tokens && !symbols.empty() &&
               symbols.back().id == kNoToken) {
      symbols.back().size += unit.size;
    } else {
      symbols.push_back({.id = id, .begin = place, .size = unit.size});
    }
  }

  void Add(const Symbol& symbol, std::string_view word, std::vector<int32_t>& ids) const {
    if (symbol.id != kNoToken) {
      ids.push_back(symbol.id);
    } else if (!rules_.byte_tokens) {
      ids.push_back(*rules_.unk);
    } else {
      for (const char byte : word.substr(symbol.begin, symbol.size)) {
        ids.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
      }
    }
  }

  std::optional<int32_t> FindPiece(std::string_view text) const {
    if (text.size() > longest_) return std::nullopt;  // keeps the cost of a look-up bounded as symbols grow
    const std::optional<int32_t> id = table_.Find(text);
    if (!id || !table_.CanBeMade(*id)) return std::nullopt;
    return id;
  }

  const TokenTable& table_;
  const CharacterRules rules_;
  Merges merges_ = {};
  // Of all tokens' texts: characters side by side; and those that are a token, with kAlone behind them.
  absl::flat_hash_set<uint64_t> neighbours_ = {};
  size_t longest_ = 0;  // bytes of the longest token's text
  ByteTokens byte_ids_ = {};
};

}  // namespace

absl::StatusOr<std::unique_ptr<const WordEncoder>> MakeCharacters(const TokenTable& table,
                                                                  const CharacterRules& rules) {
  auto characters = std::make_unique<Characters>(table, rules);
  EBB_TRY(characters->Read());
  return characters;
}

}  // namespace ebb
