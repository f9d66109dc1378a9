// tokenizer.json, as Hugging Face's tokenizers write it: each type is a row of a table with the members that it may
// have.

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/model/json_place.h"
#include "engine/model/json_text.h"
#include "engine/text/tokenizer_rules.h"
#include "engine/text/utf8.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr char kFile[] = "tokenizer.json";
constexpr int kNestingMax = 8;  // of sequences in sequences

// What a tokenizer's parts say, as they are read.
struct Reading {
  const TokenTable& table;
  std::vector<NormalizerStep> normalizer = {};
  std::vector<CutStep> cuts = {};
  bool bytes = false;  // a ByteLevel was among the cuts
  TokenizerRules rules = {};
};

// A type of step: `members` beside "type"; `read` adds to the reading what `place` says.
struct StepType {
  std::string_view name = {};
  std::initializer_list<std::string_view> members = {};
  absl::Status (*read)(const JsonPlace& place, Reading& reading) = nullptr;
};

// Reads a step, or a sequence of them under `sequence`. What is null is no step.
absl::Status ReadSteps(const JsonPlace& place, std::string_view sequence, std::span<const StepType> types,
                       Reading& reading, int depth = 0) {
  if (!place) return absl::OkStatus();
  EBB_ASSIGN(const std::string type, place["type"].Text());
  if (type == "Sequence" && depth < kNestingMax) {
    EBB_TRY(place.HasOnly(std::vector<std::string_view>{"type", sequence}));
    EBB_ASSIGN(const std::vector<JsonPlace> steps, place[sequence].Elements());
    for (const JsonPlace& step : steps) EBB_TRY(ReadSteps(step, sequence, types, reading, depth + 1));
    return absl::OkStatus();
  }
  const auto found = std::ranges::find(types, type, &StepType::name);
  if (found == types.end()) {
    const auto name = [](std::string* out, const StepType& known) { *out += known.name; };
    return place["type"].NotKnown("Sequence, " + absl::StrJoin(types, ", ", name));
  }
  std::vector<std::string_view> members(found->members);
  members.emplace_back("type");
  EBB_TRY(place.HasOnly(members));
  return found->read(place, reading);
}

absl::StatusOr<Regex> ReadLiteral(const JsonPlace& place) {
  EBB_ASSIGN(const std::string text, place.Text());
  if (text.empty()) return place.Wrong("a text");
  absl::StatusOr<Regex> made = Regex::Literal(text);
  if (!made.ok()) return place.NotKnown(absl::StrFormat("a text of at most %d bytes", Regex::kBytesMax));
  return made;
}

// Of a maker's pattern: a regular expression or a text.
absl::StatusOr<Regex> ReadPattern(const JsonPlace& place) {
  EBB_TRY(place.HasOnly(std::vector<std::string_view>{"Regex", "String"}));
  if (const JsonPlace text = place["String"]) return ReadLiteral(text);
  EBB_ASSIGN(const std::string regex, place["Regex"].Text());
  absl::StatusOr<Regex> made = Regex::Make(regex);
  if (!made.ok()) {
    return place["Regex"].NotKnown(absl::StrFormat("Oniguruma's syntax (%s)", made.status().message()));
  }
  return made;
}

template <NormalizerStep::Kind kind>
absl::Status AddPlain(const JsonPlace& /*place*/, Reading& reading) {
  reading.normalizer.push_back({.kind = kind});
  return absl::OkStatus();
}

absl::Status ReadStrip(const JsonPlace& place, Reading& reading) {
  EBB_ASSIGN(const bool left, place["strip_left"].Flag(true));
  EBB_ASSIGN(const bool right, place["strip_right"].Flag(true));
  if (left) reading.normalizer.push_back({.kind = NormalizerStep::Kind::kStripLeft});
  if (right) reading.normalizer.push_back({.kind = NormalizerStep::Kind::kStripRight});
  return absl::OkStatus();
}

absl::Status ReadPrepend(const JsonPlace& place, Reading& reading) {
  EBB_ASSIGN(std::string content, place["prepend"].Text());
  reading.normalizer.push_back({.kind = NormalizerStep::Kind::kPrepend, .content = std::move(content)});
  reading.rules.adds_space = true;
  return absl::OkStatus();
}

