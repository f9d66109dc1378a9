#include "server/convert.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "engine/text/chat_template.h"
#include "policies/allocation.h"
#include "policies/hash_random.h"
#include "policies/status.h"
#include "server/bounded_text.h"
#include "server/resource_name.h"

namespace ebb {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr char kSessions[] = "sessions/";
constexpr uint32_t kMaxTokensMax = 1 << 24;
constexpr int kStopsMax = 16;
constexpr size_t kStopBytesMax = 256;
constexpr int kStopTokensMax = 64;
constexpr uint32_t kLogprobsMax = 20;
constexpr size_t kLogitBiasMax = 1024;
constexpr size_t kRequestIdBytesMax = 128;
constexpr uint32_t kPageDefault = 100;
constexpr uint32_t kPageMax = 1000;

absl::Status OutOfRange(const std::string& field, const std::string& value, const std::string& range) {
  return RefuseField("OUT_OF_RANGE", field, absl::StrFormat("%s is not in %s", value, range));
}

absl::Status OutOfRange(const std::string& field, uint64_t value, uint64_t min, uint64_t max) {
  return OutOfRange(field, absl::StrFormat("%d", value), absl::StrFormat("[%d, %d]", min, max));
}

// A count of tokens in a policy. Resolve knows the range, and what is beyond an int32 is as far out of it as the
// largest.
int32_t PolicyTokens(uint32_t value) {
  constexpr uint32_t kMost = std::numeric_limits<int32_t>::max();
  return static_cast<int32_t>(std::min(value, kMost));
}

double NumberOf(const Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.GetFloat(message, &field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return static_cast<double>(reflection.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field) ? 1 : 0;
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.GetEnumValue(message, &field) - 1;  // choice 0 is the first after UNSPECIFIED
    default:
      return std::numeric_limits<double>::quiet_NaN();  // out of every range
  }
}

// A parameter is a double, in which larger whole numbers are no longer told apart: each would be taken for another.
absl::Status CheckWhole(const Message& message, const FieldDescriptor& field, const std::string& path) {
  constexpr uint64_t kWholeMax = uint64_t{1} << 53;
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_UINT64) return absl::OkStatus();
  const uint64_t number = message.GetReflection()->GetUInt64(message, &field);
  if (number <= kWholeMax) return absl::OkStatus();
  return RefuseField("PARAMETER_OUT_OF_RANGE", path, absl::StrFormat("%d is not in [0, %d]", number, kWholeMax));
}

// Of a choice between forms, in the numbers of its enum.
absl::Status CheckEnum(const Message& message, const FieldDescriptor& field, const std::string& path) {
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_ENUM) return absl::OkStatus();
  const int number = message.GetReflection()->GetEnumValue(message, &field);
  if (field.enum_type()->FindValueByNumber(number) != nullptr) return absl::OkStatus();
  std::string known;
  for (int i = 1; i < field.enum_type()->value_count(); ++i) {  // 0 is UNSPECIFIED
    const auto* value = field.enum_type()->value(i);
    known += absl::StrFormat("%s%s (%d)", known.empty() ? "" : ", ", value->name(), value->number());
  }
  return RefuseField("UNKNOWN_ENUM_VALUE", path,
                     absl::StrFormat("%d is no value of this enum; use one of %s", number, known));
}

// The name of the arm that a oneof has set, which is a registry key, and the fields set in it, which are parameters;
// empty without one.
absl::StatusOr<std::string> ArmFrom(const v1::PolicySpec& proto, const char* oneof,
                                    std::map<std::string, double>& parameters) {
  const Reflection& reflection = *proto.GetReflection();
  const FieldDescriptor* arm = reflection.GetOneofFieldDescriptor(proto, proto.GetDescriptor()->FindOneofByName(oneof));
  if (arm == nullptr) return std::string();
  const Message& message = reflection.GetMessage(proto, arm);
  std::vector<const FieldDescriptor*> given;
  message.GetReflection()->ListFields(message, &given);
  for (const FieldDescriptor* field : given) {
    const std::string path = absl::StrFormat("policy.%s.%s", arm->name(), field->name());
    EBB_TRY(CheckEnum(message, *field, path));
    EBB_TRY(CheckWhole(message, *field, path));
    parameters[field->name()] = NumberOf(message, *field);
  }
  return arm->name();
}

