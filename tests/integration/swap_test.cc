// Sessions that leave their pages to others and come back, as clients see them: as if they had never been away; and all
// that can happen to their files meanwhile.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using client::ReadDetails;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Code = grpc::StatusCode;

#ifdef EBB_SANITIZED
constexpr int kRounds = 3;
#else
constexpr int kRounds = 10;
#endif

constexpr char kText[] = "Who is away takes no room, and comes back as who left.";

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void WriteAll(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

v1::CreateSessionRequest Wanted(const std::string& id, const std::string& scorer) {
  v1::CreateSessionRequest request = SessionWith(StreamingPolicy(24), 16);
  request.set_session_id(id);
  v1::PolicySpec& policy = *request.mutable_policy();
  if (scorer == "full") {
    policy.Clear();
    policy.mutable_full();
    policy.mutable_trigger()->set_budget(240);
  }
  if (scorer == "h2o") policy.mutable_h2o();
  if (scorer == "tova") policy.mutable_tova();
  if (scorer == "snapkv") policy.mutable_snapkv()->set_window(8);
  if (scorer == "semantic") policy.mutable_semantic();
  request.mutable_sampling()->set_temperature(0.9F);
  request.mutable_sampling()->set_repetition_penalty(1.1F);
  request.mutable_sampling()->set_seed(11);
  return request;
}

std::string Open(TestClient& client, const std::string& id, const std::string& scorer) {
  const std::string name = client.Create(Wanted(id, scorer)).name();
  EXPECT_TRUE(client.Prefill(PrefillText(name, kText)).ok());
  return name;
}

std::string Decodes(TestClient& client, const std::string& name) {
  const Answer answer = client.Decode(DecodeTokens(name, 7));
  EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
  return testing::PrintToString(answer.tokens);
}

// All that a client can see of a session's cache; brings it back.
std::string Seen(TestClient& client, const std::string& name) {
  v1::DescribeCacheRequest request;
  request.set_session(name);
  v1::DescribeCacheResponse response;
  const grpc::Status status = client.eviction().DescribeCache(client.Context().get(), request, &response);
  EXPECT_TRUE(status.ok()) << client::Describe(status);
  v1::Session session = client.Get(name);
  session.clear_last_used_time();
  session.clear_create_time();
  session.clear_shared_bytes();
  session.clear_reserved_bytes();  // it may be away again
  session.clear_swapped();
  return session.DebugString() + response.DebugString();
}

void ExpectRefusal(const grpc::Status& status, Code code, const std::string& reason) {
  EXPECT_EQ(status.error_code(), code) << client::Describe(status);
  EXPECT_EQ(ReadDetails(status).reason, reason);
}

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

struct Life {
  int64_t arena_bytes = 384 << 10;
  int64_t swap_bytes_max = 1 << 30;
  Durability durability = Durability::kOff;
};

std::unique_ptr<TestServer> StartOn(const std::string& store, const Life& life = {}) {
  return std::make_unique<TestServer>([&](ServerOptions& options) {
    options.http_listen = {.host = "127.0.0.1", .port = 0};
    options.store_dir = store;
    options.swap_bytes_max = life.swap_bytes_max;
    options.durability = life.durability;
    options.engine.arena_bytes = life.arena_bytes;
    options.engine.prefix_share = 0;
  });
}

class SwapTest : public testing::Test {
 protected:
  double Metric(const std::string& series) const { return server_->Metric(series); }
  bool IsAway(const std::string& name) const { return client_->Get(name).swapped(); }

  // Opens others until the session is away.
  void SendAway(const std::string& name) {
    for (int i = 0; i < 100 && !IsAway(name); ++i) {
      fillers_.push_back(client_->Create(SessionWith(StreamingPolicy(100), 16)).name());
    }
    ASSERT_TRUE(IsAway(name));
  }
  void DeleteFillers() {
    for (const std::string& name : std::exchange(fillers_, {})) EXPECT_TRUE(client_->Delete(name).ok());
  }

  // Its thread may still be about to remove what is not wanted any more.
  std::vector<fs::path> FilesWhenThereAre(size_t count) const {
    for (;;) {
      std::vector<fs::path> files;
      for (const auto& entry : fs::directory_iterator(fs::path(store_.path()) / "swap")) files.push_back(entry.path());
      if (files.size() == count) return files;
      std::this_thread::yield();
    }
  }

  void ExpectNothingIsLeft() const {
    EXPECT_EQ(client_->Status().work().sessions(), 0U);
    EXPECT_EQ(client_->Status().cache().pages_reserved(), 0U);
    EXPECT_EQ(Metric("ebb_kv_pages{state=\"free\"}"), Metric("ebb_kv_pages_limit"));
    EXPECT_EQ(Metric("ebb_kv_pages{state=\"owned\"}"), 0);
    EXPECT_EQ(Metric("ebb_cache_slots{state=\"used\"}"), 0);
    EXPECT_EQ(Metric("ebb_swapped_sessions"), 0);
    EXPECT_EQ(Metric("ebb_swap_file_bytes"), 0);
    FilesWhenThereAre(0);
  }

  TemporaryFolder store_;
  std::unique_ptr<TestServer> server_ = StartOn(store_.path());
  std::unique_ptr<TestClient> client_ = std::make_unique<TestClient>(server_->address());
  std::vector<std::string> fillers_ = {};
};

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
  brief.mutable_ttl()->set_seconds(1);
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
  while (client_->sessions().GetSession(client_->Context().get(), get, &session).ok()) std::this_thread::yield();
  EXPECT_EQ(Metric("ebb_expired_sessions_total{tenant=\"default\"}"), 1);
  EXPECT_EQ(Metric("ebb_swaps_total{direction=\"in\"}"), 0);
  DeleteFillers();
  ExpectNothingIsLeft();
}

