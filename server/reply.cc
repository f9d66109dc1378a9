#include "server/reply.h"

#include "policies/allocation.h"
#include "policies/status.h"
#include "server/proto_time.h"

namespace ebb {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void SetNumber(Message& message, const FieldDescriptor& field, double value) {
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.SetDouble(&message, &field, value);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.SetFloat(&message, &field, static_cast<float>(value));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.SetUInt32(&message, &field, static_cast<uint32_t>(value));
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.SetInt32(&message, &field, static_cast<int32_t>(value));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.SetUInt64(&message, &field, static_cast<uint64_t>(value));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(&message, &field, value != 0);
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.SetEnumValue(&message, &field, static_cast<int>(value) + 1);  // after UNSPECIFIED
    default:
      return;
  }
}

void FillSchedule(const ValidSpec& spec, v1::Schedule& proto) {
  switch (spec.schedule) {
    case Schedule::kEveryStep:
      return proto.set_when(v1::Schedule::EVERY_STEP);
    case Schedule::kEveryN:
      proto.set_every_n(static_cast<uint32_t>(spec.every_n));
      return proto.set_when(v1::Schedule::EVERY_N);
    case Schedule::kOncePrompt:
      proto.set_when(v1::Schedule::ONCE_AFTER_PROMPT);
      proto.set_then(spec.then == Then::kSame          ? v1::Schedule::THEN_SAME
                     : spec.then == Then::kSlideRecent ? v1::Schedule::THEN_SLIDE_RECENT
                                                       : v1::Schedule::THEN_GROW);
      if (spec.then == Then::kGrow) proto.set_grow_max(static_cast<uint32_t>(spec.grow_max));
  }
}

v1::Reduction ReductionProto(Reduction reduction) {
  switch (reduction) {
    case Reduction::kMean:
      return v1::REDUCTION_MEAN;
    case Reduction::kMax:
      return v1::REDUCTION_MAX;
    case Reduction::kL2:
      return v1::REDUCTION_L2;
    case Reduction::kUnion:
      return v1::REDUCTION_UNION;
  }
  return v1::REDUCTION_UNSPECIFIED;
}

v1::StateOrigin StateOriginProto(StateOrigin origin) {
  switch (origin) {
    case StateOrigin::kNone:
      return v1::STATE_ORIGIN_NONE;
    case StateOrigin::kCarried:
      return v1::STATE_ORIGIN_CARRIED;
    case StateOrigin::kRebuilt:
      return v1::STATE_ORIGIN_REBUILT;
    case StateOrigin::kFromScores:
      return v1::STATE_ORIGIN_FROM_SCORES;
    case StateOrigin::kFromAttention:
      return v1::STATE_ORIGIN_FROM_ATTENTION;
    case StateOrigin::kEmpty:
      return v1::STATE_ORIGIN_EMPTY;
  }
  return v1::STATE_ORIGIN_UNSPECIFIED;
}

v1::KvType KvTypeProto(KvType type) {
  switch (type) {
    case KvType::kF32:
      return v1::KV_TYPE_F32;
    case KvType::kBf16:
      return v1::KV_TYPE_BF16;
    case KvType::kF16:
      return v1::KV_TYPE_F16;
    case KvType::kInt8:
      return v1::KV_TYPE_INT8;
    case KvType::kFp8:
      return v1::KV_TYPE_FP8;
  }
  return v1::KV_TYPE_UNSPECIFIED;
}

// Selects an arm of PolicySpec by name, with its parameters.
void SetArm(v1::PolicySpec& proto, std::string_view name, const std::map<std::string, double>& parameters) {
  const FieldDescriptor* arm = proto.GetDescriptor()->FindFieldByName(std::string(name));
  Message& message = *proto.GetReflection()->MutableMessage(&proto, arm);
  for (const auto& [parameter, value] : parameters) {
    SetNumber(message, *message.GetDescriptor()->FindFieldByName(parameter), value);
  }
}

v1::LaneVictims VictimsProto(const LaneVictims& victims) {
  v1::LaneVictims proto;
  proto.set_layer(static_cast<uint32_t>(victims.layer));
  proto.set_head(static_cast<uint32_t>(victims.head));
  proto.mutable_tokens()->Add(victims.tokens.begin(), victims.tokens.end());
  return proto;
}