absl::Status AllocationFrom(const v1::PolicySpec& proto, PolicySpec& spec) {
  EBB_ASSIGN(const std::string name, ArmFrom(proto, "allocation", spec.allocation_parameters));
  if (const AllocationRow* row = FindAllocation(name)) spec.allocation = row->allocation;
  return absl::OkStatus();
}

void TriggerFrom(const v1::Trigger& proto, PolicySpec& spec) {
  if (proto.size_case() == v1::Trigger::kBudget) spec.budget = PolicyTokens(proto.budget());
  if (proto.size_case() == v1::Trigger::kBudgetRatio) spec.budget_ratio = proto.budget_ratio();
  if (proto.has_overflow()) spec.overflow = PolicyTokens(proto.overflow());
  spec.slack = PolicyTokens(proto.slack());
  spec.max_drop = PolicyTokens(proto.max_drop());
}

void ProtectionFrom(const v1::Protection& proto, PolicySpec& spec) {
  if (proto.has_sinks()) spec.sinks = PolicyTokens(proto.sinks());
  if (proto.has_recent()) spec.recent = PolicyTokens(proto.recent());
}

// Choices that plain structs name as ebb.v1 does, one row per value; 0 leaves the default.
template <typename Choice>
struct ChoiceRow {
  int number = 0;
  Choice choice = {};
};

template <typename Choice, typename Target>
absl::Status ChoiceFrom(const std::string& field, int number, std::initializer_list<ChoiceRow<Choice>> rows,
                        Target& target) {
  if (number == 0) return absl::OkStatus();
  for (const ChoiceRow<Choice>& row : rows) {
    if (row.number != number) continue;
    target = row.choice;
    return absl::OkStatus();
  }
  return RefuseField("UNKNOWN_ENUM_VALUE", field, absl::StrFormat("%d is no value of this enum", number));
}

absl::Status ChoicesFrom(const v1::PolicySpec& proto, PolicySpec& spec) {
  EBB_TRY(ChoiceFrom<Schedule>("policy.schedule.when", proto.schedule().when(),
                               {{v1::Schedule::EVERY_STEP, Schedule::kEveryStep},
                                {v1::Schedule::ONCE_AFTER_PROMPT, Schedule::kOncePrompt},
                                {v1::Schedule::EVERY_N, Schedule::kEveryN}},
                               spec.schedule));
  EBB_TRY(ChoiceFrom<Then>("policy.schedule.then", proto.schedule().then(),
                           {{v1::Schedule::THEN_SAME, Then::kSame},
                            {v1::Schedule::THEN_SLIDE_RECENT, Then::kSlideRecent},
                            {v1::Schedule::THEN_GROW, Then::kGrow}},
                           spec.then));
  spec.every_n = PolicyTokens(proto.schedule().every_n());
  if (proto.schedule().has_grow_max()) spec.grow_max = PolicyTokens(proto.schedule().grow_max());
  EBB_TRY(ChoiceFrom<Scope>("policy.scope", proto.scope(),
                            {{v1::SCOPE_KV_HEAD, Scope::kKvHead}, {v1::SCOPE_LAYER, Scope::kLayer}}, spec.scope));
  EBB_TRY(ChoiceFrom<Reduction>("policy.reduction", proto.reduction(),
                                {{v1::REDUCTION_MEAN, Reduction::kMean},
                                 {v1::REDUCTION_MAX, Reduction::kMax},
                                 {v1::REDUCTION_L2, Reduction::kL2},
                                 {v1::REDUCTION_UNION, Reduction::kUnion}},
                                spec.reduction));
  EBB_TRY(ChoiceFrom<Modifier>("policy.modifier", proto.modifier(),
                               {{v1::MODIFIER_NONE, Modifier::kNone},
                                {v1::MODIFIER_CAOTE, Modifier::kCaote},
                                {v1::MODIFIER_FAST_CAOTE, Modifier::kFastCaote}},
                               spec.modifier));
  EBB_TRY(ChoiceFrom<Positions>(
      "policy.positions", proto.positions(),
      {{v1::POSITIONS_ORIGINAL, Positions::kOriginal}, {v1::POSITIONS_COMPACTED, Positions::kCompacted}},
      spec.positions));
  EBB_TRY(ChoiceFrom<KvType>("policy.cache.kv_dtype", proto.cache().kv_dtype(),
                             {{v1::KV_TYPE_F32, KvType::kF32},
                              {v1::KV_TYPE_BF16, KvType::kBf16},
                              {v1::KV_TYPE_F16, KvType::kF16},
                              {v1::KV_TYPE_INT8, KvType::kInt8},
                              {v1::KV_TYPE_FP8, KvType::kFp8}},
                             spec.kv_type));
  return ChoiceFrom<RopeCache>("policy.cache.rope_cache", proto.cache().rope_cache(),
                               {{v1::ROPE_CACHE_FUSED, RopeCache::kFused}, {v1::ROPE_CACHE_RK, RopeCache::kRk}},
                               spec.rope_cache);
}

}  // namespace

