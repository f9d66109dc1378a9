// Another policy on a live session: what is answered, what is seen of it, and that nobody else is disturbed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "policies/registry.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using client::ReadDetails;
using ::testing::ElementsAreArray;
using ::testing::SizeIs;

constexpr int32_t kContext = 1 << 16;  // more than any session here comes to

v1::SetPolicyRequest ChangeTo(const std::string& session, const v1::PolicySpec& policy) {
  v1::SetPolicyRequest request;
  request.set_session(session);
  *request.mutable_policy() = policy;
  return request;
}

class SetPolicy : public testing::Test {
 protected:
  explicit SetPolicy(int64_t arena_bytes = 0)
      : server_(
            [arena_bytes](ServerOptions& options) {
              options.http_listen = {.host = "127.0.0.1", .port = 0};
              options.engine.arena_bytes = arena_bytes;
              options.stream_buffer = size_t{1} << 20;  // no stream waits for its reader
            },
            TinyModel{.context = kContext}),
        client_(server_.address()) {}

  grpc::Status Ask(TestClient& client, const v1::SetPolicyRequest& request, v1::SetPolicyResponse* response) {
    return client.eviction().SetPolicy(client.Context().get(), request, response);
  }
  v1::PolicyChange Change(const v1::SetPolicyRequest& request) {
    v1::SetPolicyResponse response;
    const grpc::Status status = Ask(client_, request, &response);
    EXPECT_TRUE(status.ok()) << client::Describe(status);
    return response.changes_size() == 1 ? response.changes(0) : v1::PolicyChange();
  }
  std::string Reason(const v1::SetPolicyRequest& request) {
    v1::SetPolicyResponse response;
    return ReadDetails(Ask(client_, request, &response)).reason;
  }
  std::string Primed(const v1::PolicySpec& policy) {
    const std::string name = client_.Create(SessionWith(policy)).name();
    EXPECT_TRUE(client_.Prefill(PrefillText(name, kStormyNight)).ok());
    return name;
  }

  TestServer server_;
  TestClient client_;
};

class SetPolicyInOneMebibyte : public SetPolicy {
 protected:
  SetPolicyInOneMebibyte() : SetPolicy(1 << 20) {}
};

TEST_F(SetPolicy, AnswersWhatCarriedOverAndWhatLeft) {
  const std::string name = Primed(PolicyOf("tova", 60));
  const v1::Session before = client_.Get(name);
  const v1::PolicyChange change = Change(ChangeTo(name, PolicyOf("h2o", 40)));
  const v1::Session after = client_.Get(name);
  EXPECT_EQ(change.session(), name);
  EXPECT_EQ(change.state(), v1::STATE_ORIGIN_FROM_SCORES);
  EXPECT_FALSE(change.former_chose());
  EXPECT_EQ(change.length_before(), 60U);
  EXPECT_EQ(change.length_after(), 40U);
  EXPECT_EQ(change.slots_evicted(), 4U * 20);  // two layers of two KV heads
  EXPECT_GT(change.attention_mass(), 0);
  EXPECT_LT(change.attention_mass(), 1);
  EXPECT_GT(change.output_error(), 0);
  EXPECT_EQ(change.generation(), before.generation() + 1);
  EXPECT_EQ(after.generation(), change.generation());
  EXPECT_EQ(after.policy().SerializeAsString(), change.policy().SerializeAsString());
  EXPECT_TRUE(after.policy().has_h2o());
  EXPECT_EQ(after.tokens(), before.tokens());
  EXPECT_EQ(after.cache_length(), 40U);
  EXPECT_EQ(after.evicted_tokens(), before.evicted_tokens() + 20);
  EXPECT_EQ(client_.Status().cache().pages_reserved(), change.pages_after());
  EXPECT_EQ(server_.Metric("ebb_policy_changes_total{policy=\"h2o\",state=\"from_scores\"}"), 1);
  EXPECT_EQ(server_.Metric("ebb_evicted_tokens_total{policy=\"h2o\"}"), 20);
  EXPECT_EQ(server_.Metric("ebb_kv_pages{state=\"owned\"}"), change.pages_after());
  EXPECT_THAT(client_.Decode(DecodeTokens(name, 5)).tokens, SizeIs(5));
}

