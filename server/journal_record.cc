#include "server/journal_record.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "engine/snapshot/policy_record.h"
#include "engine/snapshot/snapshot_file.h"
#include "policies/status.h"
#include "server/journal_file.h"
#include "server/overloaded.h"

namespace ebb {
namespace {

using Record = JournalRecord;

// Fields, in the same order for writing and reading. Of a flag a byte.

class FieldWriter : public RecordWriter {
 public:
  FieldWriter& operator()(bool value) { return (*this)(static_cast<uint8_t>(value)); }
  template <typename T>
  FieldWriter& operator()(T value) {
    Add(value);
    return *this;
  }
  FieldWriter& operator()(const std::string& value) {
    AddText(value);
    return *this;
  }
  FieldWriter& operator()(const std::vector<int32_t>& values) {
    AddAll(std::span(values));
    return *this;
  }
};

class FieldReader : public RecordReader {
 public:
  using RecordReader::RecordReader;
  FieldReader& operator()(bool& value) {
    value = Read<uint8_t>() != 0;
    return *this;
  }
  template <typename T>
  FieldReader& operator()(T& value) {
    value = Read<T>();
    return *this;
  }
  FieldReader& operator()(std::string& value) {
    value = ReadText();
    return *this;
  }
  FieldReader& operator()(std::vector<int32_t>& values) {
    values = ReadAll<int32_t>();
    return *this;
  }
};

// What both sides call a field by. Of `value` the writer takes a copy where it is a number.
template <typename Fields, typename Sampling>
void SamplingFields(Fields& fields, Sampling& sampling) {
  fields(sampling.temperature)(sampling.top_k)(sampling.top_p)(sampling.min_p)(sampling.typical_p);
  fields(sampling.repetition_penalty)(sampling.presence_penalty)(sampling.frequency_penalty);
  fields(sampling.penalty_window)(sampling.seed);
}

void WriteBias(const SamplingOptions& sampling, FieldWriter& to) {
  to(static_cast<uint32_t>(sampling.logit_bias.size()));
  for (const auto& [token, bias] : sampling.logit_bias) to(token)(bias);
}

void ReadBias(FieldReader& from, SamplingOptions& sampling) {
  int32_t before = -1;
  for (auto left = from.Read<uint32_t>(); left > 0; --left) {
    const auto token = from.Read<int32_t>();
    if (token <= before) break;  // it is not there: what follows is not, either
    before = token;
    sampling.logit_bias[token] = from.Read<float>();
  }
}

void WriteEdit(const Record::Edit& edit, FieldWriter& to) {
  to(static_cast<uint32_t>(edit.edit.spans.size()));
  for (const EditSpan& span : edit.edit.spans) to(span.start)(span.end)(span.tokens);
  to(static_cast<uint8_t>(edit.edit.mode))(edit.edit.window)(edit.edit.restore)(edit.blocks);
}

bool ReadEdit(FieldReader& from, Record::Edit& edit) {
  int32_t before = 0;
  for (auto left = from.Read<uint32_t>(); left > 0; --left) {
    EditSpan span;
    from(span.start)(span.end)(span.tokens);
    if (span.start < before || span.end < span.start || (span.start == span.end && span.tokens.empty())) return false;
    before = span.end;
    edit.edit.spans.push_back(std::move(span));
  }
  const auto mode = from.Read<uint8_t>();
  edit.edit.mode = static_cast<EditMode>(mode);
  from(edit.edit.window)(edit.edit.restore)(edit.blocks);
  return mode <= static_cast<uint8_t>(EditMode::kRecomputeSpan) && edit.edit.window >= 0 &&
         std::ranges::all_of(edit.blocks, [](int32_t tokens) { return tokens > 0; });
}

void WriteEvict(const EvictRequest& evict, FieldWriter& to) {
  const EvictRequest::Range range = evict.range.value_or(EvictRequest::Range{});
  to(evict.range.has_value())(range.start)(range.end);
  to(evict.keep.has_value())(evict.keep.value_or(0))(evict.scorer);
  to(evict.older_than.has_value())(evict.older_than.value_or(0));
  to(static_cast<uint32_t>(evict.slots.size()));
  for (const EvictRequest::LaneSlots& lane : evict.slots) to(lane.layer)(lane.head)(lane.slots);
}

template <typename T>
void ReadOptional(FieldReader& from, std::optional<T>& to) {
  bool is_set = false;
  T value = {};
  from(is_set)(value);
  if (is_set) to = value;
}

void ReadEvict(FieldReader& from, EvictRequest& evict) {
  bool is_range = false;
  EvictRequest::Range range;
  from(is_range)(range.start)(range.end);
  if (is_range) evict.range = range;
  ReadOptional(from, evict.keep);
  from(evict.scorer);
  ReadOptional(from, evict.older_than);
  for (auto left = from.Read<uint32_t>(); left > 0; --left) {
    EvictRequest::LaneSlots lane;
    from(lane.layer)(lane.head)(lane.slots);
    if (lane.slots.empty()) break;  // Evict refuses it
    evict.slots.push_back(std::move(lane));
  }
}

std::string PolicyText(const ValidSpec& policy, const SpecLimits& limits) {
  SnapshotWriter writer;
  WritePolicy(policy, limits, writer);
  std::string bytes = writer.Finish();
  SealSnapshot(bytes);
  return bytes;
}

absl::StatusOr<ValidSpec> PolicyOf(const std::string& bytes, const SpecLimits& limits) {
  EBB_ASSIGN(const std::vector<SnapshotRecord> records, ReadSnapshot(std::as_bytes(std::span(bytes))));
  if (records.size() != 1) return JournalDamaged("a policy is expected");
  return ReadPolicy(records.front(), limits);
}

// The alternative of that number, empty.
template <size_t... kIndices>
Record::What EmptyWhat(size_t index, std::index_sequence<kIndices...> /*all*/) {
  Record::What what;
  ((kIndices == index ? void(what.emplace<kIndices>()) : void()), ...);
  return what;
}

}  // namespace

int64_t JournalRecord::tokens() const {
  const Overloaded count = {
      [](const Block& block) { return static_cast<int64_t>(block.tokens.size()); },
      [](const Token& /*token*/) { return int64_t{1}; },
      [](const Draft& draft) { return static_cast<int64_t>(draft.tokens.size()); },
      [](const Edit& edit) { return std::accumulate(edit.blocks.begin(), edit.blocks.end(), int64_t{0}); },
      [](const auto& /*other*/) { return int64_t{0}; },
  };
  return std::visit(count, what);
}

std::string EncodeRecord(const JournalRecord& record, const ModelConfig& model) {
  FieldWriter to;
  to(static_cast<uint8_t>(record.what.index()))(record.generation);
  const Overloaded write = {
      [&](const Record::Block& block) { to(block.tokens)(block.prompt_ends); },
      [&](const Record::Token& token) { to(token.token); },
      [&](const Record::Draft& draft) { to(draft.tokens)(draft.accepted.has_value())(draft.accepted.value_or(0)); },
      [&](const Record::Accept& accept) { to(accept.count); },
      [&](const Record::Edit& edit) { WriteEdit(edit, to); },
      [&](const Record::Evict& evict) { WriteEvict(evict.request, to); },
      [&](const Record::Policy& policy) { to(PolicyText(policy.policy, LimitsOf(model))); },
      [&](const Record::AnswerBegins& begins) {
        to(begins.plan.until);
        SamplingFields(to, begins.plan.sampling);
        WriteBias(begins.plan.sampling, to);
      },
      [](const Record::AnswerEnds& /*ends*/) {},
  };
  std::visit(write, record.what);
  return to.Take();
}

absl::StatusOr<JournalRecord> DecodeRecord(std::string_view bytes, const ModelConfig& model) {
  FieldReader from(std::as_bytes(std::span(bytes)));
  const auto kind = from.Read<uint8_t>();
  constexpr size_t kKinds = std::variant_size_v<Record::What>;
  if (kind >= kKinds) return JournalDamaged("a record of a kind that there is not");
  JournalRecord record = {.what = EmptyWhat(kind, std::make_index_sequence<kKinds>())};
  from(record.generation);
  bool in_range = true;
  const auto check = [&](const std::vector<int32_t>& tokens) {
    in_range =
        in_range && std::ranges::all_of(tokens, [&](int32_t token) { return token >= 0 && token < model.vocab; });
  };
  std::string policy;
  const Overloaded read = {
      [&](Record::Block& block) {
        from(block.tokens)(block.prompt_ends);
        check(block.tokens);
      },
      [&](Record::Token& token) {
        from(token.token);
        check({token.token});
      },
      [&](Record::Draft& draft) {
        from(draft.tokens);
        ReadOptional(from, draft.accepted);
        const int32_t accepted = draft.accepted.value_or(0);
        in_range = accepted >= 0 && accepted <= std::ssize(draft.tokens);
        check(draft.tokens);
      },
      [&](Record::Accept& accept) {
        from(accept.count);
        in_range = accept.count >= 0;
      },
      [&](Record::Edit& edit) {
        in_range = ReadEdit(from, edit);
        for (const EditSpan& span : edit.edit.spans) check(span.tokens);
      },
      [&](Record::Evict& evict) { ReadEvict(from, evict.request); },
      [&](Record::Policy& /*policy*/) { from(policy); },
      [&](Record::AnswerBegins& begins) {
        from(begins.plan.until);
        SamplingFields(from, begins.plan.sampling);
        ReadBias(from, begins.plan.sampling);
        in_range = CheckSampling(begins.plan.sampling, model.vocab).ok();
      },
      [](Record::AnswerEnds& /*ends*/) {},
  };
  std::visit(read, record.what);
  if (!in_range || !from.Finish("journal").ok()) return JournalDamaged("a record's fields are not in their ranges");
  if (auto* const to = std::get_if<Record::Policy>(&record.what)) {
    EBB_ASSIGN(to->policy, PolicyOf(policy, LimitsOf(model)));
  }
  return record;
}

}  // namespace ebb