absl::StatusOr<std::string> TenantFrom(std::string_view metadata) {
  if (metadata.empty()) return std::string("default");
  if (!IsResourceName(metadata)) {
    return RefuseField("INVALID_TENANT", "x-ebb-tenant",
                       absl::StrFormat("a tenant's name is %s", kResourceNamePattern));
  }
  return std::string(metadata);
}

absl::Status CheckSessionId(const std::string& id, const std::string& field) {
  if (IsResourceName(id)) return absl::OkStatus();
  return RefuseField("INVALID_NAME", field, absl::StrFormat("a session's id is %s", kResourceNamePattern));
}

absl::StatusOr<std::string> SessionIdFrom(const std::string& name, const std::string& field) {
  const std::string_view prefix = kSessions;
  if (!name.starts_with(prefix) || !IsResourceName(std::string_view(name).substr(prefix.size()))) {
    return RefuseField("INVALID_NAME", field,
                       absl::StrFormat("a session's name is %s%s", kSessions, kResourceNamePattern));
  }
  return name.substr(prefix.size());
}

std::string NewSessionId() {
  std::random_device random;
  return absl::StrFormat("s-%08x%08x%08x%08x", random(), random(), random(), random());
}

absl::Status CheckRequestId(const std::string& id) {
  if (id.size() <= kRequestIdBytesMax) return absl::OkStatus();
  return RefuseField("TOO_LONG", "request_id", absl::StrFormat("%d bytes; at most %d", id.size(), kRequestIdBytesMax));
}

absl::StatusOr<ListPage> PageFrom(uint32_t size, const std::string& token, const char* method) {
  if (size > kPageMax) return OutOfRange("page_size", size, 0, kPageMax);
  if (!token.empty() && !IsResourceName(token)) {
    return RefuseField("INVALID_PAGE_TOKEN", "page_token", absl::StrFormat("it is not one that %s gave", method));
  }
  return ListPage{.count = size == 0 ? kPageDefault : size, .after = token};
}

absl::StatusOr<PolicySpec> PolicyFrom(const v1::PolicySpec& proto) {
  PolicySpec spec;
  EBB_ASSIGN(spec.scorer, ArmFrom(proto, "scorer", spec.parameters));
  EBB_TRY(AllocationFrom(proto, spec));
  TriggerFrom(proto.trigger(), spec);
  ProtectionFrom(proto.protect(), spec);
  EBB_TRY(ChoicesFrom(proto, spec));
  return spec;
}

absl::StatusOr<ValidSpec> ValidPolicyFrom(const v1::PolicySpec& proto, const SpecLimits& limits) {
  EBB_ASSIGN(const PolicySpec spec, PolicyFrom(proto));
  return Resolve(spec, limits);
}

