// Shadows of a sampled share of sessions: what they report, and that they give way.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/test_server.h"

namespace ebb {
namespace {

using client::ReadDetails;
using ::testing::SizeIs;

constexpr int kBlocks = 6;  // of 16 tokens, in the prompt's 86

v1::PolicySpec FullPolicy(uint32_t length) {
  v1::PolicySpec policy;
  policy.mutable_full();
  policy.mutable_trigger()->set_budget(length);
  return policy;
}

class Shadow : public testing::Test {
 protected:
  explicit Shadow(ShadowOptions shadow = {.share = 1}, int64_t arena_bytes = 64 << 20)
      : server_([=](ServerOptions& options) {
          options.http_listen = {.host = "127.0.0.1", .port = 0};
          options.work.live.shadow = shadow;
          options.engine.arena_bytes = arena_bytes;
        }),
        client_(server_.address()) {}

  void Run(const std::string& name, uint32_t tokens) {
    EXPECT_THAT(client_.Decode(DecodeTokens(name, tokens)).tokens, SizeIs(tokens));
  }
  std::string Primed(const v1::PolicySpec& policy) {
    const std::string name = client_.Create(SessionWith(policy)).name();
    EXPECT_TRUE(client_.Prefill(PrefillText(name, kStormyNight)).ok());
    return name;
  }
  double Of(const std::string& policy, const std::string& metric) const {
    return server_.Metric("ebb_shadow_" + metric + "{policy=\"" + policy + "\"}");
  }
  double Drops(const std::string& reason) const {
    return server_.Metric("ebb_shadow_drops_total{reason=\"" + reason + "\"}");
  }
  void ExpectNoPageLeaked() const {
    EXPECT_EQ(server_.Metric("ebb_kv_pages{state=\"free\"}") + server_.Metric("ebb_kv_pages{state=\"owned\"}"),
              server_.Metric("ebb_kv_pages_limit"));
  }
  std::vector<std::string> CreateUntilRefused() {
    std::vector<std::string> names;
    v1::Session session;
    grpc::Status status;
    while ((status = client_.Create(SessionWith(StreamingPolicy(40)), &session)).ok()) names.push_back(session.name());
    EXPECT_EQ(ReadDetails(status).reason, "NO_PAGES");
    return names;
  }

