#include "engine/text/tokenizer.h"

#include <array>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/model/hub_tokenizer.h"
#include "engine/text/bpe.h"
#include "engine/text/read_vocabulary.h"
#include "engine/text/tokenizer_rules.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr size_t kTextBytesMax = size_t{1} << 29;  // three times as much when spaces become U+2581, and still int32_t

// Ends of a turn in the common chat formats.
constexpr std::array<std::string_view, 7> kStopNames = {"<|eot_id|>",    "<|eom_id|>",      "<|im_end|>",   "<|end|>",
                                                        "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>"};

}  // namespace

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::Make(Vocabulary vocabulary) {
  EBB_ASSIGN(TokenTable table, TokenTable::Make(std::move(vocabulary)));
  EBB_ASSIGN(TokenizerRules rules, ReadTokenizerRules(table));
  if (rules.bytes_print) DropNamesOfBytes(table);
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(std::make_unique<const TokenTable>(std::move(table))));
  EBB_TRY(tokenizer->MakeEncoder(std::move(rules)));
  tokenizer->FindStops();
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::FromGguf(const GgufFile& file) {
  EBB_ASSIGN(Vocabulary vocabulary, ReadVocabulary(file));
  absl::StatusOr<std::unique_ptr<const Tokenizer>> made = Make(std::move(vocabulary));
  if (made.ok()) return made;
  return Refuse(made.status().code(), absl::StrFormat("%s: %s", file.name(), made.status().message()),
                GetRefusal(made.status()));
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::Open(const std::string& path) {
  EBB_ASSIGN(const GgufFile file, OpenTokenizerFile(path));
  return FromGguf(file);
}

Tokenizer::Tokenizer(std::unique_ptr<const TokenTable> table) : table_(std::move(table)) {}

absl::Status Tokenizer::MakeEncoder(TokenizerRules rules) {
  const Vocabulary& vocabulary = table_->vocabulary();
  bos_ = vocabulary.bos ? vocabulary.bos : rules.bos;
  adds_bos_ = vocabulary.add_bos.value_or(rules.adds_bos) && bos_;
  adds_space_ = rules.adds_space;
  EBB_ASSIGN(encoder_, TextEncoder::Make(*table_, std::move(rules)));
  FindNames();
  pieces_.reserve(size());
  for (int32_t id = 0; id < size(); ++id) {
    // Of characters a name may be made, too ("\u2581\u2581" of two spaces, in Gemma's), and reads as what is made.
    const bool verbatim =
        is_control(id) || (table_->type(id) == TokenType::kUserDefined && encoder_->rules().bytes_print);
    pieces_.push_back(verbatim ? table_->text(id) : encoder_->Bytes(id));
  }
  return absl::OkStatus();
}

void Tokenizer::FindNames() {
  const TokenizerRules& rules = encoder_->rules();
  std::vector<SpecialTokens::Name> names;
  for (int32_t id = 0; id < size(); ++id) {
    const bool user_defined = table_->type(id) == TokenType::kUserDefined;
    if (!user_defined && !is_control(id)) continue;
    const auto how = rules.added.find(id);
    SpecialTokens::Name name = {.text = table_->text(id), .id = id, .control = !user_defined};
    if (how != rules.added.end()) name.how = how->second;
    if (!user_defined || !name.how.normalized) names.push_back(std::move(name));  // else the encoder finds it
  }
  special_.emplace(std::move(names),
                   rules.leftmost_first ? SpecialTokens::Overlap::kLeftmost : SpecialTokens::Overlap::kLongest);
}

void Tokenizer::FindStops() {
  stops_.assign(size(), false);
  const Vocabulary& vocabulary = table_->vocabulary();
  for (const auto& id : {vocabulary.eos, vocabulary.eot, vocabulary.eom}) {
    if (id) stops_[*id] = true;
  }
  for (const std::string_view name : kStopNames) {
    if (const std::optional<int32_t> id = FindControl(name)) stops_[*id] = true;
  }
}

std::optional<int32_t> Tokenizer::FindControl(std::string_view name) const {
  const std::optional<int32_t> id = table_->Find(name);
  if (!id || table_->type(*id) != TokenType::kControl) return std::nullopt;
  return id;
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, Special special, Start start) const {
  const Segment segment{.text = std::string(text), .special = special};
  return Encode(std::span(&segment, 1), start);
}

std::vector<int32_t> Tokenizer::Encode(std::span<const Segment> segments, Start start) const {
  std::string text;
  std::vector<SpecialTokens::Trusted> trusted;
  for (const Segment& segment : segments) {
    if (segment.special == Special::kParse) {
      trusted.push_back({.begin = text.size(), .end = text.size() + segment.text.size()});
    }
    text += segment.text;
  }
  EBB_CHECK(text.size() < kTextBytesMax);

  std::vector<int32_t> ids;
  if (start == Start::kSequence && adds_bos_) ids.push_back(*bos());
  auto before = start == Start::kContinuation ? Before::kText : Before::kNothing;
  size_t done = 0;
  TextEncoder::Seen seen;
  const auto encode_until = [&](size_t end) {
    if (end > done) encoder_->Encode(std::string_view(text).substr(done, end - done), before, seen, ids);
  };
  for (const SpecialTokens::Match& match : special_->Find(text, trusted)) {
    encode_until(match.begin);
    ids.push_back(match.id);
    before = Before::kToken;
    done = match.begin + match.size;
  }
  encode_until(text.size());
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, Special special) const {
  std::string text;
  for (const int32_t id : ids) text += special == Special::kParse ? std::string_view(pieces_[id]) : Piece(id);
  return text;
}

}  // namespace ebb