// What the new scorer starts from, and who chose where that is nothing, each as the engine says it.
TEST_F(SetPolicy, AnswersEveryOriginOfTheNewState) {
  struct Case {
    std::string from, to;
    v1::StateOrigin state = v1::STATE_ORIGIN_UNSPECIFIED;
    bool former_chose = false;
  };
  const std::vector<Case> cases = {
      {"h2o", "streaming", v1::STATE_ORIGIN_NONE},      {"h2o", "h2o", v1::STATE_ORIGIN_CARRIED},
      {"h2o", "knorm", v1::STATE_ORIGIN_REBUILT},       {"tova", "h2o", v1::STATE_ORIGIN_FROM_SCORES},
      {"h2o", "tova", v1::STATE_ORIGIN_FROM_ATTENTION}, {"h2o", "nacl", v1::STATE_ORIGIN_EMPTY, true}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.from + " -> " + c.to);
    const std::string name = Primed(PolicyOf(c.from, 60));
    const v1::PolicyChange change = Change(ChangeTo(name, PolicyOf(c.to, 40)));
    EXPECT_EQ(change.state(), c.state);
    EXPECT_EQ(change.former_chose(), c.former_chose);
    EXPECT_EQ(change.length_after(), 40U);
  }
}

TEST_F(SetPolicy, ADryRunSaysTheSameAndChangesNothing) {
  const std::string name = Primed(PolicyOf("tova", 60));
  const v1::Session before = client_.Get(name);
  v1::SetPolicyRequest request = ChangeTo(name, PolicyOf("keydiff", 40));
  request.set_dry_run(true);
  v1::PolicyChange trial = Change(request);
  EXPECT_EQ(client_.Get(name).generation(), before.generation());
  EXPECT_TRUE(client_.Get(name).policy().has_tova());
  EXPECT_EQ(client_.Get(name).cache_length(), before.cache_length());
  request.set_dry_run(false);
  v1::PolicyChange change = Change(request);
  EXPECT_EQ(trial.generation() + 1, change.generation());
  for (v1::PolicyChange* answer : {&trial, &change}) answer->clear_generation(), answer->clear_policy();
  EXPECT_EQ(trial.SerializeAsString(), change.SerializeAsString());
}

TEST_F(SetPolicy, WhatIsRefusedChangesNothing) {
  const std::string name = Primed(PolicyOf("h2o", 60));
  const v1::Session before = client_.Get(name);
  v1::PolicySpec other_format = PolicyOf("h2o", 60);
  other_format.mutable_cache()->set_kv_dtype(v1::KV_TYPE_F32);
  EXPECT_EQ(Reason(ChangeTo(name, other_format)), "CACHE_FORMAT_FIXED");
  v1::PolicySpec by_layer = PolicyOf("h2o", 60);
  by_layer.set_scope(v1::SCOPE_LAYER);
  EXPECT_EQ(Reason(ChangeTo(name, by_layer)), "LANES_DIFFER");
  EXPECT_EQ(Reason(ChangeTo(name, PolicyOf("full", 59))), "CACHE_TOO_LONG");
  v1::PolicySpec crowded = PolicyOf("h2o", 10);
  crowded.mutable_protect()->set_recent(10);
  EXPECT_EQ(Reason(ChangeTo(name, crowded)), "BUDGET_TOO_SMALL");
  v1::SetPolicyRequest request = ChangeTo(name, PolicyOf("h2o", 30));
  request.set_expected_generation(before.generation() + 1);
  EXPECT_EQ(Reason(request), "GENERATION_MISMATCH");
  request.clear_policy();
  EXPECT_EQ(Reason(request), "MISSING");
  EXPECT_EQ(Reason(ChangeTo("sessions/nobody", PolicyOf("h2o", 30))), "UNKNOWN_SESSION");
  v1::Session after = client_.Get(name);
  EXPECT_EQ(after.policy().SerializeAsString(), before.policy().SerializeAsString());
  EXPECT_EQ(after.generation(), before.generation());
  EXPECT_EQ(after.cache_length(), before.cache_length());
  EXPECT_EQ(after.reserved_bytes(), before.reserved_bytes());
}

