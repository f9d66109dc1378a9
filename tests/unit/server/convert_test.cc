#include "server/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "policies/allocation.h"
#include "policies/registry.h"
#include "policies/status.h"
#include "server/reply.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kVocab = 100;
const SpecLimits kLimits = {.trained_context = 512,
                            .layers = 3,
                            .kv_heads = 2,
                            .calibration = &BlankCalibration(),
                            .head_gates = std::make_shared<const HeadGates>(6, 0.5)};

TEST(PolicyFrom, ArmNamesAreRegistryKeys) {
  const auto* arms = v1::PolicySpec::descriptor()->FindOneofByName("scorer");
  ASSERT_EQ(static_cast<size_t>(arms->field_count()), ScorerRegistry().size());
  for (int i = 0; i < arms->field_count(); ++i) {
    v1::PolicySpec proto;
    proto.GetReflection()->MutableMessage(&proto, arms->field(i));
    const auto spec = PolicyFrom(proto);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_NE(FindScorer(spec->scorer), nullptr) << spec->scorer;
  }
}

TEST(PolicyFrom, ParametersOfEveryScorerAreFieldsOfItsArm) {
  for (const ScorerRow& row : ScorerRegistry()) {
    SCOPED_TRACE(row.name);
    const auto* arm = v1::PolicySpec::descriptor()->FindFieldByName(std::string(row.name));
    ASSERT_NE(arm, nullptr);
    ASSERT_EQ(static_cast<size_t>(arm->message_type()->field_count()), row.parameters.size());
    for (const ParameterRow& parameter : row.parameters) {
      EXPECT_NE(arm->message_type()->FindFieldByName(std::string(parameter.name)), nullptr) << parameter.name;
    }
  }
}

TEST(PolicyProto, WhatIsAnsweredMayBeSentBack) {
  for (const ScorerRow& row : ScorerRegistry()) {
    SCOPED_TRACE(row.name);
    const auto first = Resolve({.scorer = std::string(row.name)}, kLimits);
    ASSERT_TRUE(first.ok()) << first.status();
    const v1::PolicySpec proto = PolicyProto(*first);
    const auto second = ValidPolicyFrom(proto, kLimits);
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(PolicyProto(*second).DebugString(), proto.DebugString());
  }
}

TEST(PolicyProto, EveryTypeOfKAndVMayBeSentBack) {
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kF16, KvType::kInt8, KvType::kFp8}) {
    const auto policy = Resolve({.scorer = "h2o", .budget = 64, .kv_type = type}, kLimits);
    ASSERT_TRUE(policy.ok()) << policy.status();
    const auto second = ValidPolicyFrom(PolicyProto(*policy), kLimits);
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(second->kv_type, type);
  }
}

TEST(PolicyFrom, ParametersOfEveryAllocationAreFieldsOfItsArm) {
  const auto* arms = v1::PolicySpec::descriptor()->FindOneofByName("allocation");
  ASSERT_EQ(static_cast<size_t>(arms->field_count()), AllocationRegistry().size());
  for (const AllocationRow& row : AllocationRegistry()) {
    SCOPED_TRACE(row.name);
    const auto* arm = v1::PolicySpec::descriptor()->FindFieldByName(std::string(row.name));
    ASSERT_NE(arm, nullptr);
    EXPECT_EQ(arm->containing_oneof(), arms);
    ASSERT_EQ(static_cast<size_t>(arm->message_type()->field_count()), row.parameters.size());
    for (const ParameterRow& parameter : row.parameters) {
      EXPECT_NE(arm->message_type()->FindFieldByName(std::string(parameter.name)), nullptr) << parameter.name;
    }
  }
}

TEST(PolicyProto, AllocationsMayBeSentBack) {
  for (const AllocationRow& row : AllocationRegistry()) {
    for (const char* scorer : {"h2o", "full"}) {
      const bool shares = row.allocation == Allocation::kPyramid || row.allocation == Allocation::kAda;
      if (shares && std::string(scorer) == "full") continue;
      SCOPED_TRACE(std::string(row.name) + " over " + scorer);
      const auto first = Resolve({.scorer = scorer, .budget = 400, .allocation = row.allocation}, kLimits);
      ASSERT_TRUE(first.ok()) << first.status();
      const v1::PolicySpec proto = PolicyProto(*first);
      const auto second = ValidPolicyFrom(proto, kLimits);
      ASSERT_TRUE(second.ok()) << second.status();
      EXPECT_EQ(PolicyProto(*second).DebugString(), proto.DebugString());
      EXPECT_EQ(second->lanes, first->lanes);
    }
  }
}

