// A budget that differs between lanes, through the service: what is reserved, what each lane keeps, a swap on a warm
// cache, and what is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "engine/model/head_gates_file.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using client::ReadDetails;
using ::testing::ElementsAre;
using ::testing::IsSupersetOf;

const std::string kLongPrompt(150, 'a');     // a token per byte
constexpr uint64_t kSlotBytes = 2 * 16 * 2;  // K and V, head size 16, BF16

class Allocations : public testing::Test {
 protected:
  v1::PolicySpec H2o(uint32_t budget) const {
    v1::PolicySpec policy;
    policy.mutable_h2o();
    policy.mutable_trigger()->set_budget(budget);
    policy.mutable_protect()->set_recent(8);
    return policy;
  }

  v1::DescribeCacheResponse Describe(const std::string& session) {
    v1::DescribeCacheRequest request;
    request.set_session(session);
    v1::DescribeCacheResponse response;
    EXPECT_TRUE(client_.eviction().DescribeCache(client_.Context().get(), request, &response).ok());
    return response;
  }

  std::vector<uint32_t> Lengths(const std::string& session) {
    std::vector<uint32_t> lengths;
    const v1::DescribeCacheResponse cache = Describe(session);  // the loop would not keep it
    for (const v1::LaneDescription& lane : cache.lanes()) lengths.push_back(lane.length());
    return lengths;
  }

  // What the session and the server say they hold is what the lanes of this one session list.
  void ExpectCountedLaneByLane(const std::string& session) {
    uint64_t slots = 0;
    for (const uint32_t length : Lengths(session)) slots += length;
    const v1::Session info = client_.Get(session);
    EXPECT_EQ(info.used_bytes(), slots * kSlotBytes);
    EXPECT_LE(info.used_bytes(), info.reserved_bytes());
    EXPECT_EQ(client_.Status().cache().used_bytes(), slots * kSlotBytes);
    EXPECT_EQ(server_.Metric("ebb_cache_slots{state=\"used\"}"), static_cast<double>(slots));
    EXPECT_EQ(server_.Metric("ebb_cache_bytes{state=\"used\"}"), static_cast<double>(slots * kSlotBytes));
  }

  grpc::Status Set(const std::string& session, const v1::PolicySpec& policy, v1::SetPolicyResponse* response) {
    v1::SetPolicyRequest request;
    request.set_session(session);
    *request.mutable_policy() = policy;
    return client_.eviction().SetPolicy(client_.Context().get(), request, response);
  }

  client::ErrorDetails Refused(const v1::PolicySpec& policy, grpc::StatusCode code) {
    v1::Session session;
    const grpc::Status status = client_.Create(SessionWith(policy), &session);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    return ReadDetails(status);
  }

  // Three layers of two KV heads.
  TestServer server_ = TestServer(
      [](ServerOptions& options) { options.http_listen = {.host = "127.0.0.1", .port = 0}; }, TinyModel{.layers = 3});
  TestClient client_ = TestClient(server_.address());
};

TEST_F(Allocations, APyramidReservesAndKeepsWhatEachLayerGets) {
  v1::PolicySpec policy = H2o(48);
  policy.mutable_pyramid();
  const v1::Session session = client_.Create(SessionWith(policy));
  EXPECT_EQ(session.policy().pyramid().beta(), 20U);
  EXPECT_FALSE(session.policy().pyramid().exact_total());
  ASSERT_TRUE(client_.Prefill(PrefillText(session.name(), kLongPrompt)).ok());
  EXPECT_THAT(client_.Decode(DecodeTokens(session.name(), 9)).tokens, testing::SizeIs(9));
  const v1::DescribeCacheResponse cache = Describe(session.name());
  EXPECT_EQ(cache.capacity(), 8U + 78 + 16);
  std::vector<uint32_t> budgets, slots;
  for (const v1::LaneDescription& lane : cache.lanes()) {
    budgets.push_back(lane.budget());
    slots.push_back(lane.capacity());
    EXPECT_EQ(lane.length(), lane.budget());
    const uint64_t tokens = cache.session_tokens();
    const std::vector<uint64_t> recent = {tokens - 8, tokens - 1};
    EXPECT_THAT(std::vector<uint64_t>(lane.tokens().begin(), lane.tokens().end()), IsSupersetOf(recent));
  }
  // A room of 40: 78, 40 and 2, and the 8 newest.
  EXPECT_THAT(budgets, ElementsAre(86, 86, 48, 48, 10, 10));
  EXPECT_THAT(slots, ElementsAre(102, 102, 64, 64, 26, 26));
  ExpectCountedLaneByLane(session.name());
  EXPECT_TRUE(client_.Delete(session.name()).ok());
  EXPECT_EQ(client_.Status().cache().used_bytes(), 0U);
}

