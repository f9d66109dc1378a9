// Tenants that share a server: each quota refused over the wire and free again, and work shared by weight under load.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using client::ReadDetails;
using Code = grpc::StatusCode;
using ::testing::ElementsAre;
using ::testing::MatchesRegex;
using ::testing::Pair;

constexpr char kTwenty[] = "twenty characters ..";  // 21 tokens with the begin token

class Tenants : public testing::Test {
 protected:
  // Of acme, from now on.
  void Limit(const TenantLimits& limits) {
    ASSERT_THAT(server_.server().SetTenants({.listed = {{"acme", limits}}}), IsOk());
  }

  static void ExpectOver(const grpc::Status& status, const std::string& reason, const std::string& message) {
    EXPECT_EQ(status.error_code(), Code::RESOURCE_EXHAUSTED);
    EXPECT_EQ(ReadDetails(status).reason, reason);
    EXPECT_EQ(status.error_message(), message);
    EXPECT_FALSE(ReadDetails(status).retry) << "waiting alone does not help";
  }

  grpc::Status Fork(const std::string& session, v1::Session* branch) {
    v1::ForkSessionRequest request;
    request.set_session(session);
    return acme_.sessions().ForkSession(acme_.Context().get(), request, branch);
  }
  grpc::Status Save(const std::string& session, const std::string& id, v1::SaveSessionResponse* response) {
    v1::SaveSessionRequest request;
    request.set_session(session);
    request.set_snapshot_id(id);
    return acme_.sessions().SaveSession(acme_.Context().get(), request, response);
  }

  const TemporaryFolder folder_;
  TestServer server_{[this](ServerOptions& options) { options.store_dir = folder_.path() + "/store"; }};
  TestClient acme_{server_.address(), "acme"};
  TestClient other_{server_.address(), "other"};
};

TEST_F(Tenants, SessionsAreRefusedAndFreedAgain) {
  Limit({.sessions_max = 1});
  const v1::CreateSessionRequest request = SessionWith(StreamingPolicy(16));
  const std::string name = acme_.Create(request).name();
  v1::Session session;
  const grpc::Status status = acme_.Create(request, &session);
  ExpectOver(status, "TENANT_SESSIONS",
             "tenant acme has 1 open sessions; 1 more is over its tenants.acme.sessions_max, 1");
  auto numbers = ReadDetails(status).metadata;
  EXPECT_THAT(numbers, ElementsAre(Pair("limit", "1"), Pair("quota", "tenants.acme.sessions_max"), Pair("used", "1"),
                                   Pair("wanted", "1")));
  EXPECT_EQ(acme_.Generate(GenerateText("", "a", 1)).status.error_code(), Code::RESOURCE_EXHAUSTED)
      << "a throw-away session is one";
  EXPECT_TRUE(other_.Create(request, &session).ok());
  ASSERT_TRUE(acme_.Delete(name).ok());
  EXPECT_TRUE(acme_.Create(request, &session).ok());
}