TEST(PolicyFrom, TakesTheParametersOfAnAllocation) {
  v1::PolicySpec proto;
  proto.mutable_h2o();
  proto.mutable_pyramid()->set_beta(7);
  proto.mutable_pyramid()->set_exact_total(true);
  const auto policy = ValidPolicyFrom(proto, kLimits);
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ(policy->allocation, Allocation::kPyramid);
  EXPECT_EQ(policy->allocation_parameters.at("beta"), 7);
  EXPECT_EQ(policy->allocation_parameters.at("exact_total"), 1);
}

TEST(PolicyFrom, EmptyMeansTheDefault) {
  const auto policy = ValidPolicyFrom({}, kLimits);
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ(policy->scorer_name, "streaming");
  EXPECT_EQ(policy->positions, Positions::kCompacted);
  EXPECT_EQ(policy->trigger.budget, kLimits.trained_context);
}

// A refusal names the field.
struct Refused {
  std::string field;
  std::string reason;
};

template <typename Proto>
struct RefusedCase {
  std::function<void(Proto&)> change;
  Refused refused;
};

template <typename Result>
void ExpectRefused(const absl::StatusOr<Result>& result, const Refused& refused) {
  SCOPED_TRACE(refused.field);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetRefusal(result.status()).field, refused.field);
  EXPECT_EQ(GetRefusal(result.status()).reason, refused.reason) << result.status();
}

TEST(PolicyFrom, NamesTheFieldThatIsOutOfRange) {
  constexpr uint32_t kHuge = std::numeric_limits<uint32_t>::max();
  const std::vector<RefusedCase<v1::PolicySpec>> cases = {
      {[](auto& p) { p.mutable_trigger()->set_budget(kHuge); }, {"policy.trigger.budget", "BUDGET_TOO_LARGE"}},
      {[](auto& p) { p.mutable_trigger()->set_budget(kBudgetMax + 1); }, {"policy.trigger.budget", "BUDGET_TOO_LARGE"}},
      {[](auto& p) { p.mutable_trigger()->set_budget(0); }, {"policy.trigger.budget", "BUDGET_TOO_SMALL"}},
      {[](auto& p) { p.mutable_trigger()->set_budget_ratio(1.5); },
       {"policy.trigger.budget_ratio", "RATIO_OUT_OF_RANGE"}},
      {[](auto& p) { p.mutable_trigger()->set_overflow(0); }, {"policy.trigger.overflow", "OVERFLOW_ZERO"}},
      {[](auto& p) { p.mutable_trigger()->set_slack(kHuge); }, {"policy.trigger.slack", "VALUE_TOO_LARGE"}},
      {[](auto& p) { p.mutable_trigger()->set_max_drop(kHuge); }, {"policy.trigger.max_drop", "VALUE_TOO_LARGE"}},
      {[](auto& p) { p.mutable_protect()->set_sinks(kHuge); }, {"policy.protect.sinks", "VALUE_TOO_LARGE"}},
      {[](auto& p) { p.mutable_protect()->set_recent(kHuge); }, {"policy.protect.recent", "VALUE_TOO_LARGE"}},
      {[](auto& p) { p.mutable_schedule()->set_when(static_cast<v1::Schedule::When>(9)); },
       {"policy.schedule.when", "UNKNOWN_ENUM_VALUE"}},
      {[](auto& p) { p.mutable_pyramid()->set_beta(0); }, {"policy.pyramid.beta", "PARAMETER_OUT_OF_RANGE"}},
      {[](auto& p) { p.mutable_ada()->set_floor(1.5); }, {"policy.ada.floor", "PARAMETER_OUT_OF_RANGE"}},
      {[](auto& p) { p.mutable_duo()->set_recent(0); }, {"policy.duo.recent", "PARAMETER_OUT_OF_RANGE"}},
      // 2^53 + 1, which as a double is 2^53, the largest seed there is.
      {[](auto& p) { p.mutable_random()->set_seed((uint64_t{1} << 53) + 1); },
       {"policy.random.seed", "PARAMETER_OUT_OF_RANGE"}},
      {[](auto& p) { p.mutable_knorm()->set_keep(static_cast<v1::Knorm::Keep>(3)); },
       {"policy.knorm.keep", "UNKNOWN_ENUM_VALUE"}},
      {[](auto& p) { p.set_modifier(static_cast<v1::Modifier>(9)); }, {"policy.modifier", "UNKNOWN_ENUM_VALUE"}},
      {[](auto& p) { p.set_positions(static_cast<v1::Positions>(9)); }, {"policy.positions", "UNKNOWN_ENUM_VALUE"}},
      {[](auto& p) { p.mutable_cache()->set_kv_dtype(static_cast<v1::KvType>(9)); },
       {"policy.cache.kv_dtype", "UNKNOWN_ENUM_VALUE"}},
      {[](auto& p) { p.mutable_cache()->set_rope_cache(static_cast<v1::RopeCache>(9)); },
       {"policy.cache.rope_cache", "UNKNOWN_ENUM_VALUE"}},
  };
  for (const auto& c : cases) {
    v1::PolicySpec proto;
    c.change(proto);
    ExpectRefused(ValidPolicyFrom(proto, kLimits), c.refused);
  }
}