absl::StatusOr<SamplingOptions> SamplingFrom(const v1::Sampling& proto, const SamplingOptions& defaults,
                                             int32_t vocab) {
  SamplingOptions options = defaults;
  if (proto.has_temperature()) options.temperature = proto.temperature();
  // A k beyond the vocabulary keeps every token.
  if (proto.has_top_k()) options.top_k = static_cast<int32_t>(std::min<uint32_t>(proto.top_k(), vocab));
  if (proto.has_top_p()) options.top_p = proto.top_p();
  if (proto.has_min_p()) options.min_p = proto.min_p();
  if (proto.has_typical_p()) options.typical_p = proto.typical_p();
  if (proto.has_repetition_penalty()) options.repetition_penalty = proto.repetition_penalty();
  if (proto.has_presence_penalty()) options.presence_penalty = proto.presence_penalty();
  if (proto.has_frequency_penalty()) options.frequency_penalty = proto.frequency_penalty();
  if (proto.has_penalty_window()) options.penalty_window = proto.penalty_window();
  if (proto.has_seed()) options.seed = proto.seed();
  if (proto.logit_bias_size() > 0) options.logit_bias.clear();
  if (static_cast<size_t>(proto.logit_bias_size()) > kLogitBiasMax) {
    return RefuseField("TOO_MANY", "sampling.logit_bias",
                       absl::StrFormat("%d entries; at most %d", proto.logit_bias_size(), kLogitBiasMax));
  }
  for (const auto& [token, bias] : proto.logit_bias()) {
    if (token >= static_cast<uint32_t>(vocab)) {
      return RefuseField("TOKEN_OUT_OF_RANGE", "sampling.logit_bias",
                         absl::StrFormat("%d is not in [0, %d]", token, vocab - 1));
    }
    options.logit_bias[static_cast<int32_t>(token)] = bias;
  }
  EBB_TRY(CheckSampling(options, vocab));
  return options;
}

absl::StatusOr<StoppingOptions> StoppingFrom(const v1::Stopping& proto, int32_t vocab, SamplingOptions& sampling) {
  StoppingOptions options;
  if (proto.has_max_tokens()) {
    if (proto.max_tokens() < 1 || proto.max_tokens() > kMaxTokensMax) {
      return OutOfRange("stopping.max_tokens", proto.max_tokens(), 1, kMaxTokensMax);
    }
    options.max_tokens = static_cast<int32_t>(proto.max_tokens());
  }
  if (proto.stop_size() > kStopsMax) {
    return RefuseField("TOO_MANY", "stopping.stop",
                       absl::StrFormat("%d stop texts; at most %d", proto.stop_size(), kStopsMax));
  }
  for (int i = 0; i < proto.stop_size(); ++i) {
    if (proto.stop(i).empty() || proto.stop(i).size() > kStopBytesMax) {
      return RefuseField("INVALID_STOP", absl::StrFormat("stopping.stop[%d]", i),
                         absl::StrFormat("%d bytes; 1 to %d", proto.stop(i).size(), kStopBytesMax));
    }
    options.stop.push_back(proto.stop(i));
  }
  if (proto.stop_tokens_size() > kStopTokensMax) {
    return RefuseField("TOO_MANY", "stopping.stop_tokens",
                       absl::StrFormat("%d stop tokens; at most %d", proto.stop_tokens_size(), kStopTokensMax));
  }
  EBB_ASSIGN(options.stop_tokens, TokensFrom(proto.stop_tokens(), vocab, "stopping.stop_tokens"));
  options.ignore_eos = proto.ignore_eos();
  options.logprobs = proto.has_logprobs();
  if (proto.logprobs() > kLogprobsMax) return OutOfRange("stopping.logprobs", proto.logprobs(), 0, kLogprobsMax);
  sampling.logprobs = static_cast<int32_t>(proto.logprobs());
  return options;
}

absl::StatusOr<int32_t> BlockSizeFrom(std::optional<uint32_t> proto, int32_t preset, int32_t max) {
  if (!proto) return std::min(preset, max);
  if (*proto < 1 || *proto > static_cast<uint32_t>(max)) {
    return OutOfRange("block_size", *proto, 1, static_cast<uint64_t>(max));
  }
  return static_cast<int32_t>(*proto);
}

absl::StatusOr<std::vector<int32_t>> TokensFrom(const google::protobuf::RepeatedField<uint32_t>& ids, int32_t vocab,
                                                const std::string& field) {
  std::vector<int32_t> tokens;
  tokens.reserve(static_cast<size_t>(ids.size()));
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] >= static_cast<uint32_t>(vocab)) {
      return RefuseField("TOKEN_OUT_OF_RANGE", absl::StrFormat("%s[%d]", field, i),
                         absl::StrFormat("%d is not in [0, %d]", ids[i], vocab - 1));
    }
    tokens.push_back(static_cast<int32_t>(ids[i]));
  }
  return tokens;
}