TEST_F(Tenants, AnAdminGivesThemOtherSettingsWhileTheyCall) {
  ASSERT_THAT(server_.server().SetTenants({.listed = {{"filed", {.weight = 3, .calls_max = 7}}}}), IsOk());
  v1::SetTenantRequest request;
  v1::Tenant tenant;
  const auto set = [&] { return acme_.admin().SetTenant(acme_.Context().get(), request, &tenant); };
  request.mutable_tenant()->set_name("tenants/acme");
  request.mutable_tenant()->set_sessions_max(1);
  request.mutable_tenant()->set_priority(v1::TENANT_PRIORITY_LOW);
  *request.mutable_tenant()->mutable_policy() = StreamingPolicy(24);
  ASSERT_TRUE(set().ok());
  EXPECT_EQ(tenant.priority(), v1::TENANT_PRIORITY_LOW);
  EXPECT_EQ(tenant.weight(), 1U);
  EXPECT_EQ(tenant.policy().trigger().budget(), 24U);

  const v1::Session session = acme_.Create({});
  EXPECT_EQ(session.policy().trigger().budget(), 24U) << "the policy of sessions that name none";
  v1::Session another;
  EXPECT_EQ(ReadDetails(acme_.Create(v1::CreateSessionRequest(), &another)).reason, "TENANT_SESSIONS");

  // What is absent stays; what is there is changed.
  request.mutable_tenant()->Clear();
  request.mutable_tenant()->set_name("tenants/acme");
  request.mutable_tenant()->set_sessions_max(5);
  ASSERT_TRUE(set().ok());
  EXPECT_EQ(tenant.policy().trigger().budget(), 24U);
  EXPECT_EQ(tenant.priority(), v1::TENANT_PRIORITY_LOW);
  EXPECT_TRUE(acme_.Create(v1::CreateSessionRequest(), &another).ok());

  const auto listed = [&](const std::string& after, uint32_t size) {
    v1::ListTenantsRequest ask;
    ask.set_page_size(size);
    ask.set_page_token(after);
    v1::ListTenantsResponse answer;
    EXPECT_TRUE(acme_.admin().ListTenants(acme_.Context().get(), ask, &answer).ok());
    return answer;
  };
  const v1::ListTenantsResponse all = listed("", 0);
  ASSERT_EQ(all.tenants_size(), 2);
  EXPECT_EQ(all.tenants(0).name(), "tenants/acme");
  EXPECT_FALSE(all.tenants(0).configured());
  std::map<std::string, uint64_t> used;
  for (const v1::TenantUse& use : all.tenants(0).use()) used[use.quota()] = use.used();
  EXPECT_EQ(used["sessions_max"], 2U);
  EXPECT_GT(used["cache_max"], 0U);
  EXPECT_EQ(all.tenants(1).name(), "tenants/filed");
  EXPECT_TRUE(all.tenants(1).configured());
  EXPECT_EQ(all.tenants(1).weight(), 3U);
  EXPECT_EQ(all.tenants(1).calls_max(), 7U);
  const v1::ListTenantsResponse first = listed("", 1);
  ASSERT_EQ(first.tenants_size(), 1);
  EXPECT_EQ(listed(first.next_page_token(), 1).tenants(0).name(), "tenants/filed");
  EXPECT_EQ(listed("filed", 1).tenants_size(), 0);

  // Defaults again: as if nobody had said anything.
  request.mutable_tenant()->set_sessions_max(0);
  request.mutable_tenant()->set_priority(v1::TENANT_PRIORITY_NORMAL);
  request.mutable_tenant()->mutable_policy();
  ASSERT_TRUE(set().ok());
  EXPECT_FALSE(tenant.has_policy());
  for (const std::string& name : {session.name(), another.name()}) ASSERT_TRUE(acme_.Delete(name).ok());
  EXPECT_EQ(listed("", 0).tenants_size(), 1);
}