// The numbers that it offers are those of the wire, not a parameter's, which count from 0.
TEST(PolicyFrom, OffersAnEnumsOwnNumbers) {
  v1::PolicySpec proto;
  proto.mutable_snapkv()->set_pooling(static_cast<v1::Snapkv::Pooling>(9));
  EXPECT_THAT(std::string(PolicyFrom(proto).status().message()),
              HasSubstr("9 is no value of this enum; use one of NONE (1), AVG (2), MAX (3)"));
  proto.mutable_snapkv()->set_pooling(v1::Snapkv::MAX);
  EXPECT_EQ(PolicyFrom(proto)->parameters.at("pooling"), 2);
}

TEST(SamplingFrom, AbsentFieldsTakeTheDefaultsAndZeroIsAValue) {
  const SamplingOptions defaults = {.temperature = 0.5F, .top_k = 7, .seed = 3};
  v1::Sampling proto;
  proto.set_temperature(0);
  const auto options = SamplingFrom(proto, defaults, kVocab);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->temperature, 0);
  EXPECT_EQ(options->top_k, 7);
  EXPECT_EQ(options->seed, 3U);
}

TEST(SamplingFrom, NamesTheFieldThatIsOutOfRange) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<RefusedCase<v1::Sampling>> cases = {
      {[](auto& p) { p.set_temperature(-1); }, {"sampling.temperature", "SAMPLING_OUT_OF_RANGE"}},
      {[nan](auto& p) { p.set_temperature(nan); }, {"sampling.temperature", "SAMPLING_OUT_OF_RANGE"}},
      {[](auto& p) { p.set_top_p(0); }, {"sampling.top_p", "SAMPLING_OUT_OF_RANGE"}},
      {[](auto& p) { p.set_min_p(2); }, {"sampling.min_p", "SAMPLING_OUT_OF_RANGE"}},
      {[](auto& p) { p.set_typical_p(0); }, {"sampling.typical_p", "SAMPLING_OUT_OF_RANGE"}},
      {[](auto& p) { p.set_repetition_penalty(0); }, {"sampling.repetition_penalty", "SAMPLING_OUT_OF_RANGE"}},
      {[](auto& p) { p.set_presence_penalty(3); }, {"sampling.presence_penalty", "SAMPLING_OUT_OF_RANGE"}},
      {[](auto& p) { p.set_frequency_penalty(-3); }, {"sampling.frequency_penalty", "SAMPLING_OUT_OF_RANGE"}},
      {[](auto& p) { p.set_penalty_window(-2); }, {"sampling.penalty_window", "SAMPLING_OUT_OF_RANGE"}},
      {[](auto& p) { (*p.mutable_logit_bias())[kVocab] = 1; }, {"sampling.logit_bias", "TOKEN_OUT_OF_RANGE"}},
      {[](auto& p) { (*p.mutable_logit_bias())[1] = 101; }, {"sampling.logit_bias", "SAMPLING_OUT_OF_RANGE"}},
  };
  for (const auto& c : cases) {
    v1::Sampling proto;
    c.change(proto);
    ExpectRefused(SamplingFrom(proto, {}, kVocab), c.refused);
  }
}