TEST_F(SetPolicyInOneMebibyte, ALargerBudgetWaitsForFreePages) {
  const std::string name = Primed(PolicyOf("streaming", 40));
  std::vector<std::string> others;
  v1::Session other;
  while (client_.Create(SessionWith(StreamingPolicy(40)), &other).ok()) others.push_back(other.name());
  const v1::SetPolicyRequest request = ChangeTo(name, PolicyOf("streaming", 400));
  v1::SetPolicyResponse response;
  const grpc::Status status = Ask(client_, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReadDetails(status).reason, "NO_PAGES");
  EXPECT_TRUE(ReadDetails(status).retry.has_value());
  for (const std::string& one : others) EXPECT_TRUE(client_.Delete(one).ok());
  const v1::PolicyChange change = Change(request);
  EXPECT_GT(change.pages_after(), change.pages_before());
  EXPECT_EQ(client_.Status().cache().pages_reserved(), change.pages_after());
  EXPECT_EQ(Reason(ChangeTo(name, PolicyOf("streaming", 1 << 20))), "SESSION_TOO_LARGE");
  EXPECT_TRUE(client_.Delete(name).ok());
  EXPECT_EQ(client_.Status().cache().pages_reserved(), 0U);
}

TEST_F(SetPolicy, AllSessionsAreThoseOfTheCallersTenant) {
  TestClient neighbour(server_.address(), "neighbour");
  const std::string foreign = neighbour.Create(SessionWith(PolicyOf("streaming", 50))).name();
  std::vector<std::string> names = {Primed(PolicyOf("streaming", 60)), Primed(PolicyOf("h2o", 60))};
  v1::PolicySpec full = PolicyOf("streaming", 60);
  full.mutable_cache()->set_kv_dtype(v1::KV_TYPE_F32);
  names.push_back(Primed(full));
  v1::PolicySpec policy = PolicyOf("keydiff", 40);
  policy.mutable_cache()->set_kv_dtype(v1::KV_TYPE_BF16);
  v1::SetPolicyRequest request;
  request.set_all_sessions(true);
  *request.mutable_policy() = policy;
  v1::SetPolicyResponse response;
  ASSERT_TRUE(Ask(client_, request, &response).ok());
  ASSERT_EQ(response.changes_size(), 3);
  for (const v1::PolicyChange& change : response.changes()) {
    const bool kept = change.session() == names[2];
    EXPECT_EQ(change.has_refusal(), kept);
    EXPECT_EQ(client_.Get(change.session()).policy().has_keydiff(), !kept);
    if (kept) {
      EXPECT_EQ(change.refusal().reason(), "CACHE_FORMAT_FIXED");
    }
  }
  EXPECT_TRUE(neighbour.Get(foreign).policy().has_streaming());
  request.set_expected_generation(1);
  EXPECT_EQ(Reason(request), "ONLY_WITH_SESSION");
}

// A decode of one session that goes on until it is told to stop.
struct Decoding {
  std::string name;
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientReader<v1::DecodeResponse>> reader;
  std::vector<uint32_t> tokens = {};
  std::thread thread = {};
  std::atomic<size_t> count = 0;
};

// By how many steps the server is ahead of a session's tokens, while that session gets one at every step: between
// `least` and `most`, since the two are asked one after the other. What lies between never shrinks.
struct StepsAhead {
  int64_t least = 0;
  int64_t most = 0;
};