TEST_F(Tenants, AnAdminIsToldWhatCannotBeSet) {
  ASSERT_THAT(server_.server().SetTenants({.listed = {{"filed", {.weight = 3}}}}), IsOk());
  const auto refused = [&](const v1::Tenant& proto) {
    v1::SetTenantRequest request;
    *request.mutable_tenant() = proto;
    v1::Tenant tenant;
    return acme_.admin().SetTenant(acme_.Context().get(), request, &tenant);
  };
  v1::Tenant tenant;
  tenant.set_name("acme");
  EXPECT_EQ(ReadDetails(refused(tenant)).field, "tenant.name");
  tenant.set_name("tenants/filed");
  EXPECT_EQ(ReadDetails(refused(tenant)).reason, "TENANT_CONFIGURED");
  tenant.set_name("tenants/acme");
  tenant.set_weight(1001);
  EXPECT_EQ(refused(tenant).error_message(), "tenant.weight: 1001 is not in [1, 1000]");
  tenant.set_weight(2);
  tenant.mutable_policy()->mutable_trigger()->set_budget(1);
  EXPECT_EQ(ReadDetails(refused(tenant)).field.substr(0, 14), "tenant.policy.");
  tenant.clear_policy();
  tenant.set_priority(static_cast<v1::TenantPriority>(9));
  EXPECT_EQ(ReadDetails(refused(tenant)).reason, "UNKNOWN_ENUM_VALUE");

  // What the configuration begins to name is its own from then on.
  tenant.set_priority(v1::TENANT_PRIORITY_HIGH);
  ASSERT_TRUE(refused(tenant).ok());
  ASSERT_THAT(server_.server().SetTenants({.listed = {{"acme", {.weight = 9}}}}), IsOk());
  EXPECT_EQ(ReadDetails(refused(tenant)).reason, "TENANT_CONFIGURED");
  ASSERT_THAT(server_.server().SetTenants({}), IsOk());
  EXPECT_TRUE(refused(tenant).ok());

  for (int i = 1; i < 1000; ++i) {
    tenant.set_name(absl::StrFormat("tenants/other-%d", i));
    ASSERT_TRUE(refused(tenant).ok());
  }
  tenant.set_name("tenants/one-more");
  EXPECT_EQ(ReadDetails(refused(tenant)).reason, "TENANTS_FULL");
}