absl::StatusOr<PolicyRequest> PolicyRequestFrom(const v1::SetPolicyRequest& proto, const SpecLimits& limits) {
  if (!proto.has_policy()) return RefuseField("MISSING", "policy", "a policy is needed");
  EBB_ASSIGN(ValidSpec policy, ValidPolicyFrom(proto.policy(), limits));
  const v1::CacheFormat& format = proto.policy().cache();
  return PolicyRequest{.policy = std::move(policy),
                       .own_kv_type = format.kv_dtype() == v1::KV_TYPE_UNSPECIFIED,
                       .own_rope_cache = format.rope_cache() == v1::ROPE_CACHE_UNSPECIFIED,
                       .dry_run = proto.dry_run()};
}

absl::StatusOr<EvictRequest> EvictFrom(const v1::EvictRequest& proto) {
  static constexpr uint64_t kIndexMax = std::numeric_limits<int32_t>::max();
  // An index beyond any log is as good as the largest one.
  const auto index = [](uint64_t value) { return static_cast<int32_t>(std::min(value, kIndexMax)); };
  EvictRequest request = {.dry_run = proto.dry_run()};
  switch (proto.what_case()) {
    case v1::EvictRequest::kRange:
      request.range = EvictRequest::Range{.start = index(proto.range().start()), .end = index(proto.range().end())};
      return request;
    case v1::EvictRequest::kKeep:
      request.keep = index(proto.keep().count());
      request.scorer = proto.keep().scorer();
      return request;
    case v1::EvictRequest::kOlderThan:
      request.older_than = index(proto.older_than());
      return request;
    case v1::EvictRequest::kSlots:
      if (proto.slots().lanes().empty()) break;
      for (const v1::LaneSlots& lane : proto.slots().lanes()) {
        EvictRequest::LaneSlots slots = {.layer = index(lane.layer()), .head = index(lane.head())};
        for (const uint32_t slot : lane.slots()) slots.slots.push_back(index(slot));
        request.slots.push_back(std::move(slots));
      }
      return request;
    case v1::EvictRequest::WHAT_NOT_SET:
      break;
  }
  return RefuseField("MISSING", "what", "one of range, keep, older_than and slots is needed");
}

absl::StatusOr<Speculation> SpeculationFrom(const v1::Speculation& proto, std::string_view draft_model) {
  constexpr uint32_t kPreset = 16;
  const uint32_t most = proto.has_draft_tokens_max() ? proto.draft_tokens_max() : kPreset;
  if (most < 1 || most >= kDraftTokensMax) {
    return RefuseField("OUT_OF_RANGE", "speculation.draft_tokens_max",
                       absl::StrFormat("%d is not in [1, %d]", most, kDraftTokensMax - 1));
  }
  Speculation speculation = {.tokens_max = static_cast<int32_t>(most)};
  if (proto.ngram()) speculation.source = DraftSource::kLookup;
  if (proto.draft_model().empty()) return speculation;
  if (proto.ngram()) {
    return RefuseField("DRAFTS_AMBIGUOUS", "speculation", "ngram and draft_model are both given; give one");
  }
  if (proto.draft_model() != draft_model) {
    const std::string there = draft_model.empty() ? "has none, its operator names one in model.draft"
                                                  : absl::StrFormat("has '%s'", draft_model);
    return Refuse(absl::StatusCode::kNotFound,
                  absl::StrFormat("speculation.draft_model: there is no draft model '%s'; this server %s",
                                  BoundedText(proto.draft_model(), 200), there),
                  {.reason = "UNKNOWN_MODEL", .field = "speculation.draft_model"});
  }
  speculation.source = DraftSource::kModel;
  return speculation;
}

