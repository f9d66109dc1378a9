// Who computes a session is told, and why it is not the GPU: by every call that shows the session, and counted.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "engine/placement.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr int32_t kPageBytes = 4096;  // of BF16, with heads of 16
constexpr int32_t kPages = 16;
constexpr char kGpu[] = "emulated32:0";

v1::PolicySpec OfType(v1::PolicySpec policy, v1::KvType type) {
  policy.mutable_cache()->set_kv_dtype(type);
  return policy;
}

class GpuPlacementTest : public testing::Test {
 protected:
  // Those that are not named: 0.
  void ExpectCounted(std::map<std::string, double> expected) const {
    for (const std::string_view reason : kWhyHost) {
      const std::string series = absl::StrFormat("ebb_gpu_sessions_on_cpu_total{reason=\"%s\"}", std::string(reason));
      EXPECT_EQ(server_.Metric(series), expected[std::string(reason)]) << reason;
    }
  }
  void SetPolicy(const std::string& name, const v1::PolicySpec& policy) {
    v1::SetPolicyRequest request;
    request.set_session(name);
    *request.mutable_policy() = policy;
    v1::SetPolicyResponse response;
    const auto context = client_.Context();
    ASSERT_TRUE(client_.eviction().SetPolicy(context.get(), request, &response).ok());
  }
  v1::Session Create(const v1::PolicySpec& policy) { return client_.Create(SessionWith(policy)); }
  v1::Session Listed(const std::string& name) {
    v1::ListSessionsResponse response;
    const auto context = client_.Context();
    EXPECT_TRUE(client_.sessions().ListSessions(context.get(), {}, &response).ok());
    for (const v1::Session& session : response.sessions()) {
      if (session.name() == name) return session;
    }
    return {};
  }

  TestServer server_ = TestServer([](ServerOptions& options) {
    options.http_listen = {.host = "127.0.0.1", .port = 0};
    options.device = {.kind = "emulated", .folder = EBB_LIBRARIES, .arena_bytes = kPages * kPageBytes};
  });
  TestClient client_ = TestClient(server_.address());
};

TEST_F(GpuPlacementTest, EveryCallThatShowsASessionSaysWhereItIsComputedAndWhy) {
  const struct {
    const char* counted;  // empty: the GPU computes it
    v1::PolicySpec policy;
    const char* begins;
    const char* names;  // what would have been right
  } cases[] = {
      {"", PolicyOf("h2o", 24), "", ""},
      {"policy", PolicyOf("scissorhands", 24), "policy.scorer: 'scissorhands'", "h2o"},
      {"kv_type", OfType(PolicyOf("h2o", 24), v1::KV_TYPE_F16), "policy.cache.kv_dtype: f16", "bf16"},
      {"size", PolicyOf("h2o", 300), "its cache takes 20 pages", "which has 16 (model.gpu_arena)"},
  };
  std::map<std::string, double> counted;
  for (const auto& c : cases) {
    SCOPED_TRACE(c.counted);
    const bool on_gpu = std::string(c.counted).empty();
    const v1::Session made = Create(c.policy);
    for (const v1::Session& session : {made, client_.Get(made.name()), Listed(made.name())}) {
      EXPECT_EQ(session.worker(), on_gpu ? kGpu : "cpu");
      EXPECT_EQ(session.worker_reason().empty(), on_gpu);
      EXPECT_THAT(session.worker_reason(), StartsWith(c.begins));
      EXPECT_THAT(session.worker_reason(), HasSubstr(c.names));
    }
    // A branch is where its session is.
    v1::ForkSessionRequest fork;
    fork.set_session(made.name());
    v1::Session branch;
    const auto context = client_.Context();
    ASSERT_TRUE(client_.sessions().ForkSession(context.get(), fork, &branch).ok());
    EXPECT_EQ(branch.worker(), made.worker());
    EXPECT_EQ(branch.worker_reason(), made.worker_reason());
    if (!on_gpu) counted[c.counted] = 2;
    ExpectCounted(counted);
  }
}

TEST_F(GpuPlacementTest, WhatIsDoneToASessionMovesIt) {
  const std::string name = Create(PolicyOf("h2o", 24)).name();
  ASSERT_TRUE(client_.Prefill(PrefillText(name, kStormyNight)).ok());
  ASSERT_EQ(client_.Get(name).worker(), kGpu);

  SetPolicy(name, PolicyOf("scissorhands", 24));
  EXPECT_EQ(client_.Get(name).worker(), "cpu");
  ExpectCounted({{"policy", 1}});
  SetPolicy(name, PolicyOf("h2o", 24));
  EXPECT_EQ(client_.Get(name).worker(), kGpu);
  EXPECT_THAT(client_.Get(name).worker_reason(), IsEmpty());

  v1::EvictRequest request;  // of whom lanes hold unequally many
  request.set_session(name);
  request.mutable_range()->set_start(4);
  request.mutable_range()->set_end(70);
  v1::EvictResponse response;
  const auto context = client_.Context();
  ASSERT_TRUE(client_.eviction().Evict(context.get(), request, &response).ok());
  EXPECT_EQ(client_.Get(name).worker(), "cpu");
  EXPECT_THAT(client_.Get(name).worker_reason(), HasSubstr("its lanes hold unequally many tokens"));
  ExpectCounted({{"policy", 1}, {"history", 1}});
}

TEST(CpuPlacement, WithoutAGpuThereIsNothingToExplain) {
  TestServer server;
  TestClient client(server.address());
  const v1::Session session = client.Create(SessionWith(PolicyOf("scissorhands", 24)));
  EXPECT_EQ(session.worker(), "cpu");
  EXPECT_THAT(session.worker_reason(), IsEmpty());
}

}  // namespace
}  // namespace ebb
