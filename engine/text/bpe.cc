#include "engine/text/bpe.h"

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "engine/model/gguf.h"
#include "engine/text/merge.h"
#include "engine/text/utf8.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr int kBytes = 256;
constexpr int16_t kNoByte = -1;

// Bytes that print in Latin-1 stand for themselves, the others take the code points from 256 on, in order.
bool PrintsInLatin1(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct ByteAlphabet {
  std::array<char32_t, kBytes> code_of_byte = {};
  std::array<int16_t, 2 * kBytes> byte_of_code = {};  // kNoByte where the code point stands for none
};

ByteAlphabet MakeByteAlphabet() {
  ByteAlphabet alphabet;
  alphabet.byte_of_code.fill(kNoByte);
  char32_t next = kBytes;
  for (int byte = 0; byte < kBytes; ++byte) {
    const char32_t code = PrintsInLatin1(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.code_of_byte[byte] = code;
    alphabet.byte_of_code[code] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

const ByteAlphabet& Alphabet() {
  static const ByteAlphabet alphabet = MakeByteAlphabet();
  return alphabet;
}

class Bpe final : public TextEncoder {
 public:
  Bpe(const TokenTable& table, Pretokenizer pretokenizer) : table_(table), pretokenizer_(std::move(pretokenizer)) {}

  absl::Status ReadBytes();
  absl::Status ReadMerges();
  void IndexWords();

  void Encode(std::string_view text, Before /*before*/, std::vector<int32_t>& ids) const override {
    std::vector<Symbol> symbols;
    for (const std::string_view word : pretokenizer_.Split(text)) EncodeWord(word, symbols, ids);
  }

  std::string Bytes(int32_t id) const override {
    return BytesOfPrintable(table_.text(id)).value_or(table_.text(id));  // some files hold plain text among the tokens
  }

 private:
  void EncodeWord(std::string_view word, std::vector<Symbol>& symbols, std::vector<int32_t>& ids) const;
  absl::StatusOr<int32_t> FindMergePart(size_t merge, const std::string& text) const;

  static uint64_t Pair(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  const TokenTable& table_;
  Pretokenizer pretokenizer_;
  std::array<int32_t, kBytes> byte_ids_ = {};
  absl::flat_hash_map<uint64_t, Join> merges_ = {};
  absl::flat_hash_map<std::string, int32_t> words_ = {};  // bytes to token; only for rules with whole_words
};

absl::Status Bpe::ReadBytes() {
  for (int byte = 0; byte < kBytes; ++byte) {
    std::string text;
    AppendUtf8(Alphabet().code_of_byte[byte], text);
    const std::optional<int32_t> id = table_.Find(text);
    if (!id || !table_.IsOrdinary(*id)) {
      return VocabularyDamaged("tokens",
                               absl::StrFormat("expected a token '%s' for byte 0x%02X, found none", text, byte));
    }
    byte_ids_[byte] = *id;
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> Bpe::FindMergePart(size_t merge, const std::string& text) const {
  const std::optional<int32_t> id = table_.Find(text);
  if (id) return *id;
  return VocabularyDamaged("merges", absl::StrFormat("expected tokens in merge %d '%s', found no token '%s'", merge,
                                                     Printable(table_.vocabulary().merges[merge]), Printable(text)));
}

absl::Status Bpe::ReadMerges() {
  const std::vector<std::string>& merges = table_.vocabulary().merges;
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string& merge = merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == std::string::npos || space + 1 == merge.size()) {
      return VocabularyDamaged(
          "merges", absl::StrFormat("expected 'left right' in merge %d, found '%s'", rank, Printable(merge)));
    }
    const std::string left_text = merge.substr(0, space);
    const std::string right_text = merge.substr(space + 1);
    EBB_ASSIGN(const int32_t left, FindMergePart(rank, left_text));
    EBB_ASSIGN(const int32_t right, FindMergePart(rank, right_text));
    EBB_ASSIGN(const int32_t joined, FindMergePart(rank, left_text + right_text));
    if (!table_.IsOrdinary(joined)) continue;  // special tokens are not made by cutting, whatever the file says
    merges_.try_emplace(Pair(left, right), Join{.cost = static_cast<double>(rank), .id = joined});
  }
  return absl::OkStatus();
}

void Bpe::IndexWords() {
  if (!pretokenizer_.whole_words()) return;
  for (int32_t id = 0; id < table_.size(); ++id) {
    if (!table_.IsOrdinary(id)) continue;
    std::optional<std::string> bytes = BytesOfPrintable(table_.text(id));
    if (bytes) words_.try_emplace(*std::move(bytes), id);
  }
}

void Bpe::EncodeWord(std::string_view word, std::vector<Symbol>& symbols, std::vector<int32_t>& ids) const {
  if (const auto whole = words_.find(absl::string_view(word.data(), word.size())); whole != words_.end()) {
    ids.push_back(whole->second);
    return;
  }
  symbols.clear();
  for (size_t i = 0; i < word.size(); ++i) {
    symbols.push_back({.id = byte_ids_[static_cast<uint8_t>(word[i])], .begin = static_cast<int32_t>(i), .size = 1});
  }
  MergeSymbols(symbols, [this](const Symbol& left, const Symbol& right) -> std::optional<Join> {
    const auto merge = merges_.find(Pair(left.id, right.id));
    if (merge == merges_.end()) return std::nullopt;
    return merge->second;
  });
  for (const Symbol& symbol : symbols) {
    if (symbol.size > 0) ids.push_back(symbol.id);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<const TextEncoder>> MakeBpe(const TokenTable& table, Pretokenizer pretokenizer) {
  auto bpe = std::make_unique<Bpe>(table, std::move(pretokenizer));
  EBB_TRY(bpe->ReadBytes());
  EBB_TRY(bpe->ReadMerges());
  bpe->IndexWords();
  return bpe;
}

std::optional<std::string> BytesOfPrintable(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const Utf8Unit unit = FirstUtf8(text);
    if (unit.kind != Utf8Kind::kCharacter || unit.code >= Alphabet().byte_of_code.size()) return std::nullopt;
    const int16_t byte = Alphabet().byte_of_code[unit.code];
    if (byte == kNoByte) return std::nullopt;
    bytes += static_cast<char>(byte);
    text.remove_prefix(unit.size);
  }
  return bytes;
}

}  // namespace ebb
