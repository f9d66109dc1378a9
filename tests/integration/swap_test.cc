// Sessions that leave their pages to others and come back, as clients see them: as if they had never been away.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/integration/swapping.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using client::ReadDetails;
using ::testing::SizeIs;
using Code = grpc::StatusCode;

// What a client does to a session, each with what it was told.
using Deed = std::function<std::string(TestClient&, const std::string&)>;

template <typename Response, typename Stub, typename Method, typename Request>
std::string Told(TestClient& client, Stub& stub, Method method, const Request& request) {
  Response response;
  const grpc::Status status = (stub.*method)(client.Context().get(), request, &response);
  EXPECT_TRUE(status.ok()) << client::Describe(status);
  if constexpr (requires { response.clear_timings(); }) response.clear_timings();
  if constexpr (requires { response.clear_elapsed_ms(); }) response.clear_elapsed_ms();
  return response.DebugString();
}

std::string Prefills(TestClient& client, const std::string& name) {
  const grpc::Status status = client.Prefill(PrefillText(name, "And on."));
  EXPECT_TRUE(status.ok()) << client::Describe(status);
  return {};
}
std::string Generates(TestClient& client, const std::string& name) {
  const Answer answer = client.Generate(GenerateText(name, "And?", 5));
  EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
  return testing::PrintToString(answer.tokens);
}
std::string Resumes(TestClient& client, const std::string& name) {
  v1::DecodeRequest request = DecodeTokens(name, 9);
  request.set_resume_from(client.Get(name).tokens() - 4);
  const Answer answer = client.Decode(request);
  EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
  return testing::PrintToString(answer.tokens);
}
std::string Verifies(TestClient& client, const std::string& name) {
  v1::VerifyRequest request;
  request.set_session(name);
  for (const uint32_t token : {4, 9, 4}) request.add_draft_tokens(token);
  request.set_mode(v1::VERIFY_MODE_AUTO);
  return Told<v1::VerifyResponse>(client, client.inference(), &v1::InferenceService::Stub::Verify, request);
}
std::string AcceptsNothing(TestClient& client, const std::string& name) {
  v1::AcceptRequest request;
  request.set_session(name);
  v1::AcceptResponse response;
  const grpc::Status status = client.inference().Accept(client.Context().get(), request, &response);
  return ReadDetails(status).reason;  // NO_DRAFT: a draft that waits keeps its session in memory
}
std::string Edits(TestClient& client, const std::string& name) {
  v1::EditRequest request;
  request.set_session(name);
  request.set_mode(v1::EDIT_MODE_RECOMPUTE_TAIL);
  v1::EditSpan& span = *request.add_spans();
  const uint64_t tokens = client.Get(name).tokens();
  span.set_start(tokens - 6);
  span.set_end(tokens - 3);
  span.mutable_tokens()->add_ids(7);
  return Told<v1::EditResponse>(client, client.inference(), &v1::InferenceService::Stub::Edit, request);
}
std::string Evicts(TestClient& client, const std::string& name) {
  v1::EvictRequest request;
  request.set_session(name);
  request.mutable_keep()->set_count(20);
  request.mutable_keep()->set_scorer("streaming");
  return Told<v1::EvictResponse>(client, client.eviction(), &v1::EvictionService::Stub::Evict, request);
}
std::string SetsPolicy(TestClient& client, const std::string& name) {
  v1::SetPolicyRequest request;
  request.set_session(name);
  *request.mutable_policy() = StreamingPolicy(60);
  request.mutable_policy()->mutable_tova();
  return Told<v1::SetPolicyResponse>(client, client.eviction(), &v1::EvictionService::Stub::SetPolicy, request);
}
std::string Forks(TestClient& client, const std::string& name) {
  v1::ForkSessionRequest request;
  request.set_session(name);
  request.set_session_id("branch");
  request.mutable_sampling()->set_seed(3);
  v1::Session branch;
  const grpc::Status status = client.sessions().ForkSession(client.Context().get(), request, &branch);
  EXPECT_TRUE(status.ok()) << client::Describe(status);
  const std::string tokens = Decodes(client, branch.name());
  EXPECT_TRUE(client.Delete(branch.name()).ok());
  return tokens;
}
std::string Saves(TestClient& client, const std::string& name) {
  v1::SaveSessionRequest request;
  request.set_session(name);
  request.set_snapshot_id("saved");
  v1::SaveSessionResponse response;
  const grpc::Status status = client.sessions().SaveSession(client.Context().get(), request, &response);
  EXPECT_TRUE(status.ok()) << client::Describe(status);
  v1::RestoreSessionRequest restore;
  restore.set_snapshot("snapshots/saved");
  v1::Session restored;
  EXPECT_TRUE(client.sessions().RestoreSession(client.Context().get(), restore, &restored).ok());
  const std::string tokens = Decodes(client, restored.name());
  EXPECT_TRUE(client.Delete(restored.name()).ok());
  return absl::StrFormat("%d %d %s", response.generation(), response.tokens(), tokens);
}

