#include "engine/text/tokenizer.h"

#include <array>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/text/bpe.h"
#include "engine/text/pretokenize.h"
#include "engine/text/read_vocabulary.h"
#include "engine/text/spm.h"
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
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(std::make_unique<const TokenTable>(std::move(table))));
  EBB_TRY(tokenizer->MakeEncoder());
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

Tokenizer::Tokenizer(std::unique_ptr<const TokenTable> table) : table_(std::move(table)), special_(*table_) {}

absl::Status Tokenizer::MakeEncoder() {
  const Vocabulary& vocabulary = table_->vocabulary();
  if (vocabulary.model == "gpt2") {
    EBB_ASSIGN(Pretokenizer pretokenizer, Pretokenizer::Make(vocabulary.pre));
    adds_bos_ = vocabulary.add_bos.value_or(pretokenizer.add_bos() && vocabulary.bos);
    EBB_ASSIGN(encoder_, MakeBpe(*table_, std::move(pretokenizer)));
  } else if (vocabulary.model == "llama") {
    adds_bos_ = vocabulary.add_bos.value_or(vocabulary.bos.has_value());
    adds_space_ = vocabulary.add_space_prefix.value_or(true);
    EBB_ASSIGN(encoder_, MakeSpm(*table_, adds_space_));
  } else {
    return Refuse(
        absl::StatusCode::kFailedPrecondition,
        absl::StrFormat("tokenizer.ggml.model: the tokenizer '%s' is not known; known: gpt2 (byte-level BPE), "
                        "llama (SPM)",
                        Printable(vocabulary.model)),
        {.reason = "UNSUPPORTED_TOKENIZER"});
  }
  pieces_.reserve(size());
  for (int32_t id = 0; id < size(); ++id) {
    const bool verbatim = is_control(id) || table_->type(id) == TokenType::kUserDefined;
    pieces_.push_back(verbatim ? table_->text(id) : encoder_->Bytes(id));
  }
  return absl::OkStatus();
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
  auto before = start == Start::kContinuation ? TextEncoder::Before::kText : TextEncoder::Before::kNothing;
  size_t done = 0;
  const auto encode_until = [&](size_t end) {
    if (end > done) encoder_->Encode(std::string_view(text).substr(done, end - done), before, ids);
  };
  for (const SpecialTokens::Match& match : special_.Find(text, trusted)) {
    encode_until(match.begin);
    ids.push_back(match.id);
    before = TextEncoder::Before::kNothing;
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