absl::StatusOr<DraftRequest> DraftFrom(const v1::VerifyRequest& proto, const Tokenizer& tokenizer) {
  DraftRequest draft;
  EBB_TRY(ChoiceFrom<bool>("mode", proto.mode(), {{v1::VERIFY_MODE_AUTO, false}, {v1::VERIFY_MODE_MANUAL, true}},
                           draft.manual));
  if (proto.logprobs() > 20) {
    return RefuseField("OUT_OF_RANGE", "logprobs", absl::StrFormat("%d is not in [0, 20]", proto.logprobs()));
  }
  draft.logprobs = static_cast<int32_t>(proto.logprobs());
  DraftProposal& proposal = draft.proposal;
  EBB_ASSIGN(proposal.tokens, TokensFrom(proto.draft_tokens(), tokenizer.size(), "draft_tokens"));
  for (int i = 0; i < proto.draft_probabilities_size(); ++i) {
    const v1::DraftDistribution& q = proto.draft_probabilities(i);
    const std::string field = absl::StrFormat("draft_probabilities[%d]", i);
    if (q.tokens_size() != q.probabilities_size()) {
      return RefuseField(
          "DRAFT_PROBABILITIES", field,
          absl::StrFormat("%d tokens and %d probabilities; give as many", q.tokens_size(), q.probabilities_size()));
    }
    EBB_ASSIGN(const std::vector<int32_t> tokens, TokensFrom(q.tokens(), tokenizer.size(), field + ".tokens"));
    std::vector<TokenProbability>& distribution = proposal.q.emplace_back();
    for (int k = 0; k < q.tokens_size(); ++k) distribution.push_back({.token = tokens[k], .p = q.probabilities(k)});
  }
  EBB_TRY(CheckDraft(proposal, tokenizer.size()));
  const auto end = std::ranges::find_if(proposal.tokens, [&](int32_t token) { return tokenizer.IsStop(token); });
  if (end != proposal.tokens.end()) {
    proposal.tokens.erase(end + 1, proposal.tokens.end());
    if (!proposal.q.empty()) proposal.q.resize(proposal.tokens.size());
  }
  return draft;
}

bool ContinuesLog(const v1::Prompt& proto) { return proto.content_case() != v1::Prompt::kTokens; }

absl::StatusOr<std::vector<int32_t>> PromptFrom(const v1::Prompt& proto, const Tokenizer& tokenizer,
                                                std::span<const int32_t> log_tail, const std::string& field) {
  // After a control token a text stands on its own; else it goes on what is there.
  const Start start = log_tail.empty()                        ? Start::kSequence
                      : tokenizer.is_control(log_tail.back()) ? Start::kText
                                                              : Start::kContinuation;
  std::vector<int32_t> tokens;
  switch (proto.content_case()) {
    case v1::Prompt::kText:
      if (!proto.text().empty()) tokens = tokenizer.Encode(proto.text(), Special::kPlain, start);
      break;
    case v1::Prompt::kTrustedText:
      if (!proto.trusted_text().empty()) tokens = tokenizer.Encode(proto.trusted_text(), Special::kParse, start);
      break;
    case v1::Prompt::kTokens: {
      EBB_ASSIGN(tokens, TokensFrom(proto.tokens().ids(), tokenizer.size(), field + ".tokens.ids"));
      break;
    }
    case v1::Prompt::kChat: {
      std::vector<ChatMessage> messages;
      for (const v1::ChatMessage& message : proto.chat().messages()) {
        messages.push_back({.role = message.role(),
                            .content = message.content(),
                            .no_content = !message.has_content(),
                            .tool_calls = {message.tool_calls().begin(), message.tool_calls().end()},
                            .name = message.name(),
                            .tool_call_id = message.tool_call_id()});
      }
      const bool answers = !proto.chat().has_add_generation_prompt() || proto.chat().add_generation_prompt();
      auto encoded = EncodeChat(tokenizer, messages, log_tail,
                                {.next = answers ? Next::kAnswer : Next::kMessages,
                                 .tools = {proto.chat().tools().begin(), proto.chat().tools().end()},
                                 .arguments = proto.chat().arguments(),
                                 .now = absl::Now()});
      if (!encoded.ok()) return AtField(field + ".chat", encoded.status());
      tokens = *std::move(encoded);
      break;
    }
    case v1::Prompt::CONTENT_NOT_SET:
      break;
  }
  if (tokens.empty()) return RefuseField("EMPTY_PROMPT", field, "it is empty; give text, chat or tokens");
  if (tokens.size() > static_cast<size_t>(kBudgetMax)) {
    return RefuseField("PROMPT_TOO_LONG", field, absl::StrFormat("%d tokens; at most %d", tokens.size(), kBudgetMax));
  }
  return tokens;
}

}  // namespace ebb