TEST_F(SwapTest, MoreSessionsThanMemoryHoldsAllLiveOnAsIfTheyWereAlone) {
  const TestServer roomy;
  TestClient calm(roomy.address());
  std::vector<std::string> names;
  for (const char* scorer : {"full", "h2o", "tova", "snapkv", "semantic", "streaming"}) {
    for (int i = 0; i < 3; ++i) {
      const std::string id = absl::StrFormat("%s-%d", scorer, i);
      Open(calm, id, scorer);
      names.push_back(Open(*client_, id, scorer));
    }
  }
  uint64_t needed = 0;
  for (const std::string& name : names) needed += calm.Get(name).reserved_bytes();
  ASSERT_GT(needed, 2 * client_->Status().cache().pages_total() * client_->Status().cache().page_bytes());
  for (int round = 0; round < kRounds; ++round) {
    for (const std::string& name : names) ASSERT_EQ(Decodes(*client_, name), Decodes(calm, name)) << name << round;
  }
  EXPECT_EQ(client_->Status().work().sessions(), names.size());
  EXPECT_GT(Metric("ebb_swapped_sessions"), 0);
  EXPECT_EQ(Metric("ebb_kv_pages{state=\"free\"}") + Metric("ebb_kv_pages{state=\"owned\"}"),
            Metric("ebb_kv_pages_limit"));
  for (const std::string& name : names) EXPECT_EQ(Seen(*client_, name), Seen(calm, name)) << name;
  const double out = Metric("ebb_swaps_total{direction=\"out\"}");
  EXPECT_GT(Metric("ebb_swap_bytes_total{direction=\"out\"}"), 0);
  EXPECT_EQ(Metric("ebb_swap_seconds_count{direction=\"out\"}"), out);
  EXPECT_EQ(Metric("ebb_swaps_total{direction=\"in\"}"), out - Metric("ebb_swapped_sessions"));
  EXPECT_EQ(Metric("ebb_swap_failures_total{direction=\"out\"}"), 0);
  for (const std::string& name : names) ASSERT_TRUE(client_->Delete(name).ok());
  ExpectNothingIsLeft();
}

TEST_F(SwapTest, EveryCallOnASwappedSessionIsWhatItIsOnOneInMemory) {
  const TemporaryFolder other;
  const auto roomy = StartOn(other.path(), {.arena_bytes = 64 << 20});
  TestClient calm(roomy->address());
  const std::map<std::string, Deed> deeds = {
      {"Prefill", Prefills},   {"Decode", Decodes},        {"Generate", Generates}, {"resume", Resumes},
      {"Verify", Verifies},    {"Accept", AcceptsNothing}, {"Edit", Edits},         {"Evict", Evicts},
      {"DescribeCache", Seen}, {"SetPolicy", SetsPolicy},  {"ForkSession", Forks},  {"SaveSession", Saves}};
  const std::string right = Open(calm, "a", "h2o");
  const std::string name = Open(*client_, "a", "h2o");
  for (const auto& [what, deed] : deeds) {
    SCOPED_TRACE(what);
    SendAway(name);
    v1::Session shown = client_->Get(name);
    const v1::Session before = calm.Get(right);
    EXPECT_EQ(shown.reserved_bytes(), 0U);
    EXPECT_EQ(shown.tokens(), before.tokens());
    EXPECT_EQ(shown.used_bytes(), before.used_bytes());
    EXPECT_EQ(shown.generation(), before.generation());
    EXPECT_EQ(shown.policy().DebugString(), before.policy().DebugString());
    EXPECT_EQ(deed(*client_, name), deed(calm, right));
    EXPECT_EQ(Seen(*client_, name), Seen(calm, right));
    EXPECT_EQ(Decodes(*client_, name), Decodes(calm, right));
    DeleteFillers();
  }
  ASSERT_TRUE(client_->Delete(name).ok());
  ExpectNothingIsLeft();
}