absl::Status ReadReplace(const JsonPlace& place, Reading& reading) {
  EBB_ASSIGN(Regex pattern, ReadPattern(place["pattern"]));
  EBB_ASSIGN(std::string content, place["content"].Text());
  reading.normalizer.push_back(
      {.kind = NormalizerStep::Kind::kReplace, .content = std::move(content), .pattern = std::move(pattern)});
  return absl::OkStatus();
}

absl::Status ReadPrecompiled(const JsonPlace& place, Reading& reading) {
  const JsonPlace encoded = place["precompiled_charsmap"];
  EBB_ASSIGN(const std::string text, encoded.Text());
  std::string bytes;
  if (!absl::Base64Unescape(text, &bytes)) return encoded.Wrong("Base64");
  absl::StatusOr<CharsMap> map = CharsMap::Make(bytes);
  if (!map.ok()) return encoded.Wrong(absl::StrFormat("a table of characters (%s)", map.status().message()));
  reading.normalizer.push_back({.kind = NormalizerStep::Kind::kCharsMap, .chars_map = *std::move(map)});
  return absl::OkStatus();
}

const StepType kNormalizers[] = {
    {"NFC", {}, AddPlain<NormalizerStep::Kind::kNfc>},
    {"NFD", {}, AddPlain<NormalizerStep::Kind::kNfd>},
    {"NFKC", {}, AddPlain<NormalizerStep::Kind::kNfkc>},
    {"NFKD", {}, AddPlain<NormalizerStep::Kind::kNfkd>},
    {"Lowercase", {}, AddPlain<NormalizerStep::Kind::kLowercase>},
    {"StripAccents", {}, AddPlain<NormalizerStep::Kind::kStripAccents>},
    {"Strip", {"strip_left", "strip_right"}, ReadStrip},
    {"Prepend", {"prepend"}, ReadPrepend},
    {"Replace", {"pattern", "content"}, ReadReplace},
    {"Precompiled", {"precompiled_charsmap"}, ReadPrecompiled},
};

absl::Status AddSplit(const JsonPlace& place, std::string_view pattern, CutStep::Matches matches, Reading& reading,
                      bool invert = false) {
  absl::StatusOr<Regex> regex = Regex::Make(pattern);
  if (!regex.ok()) return place.Wrong("what has a pattern");
  reading.cuts.push_back(
      {.kind = CutStep::Kind::kSplit, .pattern = *std::move(regex), .matches = matches, .invert = invert});
  return absl::OkStatus();
}

absl::StatusOr<CutStep::Matches> ReadBehavior(const JsonPlace& place, std::string_view otherwise) {
  using Matches = CutStep::Matches;
  constexpr std::pair<std::string_view, Matches> kBehaviors[] = {
      {"Isolated", Matches::kIsolated},
      {"Removed", Matches::kRemoved},
      {"Contiguous", Matches::kContiguous},
      {"MergedWithPrevious", Matches::kMergedWithPrevious},
      {"MergedWithNext", Matches::kMergedWithNext},
  };
  EBB_ASSIGN(const std::string name, place.Text(otherwise));
  for (const auto& [known, matches] : kBehaviors) {
    if (known == name) return matches;
  }
  return place.NotKnown("Isolated, Removed, Contiguous, MergedWithPrevious, MergedWithNext");
}

absl::Status ReadSplit(const JsonPlace& place, Reading& reading) {
  EBB_ASSIGN(Regex pattern, ReadPattern(place["pattern"]));
  EBB_ASSIGN(const CutStep::Matches matches, ReadBehavior(place["behavior"], "none"));
  EBB_ASSIGN(const bool invert, place["invert"].Flag(false));
  reading.cuts.push_back(
      {.kind = CutStep::Kind::kSplit, .pattern = std::move(pattern), .matches = matches, .invert = invert});
  return absl::OkStatus();
}

absl::Status ReadByteLevel(const JsonPlace& place, Reading& reading) {
  EBB_ASSIGN(const bool prefix, place["add_prefix_space"].Flag(true));
  EBB_ASSIGN(const bool cuts, place["use_regex"].Flag(true));
  if (reading.bytes) return place["type"].NotKnown("ByteLevel once");
  if (prefix) reading.cuts.push_back({.kind = CutStep::Kind::kPrefix, .content = " "});
  reading.rules.adds_space = reading.rules.adds_space || prefix;
  if (cuts) EBB_TRY(AddSplit(place, kGpt2Pattern, CutStep::Matches::kIsolated, reading));
  reading.cuts.push_back({.kind = CutStep::Kind::kBytes});
  reading.bytes = true;
  return absl::OkStatus();
}

