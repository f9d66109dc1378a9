#include "engine/model/hub_tokenizer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/model/json_place.h"
#include "engine/model/json_text.h"
#include "engine/model/mapped_folder.h"
#include "engine/model/model_path.h"
#include "engine/model/token_type.h"
#include "policies/status.h"

namespace ebb {
namespace {

using Json = nlohmann::json;

constexpr char kTokenizer[] = "tokenizer.json";
constexpr char kTokenizerConfig[] = "tokenizer_config.json";
constexpr char kChatTemplate[] = "chat_template.jinja";
constexpr std::string_view kBosKey = "tokenizer.ggml.bos_token_id";
// Of tokens that end a text; files that are read know no more of them.
constexpr std::string_view kEosKeys[kEndsMax] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                                 "tokenizer.ggml.eom_token_id"};
constexpr size_t kBytesMax = size_t{256} << 20;
constexpr int64_t kTokensMax = int64_t{1} << 20;  // as many as a model may have

constexpr int32_t TypeNumber(TokenType type) { return static_cast<int32_t>(type); }

std::string TokenizerKey(std::string_view name) { return absl::StrFormat("tokenizer.ggml.%s", name); }

bool IsByteToken(std::string_view text) { return text.size() == 6 && text.starts_with("<0x") && text.back() == '>'; }

absl::StatusOr<std::string_view> ReadText(const std::string& folder, const std::string& name, const ReadHubFile& read) {
  EBB_ASSIGN(const std::span<const std::byte> bytes, read(name));
  if (bytes.size() > kBytesMax) {
    return DamagedJson(absl::StrCat(folder, "/", name), "", absl::StrFormat("at most %d bytes", kBytesMax),
                       absl::StrFormat("%d", bytes.size()));
  }
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

class VocabularyWriter {
 public:
  VocabularyWriter(const JsonPlace& file, int64_t vocab, GgufHeader& header)
      : file_(file), vocab_(vocab), header_(header) {}

  absl::Status Write() {
    EBB_TRY(ReadModel());
    EBB_TRY(ReadAdded());
    if (const auto fewest = static_cast<size_t>(vocab_); vocab_ > 0 && vocab_ <= kTokensMax) {
      if (texts_.size() > fewest) {
        return file_["added_tokens"].Wrong(absl::StrFormat("ids below vocab_size %d", vocab_));
      }
      Grow(fewest);
    }
    header_.AddTexts(TokenizerKey("tokens"), texts_);
    header_.AddInts(TokenizerKey("token_type"), types_);
    if (!scores_.empty()) header_.AddFloats(TokenizerKey("scores"), scores_);
    if (!merges_.empty()) header_.AddTexts(TokenizerKey("merges"), merges_);
    return absl::OkStatus();
  }

  // The id of a token, by its text.
  std::optional<int32_t> Find(const std::string& text) const {
    const auto found = ids_.find(text);
    if (found == ids_.end()) return std::nullopt;
    return found->second;
  }

 private:
  void Grow(size_t size) {
    if (texts_.size() >= size) return;
    texts_.resize(size);
    types_.resize(size, TypeNumber(TokenType::kUnused));  // holes in the numbering: no text becomes them
    if (!scores_.empty()) scores_.resize(std::max(scores_.size(), size));
  }

  // `place()` is the token's, for messages.
  template <typename Place>
  absl::Status Put(const Place& place, int64_t id, const std::string& text, TokenType type) {
    if (id < 0 || id >= kTokensMax) return place().Wrong(absl::StrFormat("an id below %d", kTokensMax));
    Grow(static_cast<size_t>(id) + 1);
    if (!texts_[id].empty() && texts_[id] != text) {
      return place().Wrong(absl::StrFormat("another id than that of '%s'", Printable(texts_[id])));
    }
    const auto [known, is_new] = ids_.try_emplace(text, static_cast<int32_t>(id));
    if (!is_new && known->second != id) return place().Wrong(absl::StrFormat("the id %d, as before", known->second));
    texts_[id] = text;
    types_[id] = TypeNumber(type);
    return absl::OkStatus();
  }

  absl::Status ReadModel() {
    const JsonPlace model = file_["model"];
    EBB_ASSIGN(const std::string type, model["type"].Text());
    EBB_ASSIGN(const bool byte_tokens, model["byte_fallback"].Flag(false));
    const auto type_of = [&](const std::string& text) {
      return byte_tokens && IsByteToken(text) ? TokenType::kByte : TokenType::kNormal;
    };
    const JsonPlace vocabulary = model["vocab"];
    if (type == "BPE") {
      if (!vocabulary || !vocabulary.value().is_object()) return vocabulary.Wrong("an object");
      for (const auto& [text, id] : vocabulary.value().items()) {
        const auto place = [&vocabulary, &name = text] { return vocabulary[name]; };
        if (!id.is_number_integer()) return place().Wrong("the id of a token");
        EBB_TRY(Put(place, id.get<int64_t>(), text, type_of(text)));
      }
      EBB_TRY(ReadMerges(model["merges"]));
      header_.AddText(TokenizerKey("model"), byte_tokens ? "llama" : "gpt2");
    } else if (type == "Unigram") {
      if (!vocabulary || !vocabulary.value().is_array()) return vocabulary.Wrong("an array");
      const Json& pieces = vocabulary.value();
      scores_.resize(pieces.size());
      for (size_t id = 0; id < pieces.size(); ++id) {
        const auto place = [&vocabulary, id] { return vocabulary[id]; };
        const Json& pair = pieces[id];
        if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_number()) {
          return place().Wrong("a text and its score");
        }
        scores_[id] = pair[1].get<float>();
        const auto& text = pair[0].get_ref<const std::string&>();
        EBB_TRY(Put(place, static_cast<int64_t>(id), text, type_of(text)));
      }
      header_.AddText(TokenizerKey("model"), "t5");
    } else {
      return model["type"].NotKnown("BPE, Unigram");
    }
    std::optional<int32_t> unk;
    if (const JsonPlace text = model["unk_token"]) {
      EBB_ASSIGN(const std::string unknown, text.Text());
      unk = Find(unknown);
      if (!unk) return text.Wrong("a token of the vocabulary");
    } else if (const JsonPlace id = model["unk_id"]) {
      EBB_ASSIGN(unk, id.Id());
      if (static_cast<size_t>(*unk) >= texts_.size()) return id.Wrong("a token of the vocabulary");
    }
    if (!unk) return absl::OkStatus();
    header_.Add(TokenizerKey("unknown_token_id"), static_cast<uint32_t>(*unk));
    types_[*unk] = TypeNumber(TokenType::kUnknown);
    return absl::OkStatus();
  }

  absl::Status ReadMerges(const JsonPlace& merges) {
    if (!merges || !merges.value().is_array()) return merges.Wrong("an array");
    merges_.reserve(merges.value().size());
    for (size_t i = 0; i < merges.value().size(); ++i) {
      const Json& merge = merges.value()[i];
      if (merge.is_string()) {
        merges_.push_back(merge.get<std::string>());
        continue;
      }
      if (!merge.is_array() || merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) {
        return merges[i].Wrong("two texts");
      }
      const auto& left = merge[0].get_ref<const std::string&>();
      const auto& right = merge[1].get_ref<const std::string&>();
      if (left.find(' ') != std::string::npos || right.find(' ') != std::string::npos) {
        return merges[i].NotKnown("merges of texts without spaces");
      }
      merges_.push_back(absl::StrCat(left, " ", right));
    }
    return absl::OkStatus();
  }

  absl::Status ReadAdded() {
    EBB_ASSIGN(const std::vector<JsonPlace> added, file_["added_tokens"].Elements());
    for (const JsonPlace& token : added) {
      EBB_ASSIGN(const int32_t id, token["id"].Id());
      EBB_ASSIGN(const std::string text, token["content"].Text());
      EBB_ASSIGN(const bool special, token["special"].Flag(false));
      if (text.empty()) return token["content"].Wrong("a text");
      const bool unknown = static_cast<size_t>(id) < types_.size() && types_[id] == TypeNumber(TokenType::kUnknown);
      EBB_TRY(Put([&] { return token; }, id, text,
                  unknown   ? TokenType::kUnknown
                  : special ? TokenType::kControl
                            : TokenType::kUserDefined));
    }
    return absl::OkStatus();
  }

  const JsonPlace file_;
  const int64_t vocab_;
  GgufHeader& header_;
  std::vector<std::string> texts_ = {};
  std::vector<int32_t> types_ = {};
  std::vector<float> scores_ = {};
  std::vector<std::string> merges_ = {};
  absl::flat_hash_map<std::string, int32_t> ids_ = {};
};

// What VocabularyWriter has not taken.
std::string RulesWithoutVocabulary(Json file) {
  Json& model = file["model"];
  for (const char* taken : {"vocab", "merges"}) model.erase(taken);
  for (const char* other : {"version", "truncation", "padding"}) file.erase(other);
  Json added = Json::array();
  for (const Json& token : file["added_tokens"]) {
    const bool says_more =
        std::ranges::any_of(std::array{"single_word", "lstrip", "rstrip", "normalized"}, [&](const char* name) {
          const auto flag = token.find(name);
          return flag != token.end() && *flag != false;
        });
    if (says_more) added.push_back(token);
  }
  file["added_tokens"] = std::move(added);
  return file.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A token by its text, or by what says more of it and has the text as `content`.
absl::StatusOr<std::optional<int32_t>> TokenOf(const JsonPlace& place, const VocabularyWriter& tokens) {
  if (!place) return std::nullopt;
  EBB_ASSIGN(const std::string text, (place.value().is_object() ? place["content"] : place).Text());
  return tokens.Find(text);  // some files name tokens that they lack
}

// What tokenizer_config.json says of the ends of texts counts before config.json.
absl::Status ReadTokenizerConfig(const JsonPlace& config, const VocabularyWriter& tokens, HubEnds& ends,
                                 GgufHeader& header) {
  EBB_ASSIGN(const std::optional<int32_t> bos, TokenOf(config["bos_token"], tokens));
  EBB_ASSIGN(const std::optional<int32_t> eos, TokenOf(config["eos_token"], tokens));
  if (bos) ends.bos = bos;
  if (eos) {
    std::erase(ends.eos, *eos);
    ends.eos.insert(ends.eos.begin(), *eos);
  }
  if (const JsonPlace add_bos = config["add_bos_token"]) {
    EBB_ASSIGN(const bool flag, add_bos.Flag(false));
    if (ends.bos || !flag) header.Add(TokenizerKey("add_bos_token"), flag);
  }
  return absl::OkStatus();
}

// The template of chat_template.jinja, else of tokenizer_config.json: of several the one named default.
absl::StatusOr<std::string> ChatTemplate(const std::string& folder, const JsonPlace& config, const ReadHubFile& read) {
  const absl::StatusOr<std::string_view> file = ReadText(folder, kChatTemplate, read);
  if (file.ok()) return std::string(*file);
  if (!absl::IsNotFound(file.status())) return file.status();
  const JsonPlace place = config["chat_template"];
  if (!place || place.value().is_string()) return place.Text("");
  if (!place.value().is_array()) return place.Wrong("a string, or an array of named templates");
  EBB_ASSIGN(const std::vector<JsonPlace> named, place.Elements());
  for (const JsonPlace& one : named) {
    EBB_ASSIGN(const std::string name, one["name"].Text());
    if (name == "default") return one["template"].Text();
  }
  return std::string();
}

}  // namespace

absl::StatusOr<std::optional<int32_t>> ReadTokenId(const GgufFile& file, std::string_view key) {
  const GgufValue* const value = file.FindValue(key);
  if (value == nullptr) return std::nullopt;
  EBB_ASSIGN(const int64_t id, file.GetInt(key));
  if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
    return file.Damaged(value->offset, absl::StrFormat("a token id for %s", key), absl::StrFormat("%d", id));
  }
  return static_cast<int32_t>(id);
}

