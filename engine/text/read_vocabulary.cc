#include "engine/text/read_vocabulary.h"

#include <string>

#include "engine/model/hub_tokenizer.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr char kPrefix[] = "tokenizer.ggml.";

absl::StatusOr<std::vector<std::string>> ReadStrings(const GgufFile& file, const std::string& key) {
  EBB_ASSIGN(const std::vector<std::string_view> views, file.GetStrings(key));
  return std::vector<std::string>(views.begin(), views.end());
}

absl::StatusOr<std::optional<bool>> ReadFlag(const GgufFile& file, const std::string& key) {
  if (file.FindValue(key) == nullptr) return std::nullopt;
  EBB_ASSIGN(const bool flag, file.GetBool(key));
  return flag;
}

}  // namespace

absl::StatusOr<Vocabulary> ReadVocabulary(const GgufFile& file) {
  const auto key = [](const char* name) { return std::string(kPrefix) + name; };
  const auto has = [&](const char* name) { return file.FindValue(key(name)) != nullptr; };
  Vocabulary read;
  EBB_ASSIGN(read.model, file.GetString(key("model")));
  EBB_ASSIGN(read.pre, file.GetString(key("pre"), ""));
  EBB_ASSIGN(read.tokens, ReadStrings(file, key("tokens")));
  if (has("scores")) {
    EBB_ASSIGN(read.scores, file.GetFloats(key("scores")));
  }
  if (has("token_type")) {
    EBB_ASSIGN(read.types, file.GetInts(key("token_type")));
  }
  if (has("merges")) {
    EBB_ASSIGN(read.merges, ReadStrings(file, key("merges")));
  }
  EBB_ASSIGN(read.bos, ReadTokenId(file, key("bos_token_id")));
  EBB_ASSIGN(read.eos, ReadTokenId(file, key("eos_token_id")));
  EBB_ASSIGN(read.eot, ReadTokenId(file, key("eot_token_id")));
  EBB_ASSIGN(read.eom, ReadTokenId(file, key("eom_token_id")));
  EBB_ASSIGN(read.unk, ReadTokenId(file, key("unknown_token_id")));
  EBB_ASSIGN(read.add_bos, ReadFlag(file, key("add_bos_token")));
  EBB_ASSIGN(read.add_space_prefix, ReadFlag(file, key("add_space_prefix")));
  if (has("remove_extra_whitespaces")) {
    EBB_ASSIGN(read.one_space, file.GetBool(key("remove_extra_whitespaces")));
  }
  if (has("precompiled_charsmap")) {
    EBB_ASSIGN(const std::vector<int32_t> bytes, file.GetInts(key("precompiled_charsmap")));
    for (const int32_t byte : bytes) read.chars_map += static_cast<char>(byte);
  }
  EBB_ASSIGN(read.rules, file.GetString(kTokenizerRulesKey, ""));
  EBB_ASSIGN(read.chat_template, file.GetString("tokenizer.chat_template", ""));
  return read;
}

}  // namespace ebb