absl::Status ReadDigits(const JsonPlace& place, Reading& reading) {
  EBB_ASSIGN(const bool each, place["individual_digits"].Flag(false));
  return AddSplit(place, kDigitPattern, each ? CutStep::Matches::kIsolated : CutStep::Matches::kContiguous, reading);
}

absl::Status ReadPunctuation(const JsonPlace& place, Reading& reading) {
  EBB_ASSIGN(const CutStep::Matches matches, ReadBehavior(place["behavior"], "Isolated"));
  return AddSplit(place, kPunctuationPattern, matches, reading);
}

absl::Status ReadMetaspace(const JsonPlace& place, Reading& reading) {
  EBB_ASSIGN(const std::string space, place["replacement"].Text());
  EBB_ASSIGN(const bool prefix, place["add_prefix_space"].Flag(true));  // of older files, without prepend_scheme
  EBB_ASSIGN(const std::string scheme, place["prepend_scheme"].Text(prefix ? "always" : "never"));
  EBB_ASSIGN(const bool split, place["split"].Flag(true));
  if (space.empty()) return place["replacement"].Wrong("a character");
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    return place["prepend_scheme"].NotKnown("always, first, never");
  }
  reading.cuts.push_back({.kind = CutStep::Kind::kReplace, .content = space});
  if (scheme != "never") {
    reading.cuts.push_back({.kind = CutStep::Kind::kPrefix, .content = space, .at_start_only = scheme == "first"});
    reading.rules.adds_space = true;
  }
  if (split) {
    EBB_ASSIGN(Regex spaces, ReadLiteral(place["replacement"]));
    reading.cuts.push_back(
        {.kind = CutStep::Kind::kSplit, .pattern = std::move(spaces), .matches = CutStep::Matches::kMergedWithNext});
  }
  return absl::OkStatus();
}

absl::Status ReadWhitespace(const JsonPlace& place, Reading& reading) {
  return AddSplit(place, R"([\w\x{200C}\x{200D}]+|[^\s\w\x{200C}\x{200D}]+)", CutStep::Matches::kRemoved, reading,
                  /*invert=*/true);
}

absl::Status ReadWhitespaceSplit(const JsonPlace& place, Reading& reading) {
  return AddSplit(place, R"(\s)", CutStep::Matches::kRemoved, reading);
}

absl::Status ReadDelimiter(const JsonPlace& place, Reading& reading) {
  EBB_ASSIGN(Regex delimiter, ReadLiteral(place["delimiter"]));
  reading.cuts.push_back(
      {.kind = CutStep::Kind::kSplit, .pattern = std::move(delimiter), .matches = CutStep::Matches::kRemoved});
  return absl::OkStatus();
}

const StepType kPretokenizers[] = {
    {"Split", {"pattern", "behavior", "invert"}, ReadSplit},
    {"ByteLevel", {"add_prefix_space", "trim_offsets", "use_regex"}, ReadByteLevel},
    {"Digits", {"individual_digits"}, ReadDigits},
    {"Punctuation", {"behavior"}, ReadPunctuation},
    {"Metaspace", {"replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"}, ReadMetaspace},
    {"Whitespace", {}, ReadWhitespace},
    {"WhitespaceSplit", {}, ReadWhitespaceSplit},
    {"CharDelimiterSplit", {"delimiter"}, ReadDelimiter},
};

absl::Status Nothing(const JsonPlace& /*place*/, Reading& /*reading*/) { return absl::OkStatus(); }

// A token that is put before each text.
absl::Status AddFirst(const JsonPlace& place, int32_t id, Reading& reading) {
  if (id >= reading.table.size()) return place.Wrong(absl::StrFormat("a token in 0..%d", reading.table.size() - 1));
  if (reading.rules.bos) return place.NotKnown("one token before a text");
  reading.rules.bos = id;
  reading.rules.adds_bos = true;
  return absl::OkStatus();
}