TEST_F(SwapTest, ADamagedFileIsNamedAndHarmsNoOther) {
  const std::string name = Open(*client_, "a", "h2o");
  SendAway(name);
  const std::string other = Open(*client_, "b", "h2o");
  const std::string right = Seen(*client_, other);
  for (const fs::path& file : FilesWhenThereAre(static_cast<size_t>(Metric("ebb_swapped_sessions")))) {
    std::string bytes = ReadAll(file);
    bytes[bytes.size() / 2] ^= 4;
    WriteAll(file, bytes);
  }
  for (int i = 0; i < 2; ++i) {
    const grpc::Status status = client_->Decode(DecodeTokens(name, 1)).status;
    ExpectRefusal(status, Code::DATA_LOSS, "SWAP_DAMAGED");
    EXPECT_THAT(status.error_message(), HasSubstr(name));
  }
  EXPECT_EQ(Metric("ebb_swap_failures_total{direction=\"in\"}"), 1) << "it is read once";
  EXPECT_TRUE(IsAway(name));
  EXPECT_EQ(Seen(*client_, other), right);
  EXPECT_TRUE(client_->Delete(name).ok());

  SendAway(other);
  for (const fs::path& file : FilesWhenThereAre(static_cast<size_t>(Metric("ebb_swapped_sessions")))) fs::remove(file);
  ExpectRefusal(client_->Decode(DecodeTokens(other, 1)).status, Code::DATA_LOSS, "SWAP_DAMAGED");
  EXPECT_TRUE(client_->Delete(other).ok());
  EXPECT_THAT(Open(*client_, "c", "h2o"), "sessions/c") << "in what is free";
}