void AddEnd(int32_t id, HubEnds& ends) {
  if (std::ranges::find(ends.eos, id) == ends.eos.end()) ends.eos.push_back(id);
}

bool IsEndKey(std::string_view key) { return key == kBosKey || std::ranges::find(kEosKeys, key) != std::end(kEosKeys); }

absl::StatusOr<HubEnds> ReadEnds(const GgufFile& file) {
  HubEnds ends;
  EBB_ASSIGN(ends.bos, ReadTokenId(file, kBosKey));
  for (const std::string_view key : kEosKeys) {
    EBB_ASSIGN(const std::optional<int32_t> id, ReadTokenId(file, key));
    if (id) AddEnd(*id, ends);
  }
  return ends;
}

absl::Status WriteEnds(const std::string& name, const HubEnds& ends, GgufHeader& header) {
  if (ends.eos.size() > kEndsMax) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("%s: %d tokens end a text (eos_token_id, eos_token); up to %d can", name,
                                  ends.eos.size(), kEndsMax),
                  {.reason = "UNSUPPORTED_MODEL_FEATURE"});
  }
  for (size_t i = 0; i < ends.eos.size(); ++i) header.Add(kEosKeys[i], static_cast<uint32_t>(ends.eos[i]));
  if (ends.bos) header.Add(kBosKey, static_cast<uint32_t>(*ends.bos));
  return absl::OkStatus();
}