StepsAhead AskStepsAhead(TestClient& client, const std::string& session) {
  constexpr int kTimes = 20;
  StepsAhead ahead = {.least = std::numeric_limits<int64_t>::min(), .most = std::numeric_limits<int64_t>::max()};
  for (int i = 0; i < kTimes; ++i) {
    const auto before = static_cast<int64_t>(client.Status().work().steps());
    const auto tokens = static_cast<int64_t>(client.Get(session).tokens());
    const auto after = static_cast<int64_t>(client.Status().work().steps());
    ahead.least = std::max(ahead.least, before - tokens);
    ahead.most = std::min(ahead.most, after - tokens);
  }
  return ahead;
}

TEST_F(SetPolicy, AHotSwapChainThroughAllScorersUnderLoadLosesNoTokenAndNoPage) {
  constexpr int kOthers = 3;
  std::vector<std::unique_ptr<Decoding>> running;
  uint64_t start = 0;
  for (int i = 0; i <= kOthers; ++i) {
    auto decoding = std::make_unique<Decoding>();
    decoding->name = Primed(PolicyOf("streaming", 60));
    start = client_.Get(decoding->name).tokens();
    decoding->context = client_.Context();
    decoding->reader = client_.inference().Decode(decoding->context.get(), DecodeTokens(decoding->name, kEndless));
    decoding->thread = std::thread([&one = *decoding] {
      v1::DecodeResponse message;
      while (one.reader->Read(&message)) {
        one.tokens.insert(one.tokens.end(), message.tokens().begin(), message.tokens().end());
        one.count = one.tokens.size();
      }
      one.reader->Finish();
    });
    running.push_back(std::move(decoding));
  }
  const Decoding& swapped = *running[0];
  for (const auto& decoding : running) {
    while (decoding->count == 0) std::this_thread::yield();
  }
  std::vector<StepsAhead> before;
  for (const auto& decoding : running) before.push_back(AskStepsAhead(client_, decoding->name));
  for (const ScorerRow& row : ScorerRegistry()) {
    const uint32_t budget = row.evicts ? 40 + static_cast<uint32_t>(row.name.size()) : kContext;
    SCOPED_TRACE(std::string(row.name));
    const v1::PolicyChange change = Change(ChangeTo(swapped.name, PolicyOf(std::string(row.name), budget)));
    EXPECT_EQ(client_.Get(swapped.name).state(), v1::SESSION_STATE_BUSY);
    EXPECT_LE(change.length_after(), budget);
    const size_t seen = swapped.count;
    while (swapped.count < seen + 3) std::this_thread::yield();
  }
  // Only the session whose policy changes waits while that is done; no other stream was left out of a step.
  for (size_t i = 1; i < running.size(); ++i) {
    EXPECT_LE(AskStepsAhead(client_, running[i]->name).least - before[i].most, 1) << "stream " << i;
  }
  for (const auto& decoding : running) decoding->context->TryCancel();
  for (const auto& decoding : running) decoding->thread.join();
  uint64_t pages = 0;
  for (const auto& decoding : running) {
    while (client_.Get(decoding->name).state() == v1::SESSION_STATE_BUSY) continue;
    const v1::Session session = client_.Get(decoding->name);
    EXPECT_GE(session.tokens(), start + decoding->tokens.size());
    // What was sent is what is in the log.
    v1::DecodeRequest again = DecodeTokens(decoding->name, static_cast<uint32_t>(decoding->tokens.size()));
    again.set_resume_from(start);
    EXPECT_THAT(client_.Decode(again).tokens, ElementsAreArray(decoding->tokens));
    pages += session.reserved_bytes() / client_.Status().cache().page_bytes();
  }
  EXPECT_EQ(client_.Status().cache().pages_reserved(), pages);
  for (const auto& decoding : running) EXPECT_TRUE(client_.Delete(decoding->name).ok());
  EXPECT_EQ(client_.Status().cache().pages_reserved(), 0U);
  EXPECT_EQ(server_.Metric("ebb_kv_pages{state=\"owned\"}"), 0);
}

}  // namespace
}  // namespace ebb