v1::EvictionCause CauseProto(EvictionCause cause) {
  switch (cause) {
    case EvictionCause::kDecode:
      return v1::EVICTION_CAUSE_DECODE;
    case EvictionCause::kPrefill:
      return v1::EVICTION_CAUSE_PREFILL;
    case EvictionCause::kPromptEnd:
      return v1::EVICTION_CAUSE_PROMPT_END;
    case EvictionCause::kEvict:
      return v1::EVICTION_CAUSE_EVICT;
    case EvictionCause::kSetPolicy:
      return v1::EVICTION_CAUSE_SET_POLICY;
  }
  return v1::EVICTION_CAUSE_UNSPECIFIED;
}

}  // namespace

v1::PolicySpec PolicyProto(const ValidSpec& spec) {
  v1::PolicySpec proto;
  SetArm(proto, spec.scorer_name, spec.parameters);
  v1::Trigger& trigger = *proto.mutable_trigger();
  if (spec.trigger.budget > 0) {
    trigger.set_budget(static_cast<uint32_t>(spec.trigger.budget));
  } else {
    trigger.set_budget_ratio(spec.budget_ratio);
  }
  // A policy that never evicts takes neither, so that what is answered here may be sent back.
  if (spec.evicts && !spec.bounded) {
    trigger.set_overflow(static_cast<uint32_t>(spec.trigger.overflow));
    trigger.set_slack(static_cast<uint32_t>(spec.trigger.slack));
    trigger.set_max_drop(static_cast<uint32_t>(spec.trigger.max_drop));
    // Until the budget is known, the protection that follows it is not either.
    const bool known = spec.trigger.budget > 0;
    if (known || !spec.sinks_follow_budget) proto.mutable_protect()->set_sinks(static_cast<uint32_t>(spec.sinks));
    if (known || !spec.recent_follows_budget) proto.mutable_protect()->set_recent(static_cast<uint32_t>(spec.recent));
  }
  FillSchedule(spec, *proto.mutable_schedule());
  proto.set_scope(spec.scope == Scope::kLayer ? v1::SCOPE_LAYER : v1::SCOPE_KV_HEAD);
  proto.set_reduction(ReductionProto(spec.reduction));
  proto.set_modifier(spec.modifier == Modifier::kCaote       ? v1::MODIFIER_CAOTE
                     : spec.modifier == Modifier::kFastCaote ? v1::MODIFIER_FAST_CAOTE
                                                             : v1::MODIFIER_NONE);
  SetArm(proto, RowOf(spec.allocation).name, spec.allocation_parameters);
  proto.set_positions(spec.positions == Positions::kOriginal ? v1::POSITIONS_ORIGINAL : v1::POSITIONS_COMPACTED);
  proto.mutable_cache()->set_kv_dtype(KvTypeProto(spec.kv_type));
  proto.mutable_cache()->set_rope_cache(spec.rope_cache == RopeCache::kRk ? v1::ROPE_CACHE_RK : v1::ROPE_CACHE_FUSED);
  return proto;
}

v1::Sampling SamplingProto(const SamplingOptions& options) {
  v1::Sampling proto;
  proto.set_temperature(options.temperature);
  proto.set_top_k(static_cast<uint32_t>(options.top_k));
  proto.set_top_p(options.top_p);
  proto.set_min_p(options.min_p);
  proto.set_typical_p(options.typical_p);
  proto.set_repetition_penalty(options.repetition_penalty);
  proto.set_presence_penalty(options.presence_penalty);
  proto.set_frequency_penalty(options.frequency_penalty);
  proto.set_penalty_window(options.penalty_window);
  for (const auto& [token, bias] : options.logit_bias) {
    (*proto.mutable_logit_bias())[static_cast<uint32_t>(token)] = bias;
  }
  proto.set_seed(options.seed);
  return proto;
}