absl::Status AddHubTokenizer(const std::string& folder, const ReadHubFile& read, int64_t vocab, HubEnds ends,
                             GgufHeader& header) {
  const absl::StatusOr<std::string_view> text = ReadText(folder, kTokenizer, read);
  if (absl::IsNotFound(text.status())) return WriteEnds(folder, ends, header);
  EBB_TRY(text.status());
  const std::string file = absl::StrCat(folder, "/", kTokenizer);
  EBB_ASSIGN(Json json, ParseJsonObject(file, *text));
  const JsonPlace whole(file, json);
  VocabularyWriter writer(whole, vocab, header);
  EBB_TRY(writer.Write());

  const std::string config_file = absl::StrCat(folder, "/", kTokenizerConfig);
  Json config = Json::object();
  const absl::StatusOr<std::string_view> config_text = ReadText(folder, kTokenizerConfig, read);
  if (config_text.ok()) {
    EBB_ASSIGN(config, ParseJsonObject(config_file, *config_text));
  } else if (!absl::IsNotFound(config_text.status())) {
    return config_text.status();
  }
  const JsonPlace place(config_file, config);
  EBB_TRY(ReadTokenizerConfig(place, writer, ends, header));
  EBB_TRY(WriteEnds(folder, ends, header));
  EBB_ASSIGN(const std::string chat_template, ChatTemplate(folder, place, read));
  if (!chat_template.empty()) header.AddText("tokenizer.chat_template", chat_template);
  header.AddText(kTokenizerRulesKey, RulesWithoutVocabulary(std::move(json)));
  return absl::OkStatus();
}

absl::StatusOr<GgufFile> OpenTokenizerFile(const std::string& path, int64_t vocab, HubEnds ends) {
  if (!IsModelFolder(path)) return GgufFile::Open(path);
  MappedFolder folder(path);
  EBB_TRY(folder.Read(kTokenizer).status());
  GgufHeader header;
  EBB_TRY(AddHubTokenizer(
      folder.path(), [&](const std::string& name) { return folder.Read(name); }, vocab, std::move(ends), header));
  return GgufFile::From({.name = folder.path(), .header = header.Bytes()});
}

}  // namespace ebb