TEST_F(SwapTest, IsDeletedAndExpiresWithoutComingBack) {
  const std::string name = Open(*client_, "a", "h2o");
  v1::CreateSessionRequest brief = Wanted("brief", "h2o");
  brief.mutable_ttl()->set_seconds(5);  // so long may it take until it is away
  SendAway(name);
  FilesWhenThereAre(static_cast<size_t>(Metric("ebb_swapped_sessions")));
  v1::DeleteSessionRequest request;
  request.set_name(name);
  v1::DeleteSessionResponse response;
  ASSERT_TRUE(client_->sessions().DeleteSession(client_->Context().get(), request, &response).ok());
  EXPECT_EQ(response.freed_bytes(), 0U);
  DeleteFillers();
  FilesWhenThereAre(0);

  client_->Create(brief);
  SendAway("sessions/brief");
  v1::GetSessionRequest get;
  get.set_name("sessions/brief");
  v1::Session session;
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (client_->sessions().GetSession(client_->Context().get(), get, &session).ok()) {
    ASSERT_LT(std::chrono::steady_clock::now(), end);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(Metric("ebb_expired_sessions_total{tenant=\"default\"}"), 1);
  EXPECT_EQ(Metric("ebb_swaps_total{direction=\"in\"}"), 0);
  DeleteFillers();
  ExpectNothingIsLeft();
}

TEST_F(SwapTest, WhoFindsNoRoomIsRefusedAndLosesNothing) {
  const TestServer roomy;
  TestClient calm(roomy.address());
  Open(calm, "a", "h2o");
  const std::string name = Open(*client_, "a", "h2o");
  SendAway(name);
  // Drafts that wait keep their sessions in memory.
  const auto draft = [&](const std::string& session) {
    v1::VerifyRequest verify;
    verify.set_session(session);
    verify.add_draft_tokens(4);
    verify.set_mode(v1::VERIFY_MODE_MANUAL);
    v1::VerifyResponse verified;
    return client_->inference().Verify(client_->Context().get(), verify, &verified);
  };
  std::vector<std::string> drafting;
  for (int i = 0;; ++i) {
    ASSERT_LT(i, 100);
    v1::Session session;
    if (!client_->Create(Wanted(absl::StrFormat("d%d", i), "streaming"), &session).ok()) break;
    if (!client_->Prefill(PrefillText(session.name(), kText)).ok()) break;
    if (!draft(session.name()).ok()) break;
    drafting.push_back(session.name());
  }
  const grpc::Status status = client_->Decode(DecodeTokens(name, 1)).status;
  ExpectRefusal(status, Code::UNAVAILABLE, "NO_PAGES");
  EXPECT_GT(ReadDetails(status).retry.value_or(absl::ZeroDuration()), absl::ZeroDuration());
  EXPECT_TRUE(IsAway(name));
  for (const std::string& session : drafting) EXPECT_TRUE(client_->Delete(session).ok());
  EXPECT_EQ(Decodes(*client_, name), Decodes(calm, name));
}

TEST_F(SwapTest, TheLimitOfSessionsCountsThoseThatAreAway) {
  client_.reset();
  server_.reset();
  server_ = StartOn(store_.path(), {.arena_bytes = 160 << 10, .sessions_max = 15});
  client_ = std::make_unique<TestClient>(server_->address());
  for (int i = 0; i < 15; ++i) Open(*client_, absl::StrFormat("s%d", i), "h2o");
  EXPECT_GT(Metric("ebb_swapped_sessions"), 0);
  v1::Session session;
  ExpectRefusal(client_->Create(Wanted("more", "h2o"), &session), Code::UNAVAILABLE, "SESSIONS_FULL");
  ASSERT_TRUE(client_->Delete("sessions/s0").ok());
  EXPECT_TRUE(client_->Create(Wanted("more", "h2o"), &session).ok());
}

v1::Session Fork(TestClient& client, const std::string& name, const std::string& id) {
  v1::ForkSessionRequest fork;
  fork.set_session(name);
  fork.set_session_id(id);
  fork.mutable_sampling()->set_seed(5);
  v1::Session branch;
  const grpc::Status status = client.sessions().ForkSession(client.Context().get(), fork, &branch);
  EXPECT_TRUE(status.ok()) << client::Describe(status);
  return branch;
}

// Branches leave with copies of what they share, and come back with pages of their own, as if they had never been away.
TEST_F(SwapTest, BranchesThatSharePagesLeaveAndComeBack) {
  const TestServer roomy;
  TestClient calm(roomy.address());
  std::vector<std::string> names;
  for (const char* scorer : {"full", "h2o"}) {
    const std::string name = Open(*client_, scorer, scorer);
    Open(calm, scorer, scorer);
    for (const char* suffix : {"", "-b", "-c", "-d"}) {
      const std::string id = absl::StrFormat("%s%s", scorer, suffix);
      names.push_back("sessions/" + id);
      if (*suffix == 0) continue;
      EXPECT_GT(Fork(*client_, name, id).shared_bytes(), 0U);
      Fork(calm, name, id);
    }
  }
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 40; ++i) Open(*client_, absl::StrFormat("s%d", i), "h2o");
    for (const std::string& name : names) ASSERT_TRUE(IsAway(name)) << name;
    for (const std::string& name : names) {
      ASSERT_EQ(Decodes(*client_, name), Decodes(calm, name)) << name << round;
      EXPECT_EQ(client_->Get(name).shared_bytes(), 0U) << "it came back to pages of its own";
      ASSERT_EQ(Seen(*client_, name), Seen(calm, name)) << name << round;
    }
    for (int i = 0; i < 40; ++i) EXPECT_TRUE(client_->Delete(absl::StrFormat("sessions/s%d", i)).ok());
  }
  for (const std::string& name : names) EXPECT_TRUE(client_->Delete(name).ok());
  ExpectNothingIsLeft();
}