TEST_F(Allocations, IsSwappedOnAWarmCacheAndBack) {
  const std::string name = client_.Create(SessionWith(H2o(60))).name();
  ASSERT_TRUE(client_.Prefill(PrefillText(name, kLongPrompt)).ok());
  const uint64_t evicted = client_.Get(name).evicted_tokens();
  v1::PolicySpec pyramid = H2o(48);
  pyramid.mutable_pyramid();
  v1::SetPolicyResponse response;
  ASSERT_TRUE(Set(name, pyramid, &response).ok());
  EXPECT_EQ(response.changes(0).state(), v1::STATE_ORIGIN_CARRIED);
  EXPECT_EQ(response.changes(0).slots_evicted(), 2 * (12U + 50));
  EXPECT_EQ(client_.Get(name).evicted_tokens(), evicted + 50) << "of the lanes that lost most";
  EXPECT_EQ(server_.Metric("ebb_evicted_tokens_total{policy=\"h2o\"}"), static_cast<double>(evicted + 50));
  EXPECT_THAT(Lengths(name), ElementsAre(60, 60, 48, 48, 10, 10));
  ASSERT_TRUE(Set(name, H2o(40), &response).ok());
  EXPECT_THAT(Lengths(name), ElementsAre(40, 40, 40, 40, 10, 10));
  ExpectCountedLaneByLane(name);
  EXPECT_TRUE(response.changes(0).policy().has_uniform());
  EXPECT_THAT(client_.Decode(DecodeTokens(name, 40)).tokens, testing::SizeIs(40));
  EXPECT_THAT(Lengths(name), ElementsAre(40, 40, 40, 40, 40, 40));
}

TEST_F(Allocations, AdaKeepsTheTotalOfEveryLayer) {
  v1::PolicySpec policy = H2o(48);
  policy.mutable_ada();
  const v1::Session session = client_.Create(SessionWith(policy));
  EXPECT_EQ(session.policy().schedule().when(), v1::Schedule::ONCE_AFTER_PROMPT);
  ASSERT_TRUE(client_.Prefill(PrefillText(session.name(), kLongPrompt)).ok());
  const std::vector<uint32_t> lengths = Lengths(session.name());
  for (size_t layer = 0; layer < 3; ++layer) EXPECT_EQ(lengths[2 * layer] + lengths[2 * layer + 1], 96U);
  EXPECT_GT(std::set<uint32_t>(lengths.begin(), lengths.end()).size(), 1U);
  client_.Decode(DecodeTokens(session.name(), 20));
  EXPECT_EQ(Lengths(session.name()), lengths);
  ExpectCountedLaneByLane(session.name());
}

TEST_F(Allocations, WhatMeansNothingIsRefusedWithItsField) {
  v1::PolicySpec policy = H2o(48);
  policy.mutable_streaming();
  policy.mutable_pyramid();
  client::ErrorDetails details = Refused(policy, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(details.reason, "MEANINGLESS_COMBINATION");
  EXPECT_EQ(details.field, "policy.pyramid");

  policy = H2o(48);
  policy.mutable_ada();
  policy.set_scope(v1::SCOPE_LAYER);
  EXPECT_EQ(Refused(policy, grpc::StatusCode::INVALID_ARGUMENT).field, "policy.scope");

  policy = H2o(27);
  policy.mutable_pyramid();
  EXPECT_EQ(Refused(policy, grpc::StatusCode::INVALID_ARGUMENT).reason, "BUDGET_TOO_SMALL");

  policy = H2o(400);
  policy.mutable_duo();
  details = Refused(policy, grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(details.reason, "HEAD_GATES_MISSING");
  EXPECT_EQ(details.field, "policy.duo");
}

TEST(AllocationDuo, IsRefusedWithTheGatesOfAnotherModel) {
  ModelConfig other;
  other.layers = 3;
  other.kv_heads = 2;
  other.fingerprint = "0123456789abcdef";
  const std::string path = testing::TempDir() + "foreign.heads.json";
  ASSERT_TRUE(WriteHeadGates(path, other, "a test", HeadGates(6, 1)).ok());
  TestServer server([&](ServerOptions& options) { options.engine.head_gates_path = path; }, TinyModel{.layers = 3});
  TestClient client(server.address());
  v1::PolicySpec policy = StreamingPolicy(400);
  policy.mutable_duo();
  v1::Session session;
  const grpc::Status status = client.Create(SessionWith(policy), &session);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << status.error_message();
  EXPECT_EQ(ReadDetails(status).reason, "HEAD_GATES_FOREIGN");
  EXPECT_EQ(ReadDetails(status).field, "policy.duo");
}

TEST_F(Allocations, IsListedWithItsParameters) {
  v1::ListPoliciesResponse policies;
  ASSERT_TRUE(client_.admin().ListPolicies(client_.Context().get(), {}, &policies).ok());
  std::vector<std::string> names;
  for (const v1::AllocationDescription& allocation : policies.allocations()) names.push_back(allocation.name());
  EXPECT_THAT(names, ElementsAre("uniform", "pyramid", "ada", "duo"));
  EXPECT_EQ(policies.allocations(1).paper(), "arXiv:2406.02069");
  EXPECT_EQ(policies.allocations(1).parameters(0).name(), "beta");
  EXPECT_EQ(policies.allocations(1).parameters(0).default_(), 20);
}

}  // namespace
}  // namespace ebb
