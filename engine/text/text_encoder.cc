#include "engine/text/text_encoder.h"

#include <optional>
#include <ranges>
#include <utility>

#include "absl/strings/str_replace.h"
#include "engine/text/bpe.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/byte_tokens.h"
#include "engine/text/utf8.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr size_t kSeenBytesMax = 48;  // of a part of a word that is kept: longer ones rarely come again

std::vector<SpecialTokens::Name> NormalizedNames(const TokenTable& table, const TokenizerRules& rules) {
  std::vector<SpecialTokens::Name> names;
  for (const auto& [id, how] : std::views::reverse(rules.added)) {  // of those that become alike the lowest counts
    if (!how.normalized || table.type(id) != TokenType::kUserDefined) continue;
    names.push_back({.text = rules.normalizer.Apply(table.text(id), Before::kNothing), .id = id, .how = how});
  }
  return names;
}

absl::StatusOr<std::unique_ptr<const WordEncoder>> MakeWords(const TokenTable& table, const TokenizerRules& rules) {
  switch (rules.model) {
    case TokenizerRules::Model::kCharacters:
      return MakeCharacters(table, rules.characters);
    case TokenizerRules::Model::kUnigram:
      return MakeUnigram(table, rules.unigram);
    case TokenizerRules::Model::kBytes:
      break;
  }
  return MakeBpe(table, rules.whole_words);
}

}  // namespace

TextEncoder::TextEncoder(const TokenTable& table, TokenizerRules rules)
    : table_(table),
      rules_(std::move(rules)),
      normalized_(NormalizedNames(table, rules_), SpecialTokens::Overlap::kLeftmost) {}

absl::StatusOr<std::unique_ptr<const TextEncoder>> TextEncoder::Make(const TokenTable& table, TokenizerRules rules) {
  std::unique_ptr<TextEncoder> made(new TextEncoder(table, std::move(rules)));
  EBB_ASSIGN(made->words_, MakeWords(table, made->rules_));
  return made;
}

void TextEncoder::Encode(std::string_view text, Before before, Seen& seen, std::vector<int32_t>& ids) const {
  if (before != Before::kText && !text.empty() && FirstUtf8(text).kind != Utf8Kind::kCharacter) {
    if (const std::string prefix = rules_.normalizer.Prefix(); !prefix.empty()) words_->Encode(prefix, ids);
  }
  while (!text.empty()) {
    const size_t valid = ValidUtf8Size(text);
    if (valid > 0) EncodeValid(text.substr(0, valid), before, seen, ids);
    text.remove_prefix(valid);
    size_t invalid = 0;
    while (invalid < text.size()) {
      const Utf8Unit unit = FirstUtf8(text.substr(invalid));
      if (unit.kind == Utf8Kind::kCharacter) break;
      invalid += static_cast<size_t>(unit.size);
    }
    if (invalid > 0) words_->Encode(text.substr(0, invalid), ids);
    text.remove_prefix(invalid);
    before = Before::kText;
  }
}

void TextEncoder::EncodeValid(std::string_view text, Before before, Seen& seen, std::vector<int32_t>& ids) const {
  if (rules_.normalizer.empty() && normalized_.empty()) return EncodeNormal(text, before, seen, ids);
  const std::string normal = rules_.normalizer.Apply(text, before);
  const std::string_view whole = normal;
  size_t done = 0;
  for (const SpecialTokens::Match& match : normalized_.Find(whole, {})) {
    EncodeNormal(whole.substr(done, match.begin - done), before, seen, ids);
    ids.push_back(match.id);
    before = Before::kToken;
    done = match.begin + match.size;
  }
  EncodeNormal(whole.substr(done), before, seen, ids);
}

void TextEncoder::EncodeNormal(std::string_view text, Before before, Seen& seen, std::vector<int32_t>& ids) const {
  const Pretokenizer::Words split = rules_.pretokenizer.Split(text, before);
  for (std::string_view word : split.words) {
    while (!word.empty()) {
      const std::string_view part = word.substr(0, words_->FirstPart(word));
      EncodePart(part, seen, ids);
      word.remove_prefix(part.size());
    }
  }
}

void TextEncoder::EncodePart(std::string_view part, Seen& seen, std::vector<int32_t>& ids) const {
  if (part.size() > kSeenBytesMax) return words_->Encode(part, ids);
  const auto known = seen.words.find(absl::string_view(part.data(), part.size()));
  if (known != seen.words.end()) {
    const auto [begin, count] = known->second;
    for (size_t i = 0; i < count; ++i) ids.push_back(ids[begin + i]);
    return;
  }
  const size_t begin = ids.size();
  words_->Encode(part, ids);
  seen.words.try_emplace(std::string(part), Seen::Place{begin, ids.size() - begin});
}

std::string TextEncoder::Bytes(int32_t id) const {
  const std::string& text = table_.text(id);
  if (rules_.bytes_print) return BytesOfPrintable(text).value_or(text);  // some files hold plain text among the tokens
  const std::optional<uint8_t> byte = ByteOfText(text);
  if (table_.type(id) == TokenType::kByte && byte) return std::string(1, static_cast<char>(*byte));
  return rules_.space.empty() ? text : absl::StrReplaceAll(text, {{rules_.space, " "}});
}

}  // namespace ebb