// SetPolicy, ForkSession and RestoreSession take room from those that are idle, as CreateSession does.
TEST_F(SwapTest, WhoGrowsTakesRoomFromTheIdle) {
  const std::string name = Open(*client_, "a", "h2o");
  v1::SaveSessionRequest save;
  save.set_session(name);
  save.set_snapshot_id("saved");
  v1::SaveSessionResponse saved;
  ASSERT_TRUE(client_->sessions().SaveSession(client_->Context().get(), save, &saved).ok());
  SendAway(name);  // no room is left
  const double before = Metric("ebb_swaps_total{direction=\"out\"}");
  v1::RestoreSessionRequest restore;
  restore.set_snapshot("snapshots/saved");
  for (int i = 0; i < 10; ++i) {
    v1::Session restored;
    const grpc::Status status = client_->sessions().RestoreSession(client_->Context().get(), restore, &restored);
    ASSERT_TRUE(status.ok()) << client::Describe(status);
  }
  const double restored = Metric("ebb_swaps_total{direction=\"out\"}");
  EXPECT_GT(restored, before);
  v1::SetPolicyRequest request;
  request.set_session(name);
  *request.mutable_policy() = StreamingPolicy(400);
  request.mutable_policy()->mutable_h2o();
  v1::SetPolicyResponse changed;
  const grpc::Status status = client_->eviction().SetPolicy(client_->Context().get(), request, &changed);
  ASSERT_TRUE(status.ok()) << client::Describe(status);
  const double grown = Metric("ebb_swaps_total{direction=\"out\"}");
  EXPECT_GT(grown, restored);
  v1::ForkSessionRequest fork;
  fork.set_session(name);
  for (int i = 0; i < 2; ++i) {
    v1::Session branch;
    const grpc::Status forked = client_->sessions().ForkSession(client_->Context().get(), fork, &branch);
    EXPECT_TRUE(forked.ok()) << client::Describe(forked);
  }
}