TEST_F(SwapTest, ADiskThatIsFullRefusesTheNewcomerAndNobodyElse) {
  const TestServer roomy;
  TestClient calm(roomy.address());
  const std::string name = Open(*client_, "a", "h2o");
  Open(calm, "a", "h2o");
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {.rlim_cur = 64, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  v1::Session session;
  grpc::Status full;
  for (int i = 0; i < 100 && full.ok(); ++i) full = client_->Create(SessionWith(StreamingPolicy(100), 16), &session);
  setrlimit(RLIMIT_FSIZE, &before);
  ExpectRefusal(full, Code::UNAVAILABLE, "NO_PAGES");
  EXPECT_GT(ReadDetails(full).retry.value_or(absl::ZeroDuration()), absl::ZeroDuration());
  EXPECT_EQ(Metric("ebb_swap_failures_total{direction=\"out\"}"), 1);
  EXPECT_EQ(Metric("ebb_swapped_sessions"), 0);
  EXPECT_FALSE(IsAway(name));
  FilesWhenThereAre(0);
  SendAway(name);
  EXPECT_EQ(Decodes(*client_, name), Decodes(calm, name));
}

TEST_F(SwapTest, NoMoreThanSwapMaxIsOnTheDisk) {
  const TemporaryFolder folder;
  const auto server = StartOn(folder.path(), {.swap_bytes_max = 40'000});
  TestClient client(server->address());
  v1::Session session;
  grpc::Status status;
  int opened = 0;
  for (; status.ok() && opened < 1000; ++opened) {
    status = client.Create(Wanted(absl::StrFormat("s%d", opened), "h2o"), &session);
    if (!status.ok()) break;
    EXPECT_TRUE(client.Prefill(PrefillText(session.name(), kText)).ok());
  }
  ExpectRefusal(status, Code::UNAVAILABLE, "NO_PAGES");
  EXPECT_GT(server->Metric("ebb_swapped_sessions"), 0);
  EXPECT_LE(server->Metric("ebb_swap_file_bytes"), 40'000);
}

// A file that is read and never comes is a named pipe that nobody writes to.
TEST_F(SwapTest, WhoWaitsMayCancelOrRunOutOfTimeAndOthersGoOn) {
  const TestServer roomy;
  TestClient calm(roomy.address());
  Open(calm, "a", "h2o");
  const std::string name = Open(*client_, "a", "h2o");
  SendAway(name);
  const std::vector<fs::path> files = FilesWhenThereAre(static_cast<size_t>(Metric("ebb_swapped_sessions")));
  std::vector<std::string> good;
  for (const fs::path& file : files) {
    good.push_back(ReadAll(file));
    fs::remove(file);
    ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  }

  const auto late = client_->Context();
  late->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  const auto late_stream = client_->inference().Decode(late.get(), DecodeTokens(name, 3));
  v1::DecodeResponse message;
  EXPECT_FALSE(late_stream->Read(&message));
  EXPECT_EQ(late_stream->Finish().error_code(), Code::DEADLINE_EXCEEDED);

  const auto cancelled = client_->Context();
  const auto cancelled_stream = client_->inference().Decode(cancelled.get(), DecodeTokens(name, 3));
  const std::string other = fillers_.back();
  EXPECT_TRUE(client_->Prefill(PrefillText(other, kText)).ok());
  EXPECT_THAT(client_->Decode(DecodeTokens(other, 20)).tokens, SizeIs(20)) << "who is in memory does not wait";
  cancelled->TryCancel();
  EXPECT_FALSE(cancelled_stream->Read(&message));
  EXPECT_EQ(cancelled_stream->Finish().error_code(), Code::CANCELLED);
  // Both are over for the server, too.
  while (Metric("ebb_rpc_handled_total{method=\"InferenceService/Decode\",code=\"CANCELLED\"}") +
             Metric("ebb_rpc_handled_total{method=\"InferenceService/Decode\",code=\"DEADLINE_EXCEEDED\"}") <
         2) {
    std::this_thread::yield();
  }

  for (size_t i = 0; i < files.size(); ++i) {
    fs::rename(files[i], files[i].string() + ".pipe");
    WriteAll(files[i], good[i]);
  }
  for (const fs::path& file : files) {
    std::ofstream(file.string() + ".pipe", std::ios::in | std::ios::out);  // whoever reads it, comes to its end
    fs::remove(file.string() + ".pipe");
  }
  EXPECT_EQ(Decodes(*client_, name), Decodes(calm, name));
  EXPECT_EQ(Seen(*client_, name), Seen(calm, name));
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

TEST_F(SwapTest, BranchesThatSharePagesStay) {
  const std::string name = Open(*client_, "a", "h2o");
  v1::ForkSessionRequest fork;
  fork.set_session(name);
  fork.set_session_id("b");
  v1::Session branch;
  ASSERT_TRUE(client_->sessions().ForkSession(client_->Context().get(), fork, &branch).ok());
  for (int i = 0; i < 40; ++i) Open(*client_, absl::StrFormat("s%d", i), "h2o");
  EXPECT_FALSE(IsAway(name));
  EXPECT_FALSE(IsAway(branch.name()));
  EXPECT_GT(Metric("ebb_swapped_sessions"), 0);
  ASSERT_TRUE(client_->Delete(branch.name()).ok());
  SendAway(name);
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
    if (!forked.ok()) {  // branches that share do not leave
      ExpectRefusal(forked, Code::UNAVAILABLE, "NO_PAGES");
    }
    EXPECT_TRUE(forked.ok() || i > 0) << client::Describe(forked);
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