// The configuration's tenant_defaults.
TEST_F(Tenants, WhoIsNotListedHasQuotasToo) {
  const auto unlisted = [&](const TenantLimits& limits) {
    return server_.server().SetTenants({.listed = {{"filed", {}}}, .unlisted = limits});
  };
  ASSERT_THAT(unlisted({.sessions_max = 1, .policy = R"({"h2o": {}, "trigger": {"budget": 48}})"}), IsOk());
  TestClient filed(server_.address(), "filed");
  v1::Session session;
  for (TestClient* const client : {&acme_, &other_}) {
    EXPECT_TRUE(client->Create({}).policy().has_h2o());
    EXPECT_EQ(ReadDetails(client->Create(v1::CreateSessionRequest(), &session)).reason, "TENANT_SESSIONS");
  }
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(filed.Create({}).policy().has_h2o());

  // An admin begins with what the tenant has.
  v1::SetTenantRequest request;
  v1::Tenant tenant;
  request.mutable_tenant()->set_name("tenants/acme");
  request.mutable_tenant()->set_weight(5);
  ASSERT_TRUE(acme_.admin().SetTenant(acme_.Context().get(), request, &tenant).ok());
  EXPECT_EQ(tenant.sessions_max(), 1U);
  EXPECT_EQ(tenant.policy().trigger().budget(), 48U);

  // And what was not changed changes with all others'.
  ASSERT_THAT(unlisted({.sessions_max = 2}), IsOk());
  for (TestClient* const client : {&acme_, &other_}) {
    EXPECT_FALSE(client->Create({}).policy().has_h2o());
    EXPECT_EQ(ReadDetails(client->Create(v1::CreateSessionRequest(), &session)).reason, "TENANT_SESSIONS");
  }
  v1::ListTenantsResponse list;
  ASSERT_TRUE(acme_.admin().ListTenants(acme_.Context().get(), {}, &list).ok());
  std::string text;
  for (const v1::Tenant& each : list.tenants()) {
    text += absl::StrFormat("%s %d %d\n", each.name(), each.weight(), each.sessions_max());
  }
  EXPECT_EQ(text, "tenants/acme 5 2\ntenants/filed 1 0\ntenants/other 1 2\n");

  EXPECT_THAT(unlisted({.policy = "h2o"}),
              IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_VALUE", "tenant_defaults.policy"));
  EXPECT_FALSE(other_.Create(v1::CreateSessionRequest(), &session).ok()) << "nothing was changed";
}

TEST_F(Tenants, BranchesAreRefusedAndFreedAgain) {
  Limit({.forks_max = 1});
  const std::string name = acme_.Create(SessionWith(StreamingPolicy(16))).name();
  v1::Session branch;
  v1::Session more;
  ASSERT_TRUE(Fork(name, &branch).ok());
  ExpectOver(Fork(name, &more), "TENANT_FORKS",
             "tenant acme has 1 open branches; 1 more is over its tenants.acme.forks_max, 1");
  ASSERT_TRUE(acme_.Delete(name).ok());
  ExpectOver(Fork(branch.name(), &more), "TENANT_FORKS",
             "tenant acme has 1 open branches; 1 more is over its tenants.acme.forks_max, 1");
  ASSERT_TRUE(acme_.Delete(branch.name()).ok());
  EXPECT_TRUE(Fork(acme_.Create(SessionWith(StreamingPolicy(16))).name(), &more).ok());
}

TEST_F(Tenants, CallsAreRefusedAndFreedAgain) {
  Limit({.calls_max = 1});
  const std::string name = acme_.Create(SessionWith(StreamingPolicy(16))).name();
  const std::string idle = acme_.Create(SessionWith(StreamingPolicy(16))).name();
  ASSERT_TRUE(acme_.Prefill(PrefillText(name, "a")).ok());
  const auto context = acme_.Context();
  const auto reader = acme_.inference().Decode(context.get(), DecodeTokens(name, 1 << 20));
  v1::DecodeResponse message;
  ASSERT_TRUE(reader->Read(&message));
  ExpectOver(acme_.Prefill(PrefillText(idle, "a")), "TENANT_CALLS",
             "tenant acme has 1 calls that run or wait; 1 more is over its tenants.acme.calls_max, 1");
  v1::GenerateRequest answers = GenerateText(idle, "a", 1);
  answers.set_n(3);
  ExpectOver(acme_.Generate(answers).status, "TENANT_CALLS",
             "tenant acme has 1 calls that run or wait; 3 more is over its tenants.acme.calls_max, 1");
  context->TryCancel();
  while (reader->Read(&message)) continue;
  EXPECT_EQ(reader->Finish().error_code(), Code::CANCELLED);
  grpc::Status status = acme_.Prefill(PrefillText(idle, "a"));
  while (ReadDetails(status).reason == "TENANT_CALLS") status = acme_.Prefill(PrefillText(idle, "a"));
  EXPECT_TRUE(status.ok()) << client::Describe(status);
}

TEST_F(Tenants, CacheIsRefusedToSessionsBranchesAndPolicies) {
  const v1::Session first = acme_.Create(SessionWith(StreamingPolicy(64)));
  const auto bytes = static_cast<int64_t>(first.reserved_bytes());
  ASSERT_GT(bytes, 0);
  Limit({.cache_bytes_max = 2 * bytes - 1});
  const std::string message =
      absl::StrFormat("tenant acme has %d bytes of cache reserved; %d more is over its tenants.acme.cache_max, %d",
                      bytes, bytes, 2 * bytes - 1);
  v1::Session session;
  ExpectOver(acme_.Create(SessionWith(StreamingPolicy(64)), &session), "TENANT_CACHE", message);
  ExpectOver(Fork(first.name(), &session), "TENANT_CACHE", message);
  v1::SetPolicyRequest grow;
  grow.set_session(first.name());
  *grow.mutable_policy() = StreamingPolicy(1024);
  v1::SetPolicyResponse response;
  const auto set = [&] { return acme_.eviction().SetPolicy(acme_.Context().get(), grow, &response); };
  EXPECT_EQ(ReadDetails(set()).reason, "TENANT_CACHE");
  EXPECT_EQ(acme_.Get(first.name()).reserved_bytes(), first.reserved_bytes());
  EXPECT_TRUE(other_.Create(SessionWith(StreamingPolicy(1024)), &session).ok());

  *grow.mutable_policy() = StreamingPolicy(16);
  ASSERT_TRUE(set().ok()) << "smaller is always let through";
  EXPECT_TRUE(acme_.Create(SessionWith(StreamingPolicy(64)), &session).ok()) << "and leaves room";
  Limit({.cache_bytes_max = 1});
  *grow.mutable_policy() = StreamingPolicy(12);
  EXPECT_TRUE(set().ok()) << "of a tenant that has more than it may, too";
}

TEST_F(Tenants, TokensOfAMinuteAreRefusedWithTheTimeUntilThereIsOne) {
  Limit({.tokens_per_minute = 30});
  const std::string name = acme_.Create(SessionWith(StreamingPolicy(64))).name();
  ASSERT_TRUE(acme_.Prefill(PrefillText(name, kTwenty)).ok());
  ASSERT_EQ(acme_.Decode(DecodeTokens(name, 100)).tokens.size(), 100U) << "nine are left, so it is let in";
  const grpc::Status status = acme_.Decode(DecodeTokens(name, 1)).status;
  EXPECT_EQ(status.error_code(), Code::RESOURCE_EXHAUSTED);
  const auto details = ReadDetails(status);
  EXPECT_EQ(details.reason, "TENANT_TOKENS");
  EXPECT_THAT(status.error_message(),
              MatchesRegex("tenant acme has 1[0-9]+ tokens of this minute taken; 1 more is over its "
                           "tenants.acme.tokens_per_minute, 30; there is room in .*s"));
  ASSERT_TRUE(details.retry);
  EXPECT_GT(*details.retry, absl::Seconds(30)) << "91 are owed, at two seconds each";
  EXPECT_LE(*details.retry, absl::Seconds(2 * 92));
  EXPECT_EQ(ReadDetails(acme_.Prefill(PrefillText(name, "a"))).reason, "TENANT_TOKENS");
  EXPECT_TRUE(acme_.Delete(name).ok()) << "what runs no token is free";
  const std::string again = acme_.Create(SessionWith(StreamingPolicy(64))).name();
  EXPECT_EQ(ReadDetails(acme_.Prefill(PrefillText(again, "a"))).reason, "TENANT_TOKENS")
      << "the session is not who owes";
  Limit({.tokens_per_minute = 1000});
  EXPECT_TRUE(acme_.Prefill(PrefillText(again, "a")).ok());
}

TEST_F(Tenants, SizeOfSnapshotsIsRefusedAndFreedAgain) {
  const std::string name = acme_.Create(SessionWith(StreamingPolicy(32))).name();
  ASSERT_TRUE(acme_.Prefill(PrefillText(name, kTwenty)).ok());
  v1::SaveSessionResponse saved;
  ASSERT_TRUE(Save(name, "one", &saved).ok());
  const auto bytes = static_cast<int64_t>(saved.snapshot().bytes());
  Limit({.snapshot_bytes_max = 2 * bytes - 1});
  ExpectOver(Save(name, "two", &saved), "TENANT_SNAPSHOT_BYTES",
             absl::StrFormat(
                 "tenant acme has %d bytes of snapshots kept; %d more is over its tenants.acme.snapshot_size_max, %d",
                 bytes, bytes, 2 * bytes - 1));
  EXPECT_TRUE(Save(name, "one", &saved).ok()) << "it takes its own place";
  v1::DeleteSnapshotRequest remove;
  remove.set_name("snapshots/one");
  v1::DeleteSnapshotResponse removed;
  ASSERT_TRUE(acme_.sessions().DeleteSnapshot(acme_.Context().get(), remove, &removed).ok());
  EXPECT_TRUE(Save(name, "two", &saved).ok());
}

TEST_F(Tenants, WhatTheirSnapshotsTakeIsSeenUntilTheyAreDeleted) {
  const TemporaryFolder folder;
  const auto start = [&] {
    return std::make_unique<TestServer>([&](ServerOptions& options) {
      options.store_dir = folder.path() + "/store";
      options.http_listen = {.host = "127.0.0.1", .port = 0};
      options.work.tenants.listed["acme"] = {.snapshot_bytes_max = 1 << 30};
    });
  };
  auto server = start();
  auto acme = std::make_unique<TestClient>(server->address(), "acme");
  const auto save = [&](const std::string& session, const std::string& id) {
    v1::SaveSessionRequest request;
    request.set_session(session);
    request.set_snapshot_id(id);
    v1::SaveSessionResponse response;
    EXPECT_TRUE(acme->sessions().SaveSession(acme->Context().get(), request, &response).ok());
    return response.snapshot().bytes();
  };
  const auto remove = [&](const std::string& id) {
    v1::DeleteSnapshotRequest request;
    request.set_name("snapshots/" + id);
    v1::DeleteSnapshotResponse response;
    EXPECT_TRUE(acme->sessions().DeleteSnapshot(acme->Context().get(), request, &response).ok());
  };
  const auto expect_seen = [&](uint64_t bytes) {
    EXPECT_EQ(server->Metric("ebb_quota_used{tenant=\"acme\",quota=\"snapshot_bytes\"}"), static_cast<double>(bytes));
    v1::ListTenantsResponse tenants;
    ASSERT_TRUE(acme->admin().ListTenants(acme->Context().get(), {}, &tenants).ok());
    ASSERT_EQ(tenants.tenants_size(), 1);
    std::map<std::string, uint64_t> used;
    for (const v1::TenantUse& use : tenants.tenants(0).use()) used[use.quota()] = use.used();
    ASSERT_TRUE(used.contains("snapshot_size_max"));
    EXPECT_EQ(used["snapshot_size_max"], bytes);
  };
  expect_seen(0);
  const std::string name = acme->Create(SessionWith(StreamingPolicy(32))).name();
  const uint64_t one = save(name, "one");
  expect_seen(one);
  ASSERT_TRUE(acme->Prefill(PrefillText(name, kTwenty)).ok());
  const uint64_t two = save(name, "two");
  expect_seen(one + two);
  ASSERT_GT(save(name, "one"), one);
  expect_seen(2 * two);  // the new one in the old one's place

  acme.reset();
  server.reset();
  server = start();
  acme = std::make_unique<TestClient>(server->address(), "acme");
  expect_seen(2 * two);
  remove("one");
  expect_seen(two);
  remove("two");
  expect_seen(0);
}

TEST_F(Tenants, APolicyOfTheirOwnIsForSessionsThatNameNone) {
  const std::string json = R"({"h2o": {}, "trigger": {"budget": 48}})";
  Limit({.policy = json});
  EXPECT_TRUE(acme_.Create({}).policy().has_h2o());
  EXPECT_EQ(acme_.Create({}).policy().trigger().budget(), 48U);
  EXPECT_TRUE(acme_.Create(SessionWith(StreamingPolicy(16))).policy().has_streaming());
  EXPECT_FALSE(other_.Create({}).policy().has_h2o());
  EXPECT_TRUE(acme_.Generate(GenerateText("", "a", 200)).status.ok());

  const auto set = [&](const std::string& policy) {
    return server_.server().SetTenants({.listed = {{"acme", {.policy = policy}}}});
  };
  EXPECT_THAT(set("h2o"), IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_VALUE", "tenants.acme.policy"));
  EXPECT_THAT(set(R"({"h2o": {}, "trigger": {"budget": 4}, "protect": {"sinks": 4, "recent": 2}})"),
              IsRefusal(absl::StatusCode::kInvalidArgument, "BUDGET_TOO_SMALL", "tenants.acme.policy.trigger.budget"));
  EXPECT_TRUE(acme_.Create({}).policy().has_h2o()) << "nothing was changed";
}

// Streams of three tenants, more than a step has rows for, none of which ends by itself.
class Saturated : public testing::Test {
 protected:
  static constexpr int kStreams = 8;  // of each tenant, more than the rows of a step
  static constexpr std::array<int32_t, 3> kWeights = {1, 2, 4};

  struct Stream {
    std::unique_ptr<grpc::ClientContext> context;
    std::thread reader;
  };

  static std::string Name(size_t tenant) { return "t" + std::to_string(kWeights.at(tenant)); }

  // Every session has read its prompt, and generates.
  void Begin() {
    for (size_t tenant = 0; tenant < kWeights.size(); ++tenant) {
      TestClient& client = *clients_.emplace_back(std::make_unique<TestClient>(server_.address(), Name(tenant)));
      for (int i = 0; i < kStreams; ++i) {
        const std::string name = client.Create(SessionWith(StreamingPolicy(16))).name();
        ASSERT_TRUE(client.Prefill(PrefillText(name, "a")).ok());
        Stream& stream = streams_[tenant].emplace_back(Stream{client.Context(), {}});
        grpc::ClientContext* const context = stream.context.get();
        stream.reader = std::thread([&client, context, name] {
          const auto reader = client.inference().Decode(context, DecodeTokens(name, 1 << 20));
          v1::DecodeResponse message;
          while (reader->Read(&message)) continue;
          reader->Finish();
        });
      }
    }
    while (clients_[0]->Status().work().requests_running() < kStreams * kWeights.size()) continue;
  }

  // The server, too, knows that they are over.
  void End(size_t tenant) {
    for (Stream& stream : streams_[tenant]) stream.context->TryCancel();
    for (Stream& stream : streams_[tenant]) stream.reader.join();
    streams_[tenant].clear();
    size_t left = 0;
    for (const auto& [other, streams] : streams_) left += streams.size();
    while (clients_[0]->Status().work().requests_running() > left) continue;
  }

  // Tokens of each tenant, while all together are served `total`.
  std::array<double, 3> Served(double total) const {
    std::array<std::string, 3> series;
    for (size_t i = 0; i < series.size(); ++i) {
      series.at(i) = "ebb_completion_tokens_total{tenant=\"" + Name(i) + "\"}";
    }
    const std::vector<double> before = server_.Metrics(series);
    std::array<double, 3> served = {};
    while (served[0] + served[1] + served[2] < total) {
      const std::vector<double> now = server_.Metrics(series);
      for (size_t i = 0; i < served.size(); ++i) served.at(i) = now.at(i) - before.at(i);
    }
    return served;
  }

  // No stream waits for its reader, so that the scheduler alone decides.
  TestServer server_{[](ServerOptions& options) {
    options.http_listen = Address{.host = "127.0.0.1", .port = 0};
    options.stream_buffer = 1 << 20;
    options.work.step_rows_max = 7;
    for (const int32_t weight : kWeights) options.work.tenants.listed["t" + std::to_string(weight)].weight = weight;
  }};
  std::vector<std::unique_ptr<TestClient>> clients_;
  std::map<size_t, std::vector<Stream>> streams_;
};

TEST_F(Saturated, TenantsAreServedByWeightAndWhatOneLeavesTheOthersUse) {
  Begin();
  if (HasFatalFailure()) return;
  const std::array<double, 3> served = Served(7000);
  const double all = served[0] + served[1] + served[2];
  for (size_t i = 0; i < served.size(); ++i) {
    const double share = kWeights.at(i) / 7.0;
    EXPECT_LE(std::abs(served.at(i) / all / share - 1), 0.05)
        << Name(i) << " was served " << served.at(i) << " of " << all;
  }
  End(2);
  const std::array<double, 3> rest = Served(6000);
  const double two = rest[0] + rest[1];
  EXPECT_EQ(rest[2], 0) << "the streams were over";
  EXPECT_LE(std::abs(rest[0] / two * 3 - 1), 0.05) << rest[0] << " of " << two;
  EXPECT_LE(std::abs(rest[1] / two * 3 / 2 - 1), 0.05) << rest[1] << " of " << two;
  End(0);
  End(1);
}

}  // namespace
}  // namespace ebb