// Killed while sessions are swapped: their journals have them, and the files are nobody's.
TEST(SwapLives, WhatIsSwappedOutlivesTheServerAsWhatIsInMemory) {
  for (const Durability durability : {Durability::kStep, Durability::kDrain}) {
    const TestServer roomy;
    TestClient calm(roomy.address());
    const TemporaryFolder store;
    auto server = StartOn(store.path(), {.durability = durability});
    auto client = std::make_unique<TestClient>(server->address());
    std::vector<std::string> names;
    for (int i = 0; i < 12; ++i) {
      const std::string id = absl::StrFormat("s%d", i);
      const char* const scorer = i % 2 == 0 ? "h2o" : "full";
      names.push_back(Open(*client, id, scorer));
      Open(calm, id, scorer);
    }
    for (const std::string& name : names) ASSERT_EQ(Decodes(*client, name), Decodes(calm, name));
    ASSERT_GT(server->Metric("ebb_swapped_sessions"), 0);
    const TemporaryFolder copy;
    std::string next_store = store.path();
    if (durability == Durability::kStep) {  // the folder as it stands: what a server that is killed leaves
      fs::copy(fs::path(store.path()) / "journals", fs::path(copy.path()) / "journals", fs::copy_options::recursive);
      fs::copy(fs::path(store.path()) / "swap", fs::path(copy.path()) / "swap", fs::copy_options::recursive);
      WriteAll(fs::path(copy.path()) / "swap" / "77.snapshot", "of a server that is gone");
      next_store = copy.path();
    } else {
      server->server().Drain(absl::Seconds(10));
      client.reset();
      server.reset();
    }
    const auto next = StartOn(next_store, {.durability = durability});
    TestClient after(next->address());
    EXPECT_FALSE(fs::exists(fs::path(next_store) / "swap" / "77.snapshot"));
    EXPECT_EQ(after.Status().work().sessions(), names.size());
    EXPECT_GT(next->Metric("ebb_swapped_sessions"), 0);
    for (const std::string& name : names) ASSERT_EQ(Decodes(after, name), Decodes(calm, name)) << name;
    for (const std::string& name : names) EXPECT_EQ(Seen(after, name), Seen(calm, name)) << name;
  }
}

// Threads that call whatever sessions they like, with and without patience; then all is as it would have been.
TEST_F(SwapTest, ManyCallersAtOnceWithCancelsAndDeadlines) {
  constexpr int kSessions = 16;
  client_.reset();
  server_.reset();
  server_ = StartOn(store_.path(), {.arena_bytes = 160 << 10});  // room for ten of them
  client_ = std::make_unique<TestClient>(server_->address());
  std::vector<std::string> names;
  for (int i = 0; i < kSessions; ++i)
    names.push_back(Open(*client_, absl::StrFormat("s%d", i), i % 2 ? "h2o" : "tova"));
  std::atomic<int> answered = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      TestClient client(server_->address());
      for (int i = 0; i < 20 * kRounds; ++i) {
        const std::string& name = names[static_cast<size_t>(i * (2 * caller + 3) + caller) % names.size()];
        const auto context = client.Context();
        if (i % 5 == 3) context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(i % 7));
        const auto stream = client.inference().Decode(context.get(), DecodeTokens(name, 3));
        if (i % 7 == 2) context->TryCancel();
        v1::DecodeResponse message;
        while (stream->Read(&message)) continue;
        const grpc::Status status = stream->Finish();
        if (status.ok()) ++answered;
        const Code code = status.error_code();
        const std::string reason = ReadDetails(status).reason;
        EXPECT_TRUE(status.ok() || code == Code::CANCELLED || code == Code::DEADLINE_EXCEEDED ||
                    reason == "SESSION_BUSY" || reason == "NO_PAGES")
            << client::Describe(status);
        if (i % 11 != 0) continue;
        v1::DescribeCacheRequest describe;
        describe.set_session(name);
        v1::DescribeCacheResponse described;
        client.eviction().DescribeCache(client.Context().get(), describe, &described);  // or there is no room
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_GT(answered, 0);
  EXPECT_GT(Metric("ebb_swaps_total{direction=\"in\"}"), 0);
  // What each session yields is what its log says: the same prompt and the same draws on a server of its own.
  const TestServer roomy;
  TestClient calm(roomy.address());
  for (int i = 0; i < kSessions; ++i) {
    const std::string right = Open(calm, absl::StrFormat("s%d", i), i % 2 ? "h2o" : "tova");
    const auto behind = static_cast<uint32_t>(client_->Get(names[i]).tokens() - calm.Get(right).tokens());
    if (behind > 0) {
      EXPECT_THAT(calm.Decode(DecodeTokens(right, behind)).tokens, SizeIs(behind));
    }
    EXPECT_EQ(Decodes(*client_, names[i]), Decodes(calm, right)) << names[i];
  }
  for (const std::string& name : names) ASSERT_TRUE(client_->Delete(name).ok());
  ExpectNothingIsLeft();
}

}  // namespace
}  // namespace ebb
