#include "tests/support/sample_vocabulary.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace ebb {
namespace {

void AddToken(Vocabulary& vocabulary, const std::string& text, TokenType type) {
  vocabulary.tokens.push_back(text);
  vocabulary.types.push_back(static_cast<int32_t>(type));
}

}  // namespace

std::string PrintableBytes(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    int code = byte;  // as the published table has it: three runs print, the rest is numbered from 256 on
    if (byte <= 0x20) code = 256 + byte;
    if (byte >= 0x7F && byte <= 0xA0) code = 256 + 33 + (byte - 0x7F);
    if (byte == 0xAD) code = 256 + 67;
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else {
      text += static_cast<char>(0xC0 | (code >> 6));
      text += static_cast<char>(0x80 | (code & 0x3F));
    }
  }
  return text;
}

Vocabulary SampleBpe(const std::string& pre, const std::vector<std::pair<std::string, std::string>>& merges) {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = pre;
  for (int byte = 0; byte < 256; ++byte) {
    AddToken(vocabulary, PrintableBytes(std::string(1, static_cast<char>(byte))), TokenType::kNormal);
  }
  for (const auto& [left, right] : merges) {
    vocabulary.merges.push_back(PrintableBytes(left) + " " + PrintableBytes(right));
    AddToken(vocabulary, PrintableBytes(left + right), TokenType::kNormal);
  }
  vocabulary.bos = static_cast<int32_t>(vocabulary.tokens.size());
  AddToken(vocabulary, "<|begin|>", TokenType::kControl);
  vocabulary.eos = static_cast<int32_t>(vocabulary.tokens.size());
  AddToken(vocabulary, "<|end|>", TokenType::kControl);
  AddToken(vocabulary, "<|user|>", TokenType::kControl);
  return vocabulary;
}

Vocabulary SampleSpm(const std::vector<std::string>& pieces) {
  Vocabulary vocabulary;
  vocabulary.model = "llama";
  AddToken(vocabulary, "<unk>", TokenType::kUnknown);
  AddToken(vocabulary, "<s>", TokenType::kControl);
  AddToken(vocabulary, "</s>", TokenType::kControl);
  vocabulary.bos = 1;
  vocabulary.eos = 2;
  for (int byte = 0; byte < 256; ++byte) AddToken(vocabulary, absl::StrFormat("<0x%02X>", byte), TokenType::kByte);
  vocabulary.scores.assign(vocabulary.tokens.size(), 0);
  for (size_t i = 0; i < pieces.size(); ++i) {
    AddToken(vocabulary, pieces[i], TokenType::kNormal);
    vocabulary.scores.push_back(-static_cast<float>(i));
  }
  return vocabulary;
}

nlohmann::json SampleTokenizerJson(const Vocabulary& vocabulary) {
  using Json = nlohmann::json;
  Json vocab = Json::object();
  Json scored = Json::array();
  Json added = Json::array();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& text = vocabulary.tokens[id];
    vocab[text] = id;
    if (!vocabulary.scores.empty()) scored.push_back(Json::array({text, vocabulary.scores[id]}));
    const bool special = vocabulary.types[id] == static_cast<int32_t>(TokenType::kControl);
    if (special) added.push_back({{"id", id}, {"content", text}, {"special", true}, {"normalized", false}});
  }
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const Json spaces = {{"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}, {"prepend_scheme", "always"}};
  const bool bpe = vocabulary.scores.empty();
  Json json = {{"version", "1.0"}, {"truncation", nullptr}, {"normalizer", nullptr}, {"added_tokens", added}};
  json["pre_tokenizer"] = bpe ? bytes : spaces;
  json["decoder"] = bpe ? bytes : Json({{"type", "Sequence"}, {"decoders", {spaces, {{"type", "ByteFallback"}}}}});
  if (bpe) {
    json["model"] = {{"type", "BPE"}, {"dropout", nullptr}, {"vocab", vocab}, {"merges", vocabulary.merges}};
  } else {
    json["model"] = {{"type", "Unigram"}, {"unk_id", 0}, {"byte_fallback", true}, {"vocab", scored}};
  }
  return json;
}

}  // namespace ebb