v1::Session SessionProto(const SessionInfo& info, const std::string& model) {
  v1::Session proto;
  proto.set_name("sessions/" + info.request.id);
  proto.set_tenant(info.request.tenant);
  proto.set_model(model);
  proto.set_state(info.busy ? v1::SESSION_STATE_BUSY : v1::SESSION_STATE_IDLE);
  proto.set_swapped(info.swapped);
  proto.set_generation(info.generation);
  *proto.mutable_policy() = PolicyProto(info.policy);
  proto.set_tokens(static_cast<uint64_t>(info.tokens));
  proto.set_cache_length(static_cast<uint32_t>(info.cache_length));
  proto.set_cache_capacity(static_cast<uint32_t>(info.cache_capacity));
  proto.set_reserved_bytes(static_cast<uint64_t>(info.reserved_bytes));
  proto.set_shared_bytes(static_cast<uint64_t>(info.shared_bytes));
  proto.set_used_bytes(static_cast<uint64_t>(info.used_bytes));
  proto.set_evicted_tokens(static_cast<uint64_t>(info.evicted));
  proto.set_pending_draft_tokens(static_cast<uint32_t>(info.draft_tokens));
  proto.set_prompt_tokens(static_cast<uint64_t>(info.prompt_tokens));
  proto.set_completion_tokens(static_cast<uint64_t>(info.completion_tokens));
  proto.set_worker(info.placement.worker);
  proto.set_worker_reason(info.placement.reason);
  proto.set_block_size(static_cast<uint32_t>(info.request.block_size));
  if (info.request.assignment) {
    proto.set_experiment("experiments/" + info.request.assignment->experiment);
    proto.set_arm(info.request.assignment->arm_name);
  }
  *proto.mutable_sampling() = SamplingProto(info.request.sampling);
  *proto.mutable_create_time() = TimestampProto(info.created);
  *proto.mutable_last_used_time() = TimestampProto(info.last_used);
  if (info.request.ttl != absl::InfiniteDuration()) {
    *proto.mutable_expire_time() = TimestampProto(info.last_used + info.request.ttl);
  }
  return proto;
}

v1::FinishReason FinishProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return v1::FINISH_REASON_UNSPECIFIED;
    case FinishReason::kEndOfSequence:
      return v1::FINISH_REASON_END_OF_SEQUENCE;
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kMaxTokens:
      return v1::FINISH_REASON_MAX_TOKENS;
    case FinishReason::kLengthLimit:
      return v1::FINISH_REASON_LENGTH_LIMIT;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

v1::Usage UsageProto(const CallUsage& usage) {
  v1::Usage proto;
  proto.set_prompt_tokens(static_cast<uint32_t>(usage.prompt_tokens));
  proto.set_completion_tokens(static_cast<uint32_t>(usage.completion_tokens));
  proto.set_evicted_tokens(static_cast<uint64_t>(usage.evicted));
  proto.set_cache_length(static_cast<uint32_t>(usage.cache_length));
  proto.set_session_tokens(static_cast<uint64_t>(usage.session_tokens));
  proto.set_past_trained_context(usage.past_trained_context);
  proto.set_drafted_tokens(static_cast<uint32_t>(usage.drafted_tokens));
  proto.set_accepted_draft_tokens(static_cast<uint32_t>(usage.accepted_tokens));
  proto.set_reused_prompt_tokens(static_cast<uint32_t>(usage.reused_tokens));
  return proto;
}

v1::Timings TimingsProto(const CallTimings& timings) {
  v1::Timings proto;
  *proto.mutable_queue() = DurationProto(timings.queue);
  *proto.mutable_prefill() = DurationProto(timings.prefill);
  if (timings.first_token) *proto.mutable_time_to_first_token() = DurationProto(*timings.first_token);
  *proto.mutable_decode() = DurationProto(timings.decode);
  return proto;
}

v1::TokenLogprob LogprobProto(const TokenLogprob& logprob, const Tokenizer& tokenizer) {
  v1::TokenLogprob proto;
  proto.set_token(static_cast<uint32_t>(logprob.token));
  proto.set_piece(std::string(tokenizer.Piece(logprob.token)));
  proto.set_logprob(logprob.logprob);
  return proto;
}

v1::TokenLogprob LogprobProto(const Drawn& drawn, const Tokenizer& tokenizer) {
  v1::TokenLogprob proto = LogprobProto(TokenLogprob{.token = drawn.token, .logprob = drawn.logprob}, tokenizer);
  for (const TokenLogprob& other : drawn.top) *proto.add_top() = LogprobProto(other, tokenizer);
  return proto;
}