// [tokens, the text "A", tokens]: those behind it are not added, since texts here are to be continued.
absl::Status ReadTemplate(const JsonPlace& place, Reading& reading) {
  EBB_ASSIGN(const std::vector<JsonPlace> items, place["single"].Elements());
  for (const JsonPlace& item : items) {
    if (item["Sequence"]) break;
    const JsonPlace name = item["SpecialToken"]["id"];
    EBB_ASSIGN(const std::string text, name.Text());
    EBB_ASSIGN(const std::vector<JsonPlace> ids, place["special_tokens"][text]["ids"].Elements());
    if (ids.empty()) return name.Wrong("one of special_tokens");
    for (const JsonPlace& id : ids) {
      EBB_ASSIGN(const int32_t token, id.Id());
      EBB_TRY(AddFirst(id, token, reading));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadRoberta(const JsonPlace& place, Reading& reading) {
  EBB_ASSIGN(const std::vector<JsonPlace> pair, place["cls"].Elements());
  if (pair.size() != 2) return place["cls"].Wrong("a text and its id");
  EBB_ASSIGN(const int32_t token, pair[1].Id());
  return AddFirst(pair[1], token, reading);
}

const StepType kPostProcessors[] = {
    {"ByteLevel", {"add_prefix_space", "trim_offsets", "use_regex"}, Nothing},
    {"TemplateProcessing", {"single", "pair", "special_tokens"}, ReadTemplate},
    {"RobertaProcessing", {"sep", "cls", "trim_offsets", "add_prefix_space"}, ReadRoberta},
};

absl::Status DecodeBytes(const JsonPlace& /*place*/, Reading& reading) {
  reading.rules.bytes_print = true;
  return absl::OkStatus();
}

absl::Status DecodeSpace(const JsonPlace& place, std::string space, Reading& reading) {
  if (!reading.rules.space.empty() && reading.rules.space != space) {
    return place.NotKnown(absl::StrFormat("'%s', as before", reading.rules.space));
  }
  reading.rules.space = std::move(space);
  return absl::OkStatus();
}

absl::Status DecodeMetaspace(const JsonPlace& place, Reading& reading) {
  EBB_ASSIGN(std::string space, place["replacement"].Text());
  return DecodeSpace(place["replacement"], std::move(space), reading);
}

absl::Status DecodeReplace(const JsonPlace& place, Reading& reading) {
  EBB_ASSIGN(const std::string content, place["content"].Text());
  if (content != " ") return place["content"].NotKnown("a space");
  const JsonPlace text = place["pattern"]["String"];
  EBB_ASSIGN(std::string space, text.Text());
  if (space.empty()) return text.Wrong("a text");
  return DecodeSpace(text, std::move(space), reading);
}

// The space that adds_space tells of stays: what a token stands for does not depend on where it is.
absl::Status DecodeStrip(const JsonPlace& place, Reading& /*reading*/) {
  EBB_ASSIGN(const std::string content, place["content"].Text());
  if (content != " ") return place["content"].NotKnown("a space");
  const auto at_most = [&](const char* name, int32_t most) -> absl::Status {
    EBB_ASSIGN(const int32_t count, place[name].Id());
    return count <= most ? absl::OkStatus() : place[name].NotKnown(absl::StrFormat("at most %d", most));
  };
  EBB_TRY(at_most("start", 1));
  return at_most("stop", 0);
}

const StepType kDecoders[] = {
    {"ByteLevel", {"add_prefix_space", "trim_offsets", "use_regex"}, DecodeBytes},
    {"Metaspace", {"replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"}, DecodeMetaspace},
    {"Replace", {"pattern", "content"}, DecodeReplace},
    {"ByteFallback", {}, Nothing},
    {"Fuse", {}, Nothing},
    {"Strip", {"content", "start", "stop"}, DecodeStrip},
};

// A member that must be null, false, zero or empty, as it changes what the model does.
absl::Status IsOff(const JsonPlace& place) {
  if (!place) return absl::OkStatus();
  const nlohmann::json& value = place.value();
  const bool off = value == false || value == 0 || value == "";
  return off ? absl::OkStatus() : place.NotKnown("null");
}

absl::Status ReadModel(const JsonPlace& model, Reading& reading) {
  const Vocabulary& vocabulary = reading.table.vocabulary();
  TokenizerRules& rules = reading.rules;
  EBB_ASSIGN(const std::string type, model["type"].Text());
  EBB_ASSIGN(const bool byte_tokens, model["byte_fallback"].Flag(false));
  if (type == "Unigram") {
    EBB_TRY(model.HasOnly(std::vector<std::string_view>{"type", "unk_id", "byte_fallback"}));
    rules.model = TokenizerRules::Model::kUnigram;
    rules.unigram = {.byte_tokens = byte_tokens, .unk = vocabulary.unk};
    return absl::OkStatus();
  }
  if (type != "BPE") return model["type"].NotKnown("BPE, Unigram");
  EBB_TRY(
      model.HasOnly(std::vector<std::string_view>{"type", "dropout", "unk_token", "continuing_subword_prefix",
                                                  "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges"}));
  for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) EBB_TRY(IsOff(model[name]));
  EBB_ASSIGN(const bool fuse_unk, model["fuse_unk"].Flag(false));
  EBB_ASSIGN(const bool whole_words, model["ignore_merges"].Flag(false));
  if (reading.bytes) {
    rules.model = TokenizerRules::Model::kBytes;
    rules.whole_words = whole_words;
    return absl::OkStatus();
  }
  rules.model = TokenizerRules::Model::kCharacters;
  rules.characters = {.by_scores = false,
                      .byte_tokens = byte_tokens,
                      .unk = vocabulary.unk,
                      .fuse_unk = fuse_unk,
                      .whole_words = whole_words};
  return absl::OkStatus();
}

absl::Status ReadAdded(const JsonPlace& tokens, Reading& reading) {
  EBB_ASSIGN(const std::vector<JsonPlace> added, tokens.Elements());
  for (const JsonPlace& token : added) {
    EBB_TRY(token.HasOnly(
        std::vector<std::string_view>{"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
    EBB_ASSIGN(const int32_t id, token["id"].Id());
    if (id >= reading.table.size()) {
      return token["id"].Wrong(absl::StrFormat("a token in 0..%d", reading.table.size() - 1));
    }
    const std::string& text = reading.table.text(id);
    if (ValidUtf8Size(text) != text.size()) return token["id"].Wrong("a token whose text is UTF-8");
    AddedToken& rule = reading.rules.added[id];
    EBB_ASSIGN(rule.single_word, token["single_word"].Flag(false));
    EBB_ASSIGN(rule.left_strip, token["lstrip"].Flag(false));
    EBB_ASSIGN(rule.right_strip, token["rstrip"].Flag(false));
    EBB_ASSIGN(rule.normalized, token["normalized"].Flag(false));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerRules> ReadTokenizerJson(const TokenTable& table) {
  const std::string file = kFile;
  EBB_ASSIGN(const nlohmann::json json, ParseJsonObject(file, table.vocabulary().rules));
  const JsonPlace whole(file, json);
  EBB_TRY(whole.HasOnly(std::vector<std::string_view>{"added_tokens", "normalizer", "pre_tokenizer", "model",
                                                      "post_processor", "decoder"}));
  Reading reading = {.table = table};
  reading.rules.bytes_print = false;
  reading.rules.leftmost_first = true;
  EBB_TRY(ReadAdded(whole["added_tokens"], reading));
  EBB_TRY(ReadSteps(whole["normalizer"], "normalizers", kNormalizers, reading));
  EBB_TRY(ReadSteps(whole["pre_tokenizer"], "pretokenizers", kPretokenizers, reading));
  EBB_TRY(ReadModel(whole["model"], reading));
  EBB_TRY(ReadSteps(whole["post_processor"], "processors", kPostProcessors, reading));
  EBB_TRY(ReadSteps(whole["decoder"], "decoders", kDecoders, reading));
  if (reading.bytes && reading.rules.model != TokenizerRules::Model::kBytes) {
    return whole["pre_tokenizer"].NotKnown("ByteLevel with BPE");
  }
  if (reading.bytes != reading.rules.bytes_print) {
    return whole["decoder"].NotKnown("ByteLevel where pre_tokenizer has it, and else none");
  }
  reading.rules.normalizer = Normalizer(std::move(reading.normalizer));
  reading.rules.pretokenizer = Pretokenizer(std::move(reading.cuts));
  return std::move(reading.rules);
}

}  // namespace ebb