TEST(StoppingFrom, NamesTheFieldThatIsOutOfRange) {
  const std::vector<RefusedCase<v1::Stopping>> cases = {
      {[](auto& p) { p.set_max_tokens(0); }, {"stopping.max_tokens", "OUT_OF_RANGE"}},
      {[](auto& p) { p.set_max_tokens((1 << 24) + 1); }, {"stopping.max_tokens", "OUT_OF_RANGE"}},
      {[](auto& p) { p.add_stop(""); }, {"stopping.stop[0]", "INVALID_STOP"}},
      {[](auto& p) { p.add_stop(std::string(257, 'x')); }, {"stopping.stop[0]", "INVALID_STOP"}},
      {[](auto& p) {
         for (int i = 0; i < 17; ++i) p.add_stop("x");
       },
       {"stopping.stop", "TOO_MANY"}},
      {[](auto& p) { p.add_stop_tokens(kVocab); }, {"stopping.stop_tokens[0]", "TOKEN_OUT_OF_RANGE"}},
      {[](auto& p) {
         for (int i = 0; i < 65; ++i) p.add_stop_tokens(1);
       },
       {"stopping.stop_tokens", "TOO_MANY"}},
      {[](auto& p) { p.set_logprobs(21); }, {"stopping.logprobs", "OUT_OF_RANGE"}},
  };
  for (const auto& c : cases) {
    v1::Stopping proto;
    c.change(proto);
    SamplingOptions sampling;
    ExpectRefused(StoppingFrom(proto, kVocab, sampling), c.refused);
  }
}

TEST(StoppingFrom, ZeroLogprobsAskForTheChosenTokensOnly) {
  v1::Stopping proto;
  proto.set_logprobs(0);
  SamplingOptions sampling = {.logprobs = 5};
  const auto options = StoppingFrom(proto, kVocab, sampling);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->logprobs);
  EXPECT_EQ(sampling.logprobs, 0);
}

TEST(SessionIdFrom, TakesNamesAndNothingElse) {
  for (const std::string& good :
       std::vector<std::string>{"sessions/a", "sessions/0.a_b-c", "sessions/" + std::string(63, 'x')}) {
    EXPECT_TRUE(SessionIdFrom(good, "name").ok()) << good;
  }
  for (const char* const bad :
       {"", "a", "sessions/", "sessions/A", "sessions/-a", "sessions/a/b", "sessions/ä", "session/a", "sessions/a b"}) {
    EXPECT_FALSE(SessionIdFrom(bad, "name").ok()) << bad;
  }
  EXPECT_FALSE(SessionIdFrom("sessions/" + std::string(64, 'x'), "name").ok());
}

TEST(TenantFrom, NoneGivenIsDefault) {
  EXPECT_EQ(*TenantFrom(""), "default");
  EXPECT_EQ(*TenantFrom("acme-1"), "acme-1");
  const auto bad = TenantFrom("Acme Inc");
  EXPECT_EQ(GetRefusal(bad.status()).reason, "INVALID_TENANT");
}

TEST(NewSessionId, IsAValidNameAndNotTheSameTwice) {
  const std::string id = NewSessionId();
  EXPECT_TRUE(CheckSessionId(id, "session_id").ok()) << id;
  EXPECT_NE(id, NewSessionId());
}

TEST(TokensFrom, NamesTheTokenThatIsOutOfRange) {
  google::protobuf::RepeatedField<uint32_t> ids;
  ids.Add(0);
  ids.Add(kVocab - 1);
  EXPECT_TRUE(TokensFrom(ids, kVocab, "ids").ok());
  ids.Add(kVocab);
  const auto tokens = TokensFrom(ids, kVocab, "prompt.tokens.ids");
  EXPECT_EQ(GetRefusal(tokens.status()).field, "prompt.tokens.ids[2]");
  EXPECT_THAT(std::string(tokens.status().message()), HasSubstr("100 is not in [0, 99]"));
}

TEST(BlockSizeFrom, IsCutWhereItIsOursAndRefusedWhereItIsTheCallers) {
  EXPECT_EQ(*BlockSizeFrom(std::nullopt, 128, 64), 64);
  EXPECT_EQ(*BlockSizeFrom(64, 128, 64), 64);
  EXPECT_FALSE(BlockSizeFrom(65, 128, 64).ok());
  EXPECT_FALSE(BlockSizeFrom(0, 128, 64).ok());
}

}  // namespace
}  // namespace ebb