  TestServer server_;
  TestClient client_;
};

class NoShadow : public Shadow {
 protected:
  NoShadow() : Shadow(ShadowOptions()) {}
};

TEST_F(NoShadow, UnlessAShareIsConfigured) {
  Run(Primed(StreamingPolicy(24)), 20);
  EXPECT_EQ(server_.Metric("ebb_shadows"), 0);
  EXPECT_EQ(Of("streaming", "tokens_total"), 0);
}

TEST_F(Shadow, OfASessionThatEvictsNothingAgreesToTheLastBit) {
  Run(Primed(FullPolicy(400)), 50);
  EXPECT_EQ(Of("full", "tokens_total"), kBlocks + 50);
  EXPECT_EQ(Of("full", "top1_agreement_total"), kBlocks + 50);
  EXPECT_EQ(Of("full", "kl_divergence_count"), kBlocks + 50);
  EXPECT_EQ(Of("full", "kl_divergence_sum"), 0);
}

TEST_F(Shadow, OfATightBudgetDiverges) {
  const std::string name = Primed(StreamingPolicy(24));
  Run(name, 50);
  EXPECT_EQ(server_.Metric("ebb_shadows"), 1);
  EXPECT_EQ(Of("streaming", "tokens_total"), kBlocks + 50);
  EXPECT_GT(Of("streaming", "kl_divergence_sum"), 0);
  EXPECT_LT(Of("streaming", "top1_agreement_total"), kBlocks + 50) << "this model, at this budget";
  EXPECT_TRUE(client_.Delete(name).ok());
  EXPECT_EQ(server_.Metric("ebb_shadows"), 0);
  EXPECT_EQ(server_.Metric("ebb_kv_pages{state=\"owned\"}"), 0);
  ExpectNoPageLeaked();
}

TEST_F(Shadow, BeginsAndEndsWithTheShareOfARunningServer) {
  server_.server().SetLive({.shadow = {.share = 0}});
  const std::string name = Primed(StreamingPolicy(24));
  Run(name, 10);
  EXPECT_EQ(Of("streaming", "tokens_total"), 0);
  server_.server().SetLive({.shadow = {.share = 1}});
  Run(name, 50);
  EXPECT_EQ(server_.Metric("ebb_shadows"), 1) << "of a session that was open";
  const double compared = Of("streaming", "tokens_total");
  EXPECT_GT(compared, 0);
  server_.server().SetLive({.shadow = {.share = 0}});
  Run(name, 10);
  EXPECT_EQ(server_.Metric("ebb_shadows"), 0);
  EXPECT_EQ(Of("streaming", "tokens_total"), compared);
  ExpectNoPageLeaked();
  server_.server().SetLive({.shadow = {.share = 1}});
  Run(name, 50);
  EXPECT_GT(Of("streaming", "tokens_total"), compared) << "another begins";
}

TEST_F(Shadow, MeasuresAsManyEvictionsAsARunningServerIsToldTo) {
  const auto measured = [&] { return server_.Metric("ebb_eviction_attention_mass_lost_count{policy=\"streaming\"}"); };
  server_.server().SetLive({.measure_every = 0});
  const std::string name = Primed(StreamingPolicy(24));
  Run(name, 30);
  EXPECT_EQ(measured(), 0);
  server_.server().SetLive({.measure_every = 1});
  Run(name, 30);
  EXPECT_EQ(measured(), 30);
}

TEST_F(Shadow, FollowsForAsLongAsARunningServerIsToldTo) {
  server_.server().SetLive({.shadow = {.share = 1, .tokens_max = 30}});
  const std::string name = Primed(StreamingPolicy(24));
  Run(name, 50);
  EXPECT_EQ(server_.Metric("ebb_shadows"), 0);
  const double compared = Of("streaming", "tokens_total");
  server_.server().SetLive({.shadow = {.share = 1, .tokens_max = 300}});
  const std::string other = Primed(StreamingPolicy(24));
  Run(other, 50);
  EXPECT_EQ(server_.Metric("ebb_shadows"), 1) << "of the one that began after it";
  EXPECT_GE(Of("streaming", "tokens_total"), compared + 50);
}

class ShadowInOneMebibyte : public Shadow {
 protected:
  ShadowInOneMebibyte() : Shadow({.share = 1, .tokens_max = 400}, 1 << 20) {}
};

TEST_F(ShadowInOneMebibyte, GivesItsPagesToASessionThatComes) {
  const std::vector<std::string> all = CreateUntilRefused();
  ASSERT_GT(all.size(), 2U);
  for (const std::string& name : all) EXPECT_TRUE(client_.Delete(name).ok());

  const std::string followed = Primed(StreamingPolicy(40));
  Run(followed, 5);
  EXPECT_EQ(server_.Metric("ebb_shadows"), 1);
  const double compared = Of("streaming", "tokens_total");
  EXPECT_GT(compared, 0);
  ExpectNoPageLeaked();

  EXPECT_THAT(CreateUntilRefused(), SizeIs(all.size() - 1)) << "as many as if there were no shadow";
  EXPECT_EQ(server_.Metric("ebb_shadows"), 0);
  EXPECT_EQ(Drops("pages"), 1);
  ExpectNoPageLeaked();
  Run(followed, 5);
  EXPECT_EQ(Of("streaming", "tokens_total"), compared) << "it does not come back";
}

TEST_F(ShadowInOneMebibyte, GivesItsPagesToASessionThatGrows) {
  const std::string followed = Primed(StreamingPolicy(40));
  EXPECT_EQ(server_.Metric("ebb_shadows"), 1);
  // As large a budget as the whole arena holds, which the shadow holds a part of.
  v1::SetPolicyRequest request;
  request.set_session(followed);
  grpc::Status status;
  v1::SetPolicyResponse response;
  uint32_t budget = 1 << 14;
  request.set_dry_run(true);
  for (; budget > 40; budget -= 16) {
    *request.mutable_policy() = StreamingPolicy(budget);
    status = client_.eviction().SetPolicy(client_.Context().get(), request, &response);
    if (status.ok()) break;
    EXPECT_EQ(ReadDetails(status).reason, "SESSION_TOO_LARGE");
  }
  EXPECT_EQ(server_.Metric("ebb_shadows"), 1) << "a dry run changes nothing, and says what the change would answer";
  EXPECT_EQ(Drops("pages"), 0);
  request.set_dry_run(false);
  const uint64_t pages = response.changes(0).pages_after();
  status = client_.eviction().SetPolicy(client_.Context().get(), request, &response);
  EXPECT_TRUE(status.ok()) << client::Describe(status);
  EXPECT_EQ(response.changes(0).pages_after(), pages);
  EXPECT_EQ(server_.Metric("ebb_shadows"), 0);
  EXPECT_EQ(Drops("pages"), 1);
  ExpectNoPageLeaked();
  Run(followed, 5);
}

}  // namespace
}  // namespace ebb