v1::PolicyChange PolicyChangeProto(const PolicyOutcome& outcome, bool dry_run) {
  v1::PolicyChange proto;
  const PolicySwap& swap = outcome.swap;
  proto.set_session("sessions/" + outcome.session);
  proto.set_state(StateOriginProto(swap.state));
  proto.set_former_chose(swap.old_chose);
  proto.set_length_before(static_cast<uint32_t>(swap.length_before));
  proto.set_length_after(static_cast<uint32_t>(swap.length_after));
  proto.set_slots_evicted(static_cast<uint64_t>(swap.slots_evicted));
  proto.set_pages_before(static_cast<uint64_t>(swap.pages_before));
  proto.set_pages_after(static_cast<uint64_t>(swap.pages_after));
  proto.set_attention_mass(swap.loss.mass);
  proto.set_output_error(swap.loss.error);
  proto.set_generation(outcome.generation);
  if (!dry_run) *proto.mutable_policy() = PolicyProto(outcome.policy);
  return proto;
}

v1::PolicyRefusal PolicyRefusalProto(const absl::Status& status) {
  v1::PolicyRefusal proto;
  const Refusal refusal = GetRefusal(status);
  proto.set_code(static_cast<uint32_t>(status.code()));
  proto.set_reason(refusal.reason);
  proto.set_field(refusal.field);
  proto.set_message(std::string(status.message()));
  if (refusal.retry) *proto.mutable_retry_delay() = DurationProto(*refusal.retry);
  return proto;
}

v1::EvictResponse EvictProto(const EvictOutcome& outcome, bool with_victims) {
  v1::EvictResponse proto;
  proto.set_length_before(static_cast<uint32_t>(outcome.report.length_before));
  proto.set_length_after(static_cast<uint32_t>(outcome.report.length_after));
  proto.set_slots_evicted(static_cast<uint64_t>(outcome.report.slots_evicted));
  proto.set_bytes_evicted(static_cast<uint64_t>(outcome.bytes));
  proto.set_generation(outcome.generation);
  proto.set_attention_mass(outcome.report.loss.mass);
  proto.set_output_error(outcome.report.loss.error);
  if (!with_victims) return proto;
  for (const LaneVictims& lane : outcome.report.victims) *proto.add_victims() = VictimsProto(lane);
  return proto;
}

v1::Eviction EvictionProto(const EvictionEvent& event, bool with_victims) {
  constexpr int64_t kListedMax = 1 << 14;
  v1::Eviction proto;
  *proto.mutable_time() = TimestampProto(event.time);
  proto.set_session("sessions/" + std::string(event.session));
  proto.set_policy(std::string(event.policy));
  proto.set_cause(CauseProto(event.cause));
  proto.set_session_tokens(static_cast<uint64_t>(event.session_tokens));
  proto.set_length_before(static_cast<uint32_t>(event.length_before));
  proto.set_length_after(static_cast<uint32_t>(event.length_after));
  proto.set_evicted_tokens(static_cast<uint32_t>(event.evicted));
  proto.set_slots_evicted(static_cast<uint64_t>(event.evicted_slots));
  if (event.loss != nullptr) {
    proto.set_attention_mass(event.loss->mass);
    proto.set_output_error(event.loss->error);
  }
  proto.set_generation(event.generation);
  if (!with_victims || event.evicted_slots > kListedMax) return proto;
  for (const LaneVictims& lane : event.victims) {
    if (!lane.tokens.empty()) *proto.add_victims() = VictimsProto(lane);
  }
  return proto;
}

v1::LaneDescription LaneProto(const LaneReport& lane, int32_t stride) {
  v1::LaneDescription proto;
  proto.set_layer(static_cast<uint32_t>(lane.layer));
  proto.set_head(static_cast<uint32_t>(lane.head));
  proto.set_length(static_cast<uint32_t>(lane.slots.size()));
  proto.set_capacity(static_cast<uint32_t>(lane.capacity));
  if (lane.budget > 0) proto.set_budget(static_cast<uint32_t>(lane.budget));
  for (size_t i = 0; i < lane.slots.size(); i += static_cast<size_t>(stride)) {
    proto.add_slots(static_cast<uint32_t>(lane.slots[i]));
    proto.add_tokens(static_cast<uint64_t>(lane.tokens[i]));
    proto.add_positions(static_cast<uint32_t>(lane.positions[i]));
    if (!lane.scores.empty()) proto.add_scores(lane.scores[i]);
  }
  return proto;
}

}  // namespace ebb
