// Sessions that are saved and restored as clients see it: the same tokens, on this server and on the next, and every
// way in which that cannot be.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using client::ReadDetails;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Code = grpc::StatusCode;

constexpr char kKept[] = "What is kept is what the next token is drawn from, and nothing else is.";

// A session of the scorer with a full cache.
std::string Filled(TestClient& client, const std::string& scorer, float temperature = 0.9F) {
  v1::CreateSessionRequest request = SessionWith(StreamingPolicy(24), 16);
  if (scorer == "h2o") request.mutable_policy()->mutable_h2o();
  if (scorer == "snapkv") request.mutable_policy()->mutable_snapkv()->set_window(8);
  request.mutable_sampling()->set_temperature(temperature);
  request.mutable_sampling()->set_seed(5);
  request.mutable_sampling()->set_repetition_penalty(1.1F);
  request.mutable_ttl()->set_seconds(3600);
  const std::string name = client.Create(request).name();
  EXPECT_TRUE(client.Prefill(PrefillText(name, kKept)).ok());
  return name;
}
std::vector<uint32_t> Decoded(TestClient& client, const std::string& session, uint32_t count) {
  const Answer answer = client.Decode(DecodeTokens(session, count));
  EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
  return answer.tokens;
}

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void WriteFile(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

class SnapshotsTest : public testing::Test {
 protected:
  std::unique_ptr<TestServer> Start(const TinyModel& model = {}) const {
    return std::make_unique<TestServer>(
        [this](ServerOptions& options) {
          options.http_listen = {.host = "127.0.0.1", .port = 0};
          options.store_dir = folder_.path();
          options.snapshots_max = 3;
        },
        model);
  }

  static v1::SaveSessionRequest SaveOf(const std::string& session, const std::string& id) {
    v1::SaveSessionRequest request;
    request.set_session(session);
    request.set_snapshot_id(id);
    return request;
  }
  static grpc::Status Save(TestClient& client, const v1::SaveSessionRequest& request,
                           v1::SaveSessionResponse* response = nullptr) {
    v1::SaveSessionResponse ignored;
    return client.sessions().SaveSession(client.Context().get(), request, response == nullptr ? &ignored : response);
  }
  static grpc::Status Restore(TestClient& client, const std::string& snapshot, v1::Session* session,
                              const std::string& id = "", const std::string& request_id = "") {
    v1::RestoreSessionRequest request;
    request.set_snapshot(snapshot);
    request.set_session_id(id);
    request.set_request_id(request_id);
    return client.sessions().RestoreSession(client.Context().get(), request, session);
  }
  static v1::Session Restored(TestClient& client, const std::string& snapshot) {
    v1::Session session;
    const grpc::Status status = Restore(client, snapshot, &session);
    EXPECT_TRUE(status.ok()) << client::Describe(status);
    return session;
  }
  static void ExpectRefusal(const grpc::Status& status, Code code, const std::string& reason,
                            const std::string& field = {}) {
    EXPECT_EQ(status.error_code(), code) << client::Describe(status);
    EXPECT_EQ(ReadDetails(status).reason, reason);
    EXPECT_EQ(ReadDetails(status).field, field);
  }

  fs::path FileOf(const std::string& tenant, const std::string& id) const {
    return fs::path(folder_.path()) / "snapshots" / tenant / (id + ".snapshot");
  }

  TemporaryFolder folder_;
  std::unique_ptr<TestServer> server_ = Start();
  std::unique_ptr<TestClient> client_ = std::make_unique<TestClient>(server_->address(), "acme");
};

TEST_F(SnapshotsTest, ARestoredSessionYieldsTheTokensOfTheOneThatWentOn) {
  for (const char* scorer : {"streaming", "h2o", "snapkv"}) {
    SCOPED_TRACE(scorer);
    const std::string session = Filled(*client_, scorer);
    Decoded(*client_, session, 9);
    const v1::Session before = client_->Get(session);
    v1::SaveSessionResponse saved;
    const grpc::Status status = Save(*client_, SaveOf(session, scorer), &saved);
    ASSERT_TRUE(status.ok()) << client::Describe(status);
    EXPECT_EQ(saved.snapshot().name(), std::string("snapshots/") + scorer);
    EXPECT_EQ(saved.snapshot().bytes(), fs::file_size(FileOf("acme", scorer)));
    EXPECT_GT(saved.snapshot().create_time().seconds(), 0);
    EXPECT_EQ(saved.generation(), before.generation());
    EXPECT_EQ(saved.tokens(), before.tokens());
    EXPECT_EQ(client_->Get(session).generation(), before.generation()) << "saving changes nothing";

    const std::vector<uint32_t> right = Decoded(*client_, session, 40);
    const v1::Session restored = Restored(*client_, saved.snapshot().name());
    EXPECT_NE(restored.name(), session);
    EXPECT_EQ(restored.tokens(), before.tokens());
    EXPECT_EQ(restored.cache_length(), before.cache_length());
    EXPECT_EQ(restored.reserved_bytes(), before.reserved_bytes());
    EXPECT_EQ(restored.used_bytes(), before.used_bytes());
    EXPECT_EQ(restored.evicted_tokens(), before.evicted_tokens());
    EXPECT_EQ(restored.prompt_tokens(), before.prompt_tokens());
    EXPECT_EQ(restored.completion_tokens(), before.completion_tokens());
    EXPECT_EQ(restored.block_size(), before.block_size());
    EXPECT_EQ(restored.policy().DebugString(), before.policy().DebugString());
    EXPECT_EQ(restored.sampling().DebugString(), before.sampling().DebugString());
    EXPECT_EQ(restored.expire_time().seconds() - restored.last_used_time().seconds(), 3600);
    EXPECT_THAT(Decoded(*client_, restored.name(), 40), ElementsAreArray(right));
  }
}

TEST_F(SnapshotsTest, TheNextServerGoesOnWhereThisOneStopped) {
  std::vector<std::vector<uint32_t>> right;
  for (const char* scorer : {"streaming", "h2o", "snapkv"}) {
    const std::string session = Filled(*client_, scorer);
    Decoded(*client_, session, 3);
    ASSERT_TRUE(Save(*client_, SaveOf(session, scorer)).ok());
    right.push_back(Decoded(*client_, session, 25));
  }
  client_.reset();
  server_.reset();
  const auto next = Start();
  TestClient client(next->address(), "acme");
  size_t i = 0;
  for (const char* scorer : {"streaming", "h2o", "snapkv"}) {
    SCOPED_TRACE(scorer);
    const v1::Session restored = Restored(client, std::string("snapshots/") + scorer);
    // In two calls, since the session keeps what its next token is drawn from.
    std::vector<uint32_t> tokens = Decoded(client, restored.name(), 11);
    const std::vector<uint32_t> rest = Decoded(client, restored.name(), 14);
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    EXPECT_THAT(tokens, ElementsAreArray(right[i++]));
    EXPECT_TRUE(client.Delete(restored.name()).ok());
  }
  EXPECT_EQ(client.Status().cache().pages_reserved(), 0U);
  EXPECT_GT(next->Metric("ebb_snapshot_bytes_total{operation=\"restore\"}"), 0);
  EXPECT_EQ(next->Metric("ebb_snapshot_seconds_count{operation=\"restore\"}"), 3);
  EXPECT_EQ(next->Metric("ebb_snapshot_bytes_total{operation=\"save\"}"), 0);
}

TEST_F(SnapshotsTest, AnEmptySessionAndOneInTheMidstOfItsPromptAreSessionsToo) {
  v1::CreateSessionRequest request = SessionWith(StreamingPolicy(24), 16);
  request.set_session_id("empty");
  const std::string empty = client_->Create(request).name();
  v1::SaveSessionRequest save;
  save.set_session(empty);
  v1::SaveSessionResponse saved;
  ASSERT_TRUE(Save(*client_, save, &saved).ok());
  EXPECT_EQ(saved.snapshot().name(), "snapshots/empty") << "called as the session";
  const std::string restored = Restored(*client_, "snapshots/empty").name();
  ASSERT_TRUE(client_->Prefill(PrefillText(empty, kKept)).ok());
  ASSERT_TRUE(client_->Prefill(PrefillText(restored, kKept)).ok());
  request.clear_session_id();
  EXPECT_THAT(Decoded(*client_, restored, 20), SizeIs(20));
  EXPECT_EQ(client_->Get(restored).cache_length(), 24U);
}

TEST_F(SnapshotsTest, AreTheTenantsOwn) {
  const std::string session = Filled(*client_, "h2o");
  ASSERT_TRUE(Save(*client_, SaveOf(session, "mine")).ok());
  TestClient other(server_->address(), "other");
  v1::Session restored;
  ExpectRefusal(Restore(other, "snapshots/mine", &restored), Code::NOT_FOUND, "UNKNOWN_SNAPSHOT");
  ExpectRefusal(Save(other, SaveOf(session, "mine")), Code::NOT_FOUND, "UNKNOWN_SESSION");
  v1::DeleteSnapshotRequest remove;
  remove.set_name("snapshots/mine");
  v1::DeleteSnapshotResponse removed;
  ExpectRefusal(other.sessions().DeleteSnapshot(other.Context().get(), remove, &removed), Code::NOT_FOUND,
                "UNKNOWN_SNAPSHOT");
  v1::ListSnapshotsResponse list;
  ASSERT_TRUE(other.sessions().ListSnapshots(other.Context().get(), {}, &list).ok());
  EXPECT_THAT(list.snapshots(), SizeIs(0));
  EXPECT_EQ(Restored(*client_, "snapshots/mine").tokens(), client_->Get(session).tokens());
}

TEST_F(SnapshotsTest, AreListedInPagesReplacedAndDeleted) {
  const std::string session = Filled(*client_, "streaming");
  for (const char* id : {"b", "a", "c"}) ASSERT_TRUE(Save(*client_, SaveOf(session, id)).ok());
  ExpectRefusal(Save(*client_, SaveOf(session, "d")), Code::RESOURCE_EXHAUSTED, "TENANT_SNAPSHOTS");
  Decoded(*client_, session, 5);
  EXPECT_TRUE(Save(*client_, SaveOf(session, "c")).ok()) << "one of that name is replaced";
  EXPECT_EQ(Restored(*client_, "snapshots/c").tokens(), client_->Get(session).tokens());
  EXPECT_EQ(Restored(*client_, "snapshots/b").tokens(), client_->Get(session).tokens() - 5);

  v1::ListSnapshotsRequest request;
  request.set_page_size(2);
  v1::ListSnapshotsResponse first, second;
  ASSERT_TRUE(client_->sessions().ListSnapshots(client_->Context().get(), request, &first).ok());
  ASSERT_THAT(first.snapshots(), SizeIs(2));
  EXPECT_EQ(first.snapshots(0).name(), "snapshots/a");
  EXPECT_EQ(first.snapshots(1).name(), "snapshots/b");
  request.set_page_token(first.next_page_token());
  ASSERT_TRUE(client_->sessions().ListSnapshots(client_->Context().get(), request, &second).ok());
  ASSERT_THAT(second.snapshots(), SizeIs(1));
  EXPECT_EQ(second.next_page_token(), "");

  v1::DeleteSnapshotRequest remove;
  remove.set_name("snapshots/a");
  v1::DeleteSnapshotResponse removed;
  EXPECT_TRUE(client_->sessions().DeleteSnapshot(client_->Context().get(), remove, &removed).ok());
  v1::Session restored;
  ExpectRefusal(Restore(*client_, "snapshots/a", &restored), Code::NOT_FOUND, "UNKNOWN_SNAPSHOT");
  EXPECT_TRUE(Save(*client_, SaveOf(session, "d")).ok());
}

TEST_F(SnapshotsTest, WhatIsDamagedOrNotForThisServerIsRefusedByName) {
  const std::string session = Filled(*client_, "h2o");
  ASSERT_TRUE(Save(*client_, SaveOf(session, "good")).ok());
  const std::string good = ReadFile(FileOf("acme", "good"));
  v1::Session restored;

  std::string bytes = good;
  bytes[good.size() / 2] ^= 4;
  WriteFile(FileOf("acme", "bad"), bytes);
  grpc::Status status = Restore(*client_, "snapshots/bad", &restored);
  ExpectRefusal(status, Code::DATA_LOSS, "SNAPSHOT_DAMAGED");
  EXPECT_THAT(status.error_message(), HasSubstr("bytes ")) << "and the place is named";
  WriteFile(FileOf("acme", "bad"), good.substr(0, good.size() - 1));
  ExpectRefusal(Restore(*client_, "snapshots/bad", &restored), Code::DATA_LOSS, "SNAPSHOT_DAMAGED");
  WriteFile(FileOf("acme", "bad"), "");
  ExpectRefusal(Restore(*client_, "snapshots/bad", &restored), Code::DATA_LOSS, "SNAPSHOT_DAMAGED");
  bytes = good;
  bytes[8] = 9;
  WriteFile(FileOf("acme", "bad"), bytes);
  status = Restore(*client_, "snapshots/bad", &restored);
  ExpectRefusal(status, Code::FAILED_PRECONDITION, "SNAPSHOT_VERSION");
  EXPECT_THAT(status.error_message(), HasSubstr("version 9"));
  EXPECT_EQ(client_->Status().work().sessions(), 1U) << "nothing was half opened";

  client_.reset();
  server_.reset();
  const auto stranger = Start({.seed = 9});
  TestClient client(stranger->address(), "acme");
  ExpectRefusal(Restore(client, "snapshots/good", &restored), Code::FAILED_PRECONDITION, "SNAPSHOT_FOREIGN");
  EXPECT_EQ(client.Status().cache().pages_reserved(), 0U);
}

TEST_F(SnapshotsTest, SaysWhatWasAskedWrongly) {
  const std::string session = Filled(*client_, "h2o");
  ASSERT_TRUE(Save(*client_, SaveOf(session, "good")).ok());
  v1::Session restored;
  const Code kInvalid = Code::INVALID_ARGUMENT;
  for (const char* id : {"../good", "/etc/passwd", ".good.new", "Good", "a/b", "a\nb"}) {
    SCOPED_TRACE(id);
    ExpectRefusal(Save(*client_, SaveOf(session, id)), kInvalid, "INVALID_NAME", "snapshot_id");
    ExpectRefusal(Restore(*client_, std::string("snapshots/") + id, &restored), kInvalid, "INVALID_NAME", "snapshot");
    v1::DeleteSnapshotRequest remove;
    remove.set_name(std::string("snapshots/") + id);
    v1::DeleteSnapshotResponse removed;
    ExpectRefusal(client_->sessions().DeleteSnapshot(client_->Context().get(), remove, &removed), kInvalid,
                  "INVALID_NAME", "name");
  }
  ExpectRefusal(Restore(*client_, "good", &restored), kInvalid, "INVALID_NAME", "snapshot");
  ExpectRefusal(Restore(*client_, "snapshots/good", &restored, "A"), kInvalid, "INVALID_NAME", "session_id");
  ExpectRefusal(Restore(*client_, "snapshots/good", &restored, "", std::string(129, 'x')), kInvalid, "TOO_LONG",
                "request_id");
  ExpectRefusal(Save(*client_, SaveOf("sessions/nobody", "x")), Code::NOT_FOUND, "UNKNOWN_SESSION");
  ExpectRefusal(Save(*client_, SaveOf("nobody", "x")), kInvalid, "INVALID_NAME", "session");
  ExpectRefusal(Restore(*client_, "snapshots/nobody", &restored), Code::NOT_FOUND, "UNKNOWN_SNAPSHOT");
  v1::SaveSessionRequest stale = SaveOf(session, "x");
  stale.set_expected_generation(77);
  ExpectRefusal(Save(*client_, stale), Code::ABORTED, "GENERATION_MISMATCH");
  stale.set_expected_generation(client_->Get(session).generation());
  EXPECT_TRUE(Save(*client_, stale).ok());
  ExpectRefusal(Restore(*client_, "snapshots/good", &restored, session.substr(sizeof("sessions/") - 1)),
                Code::ALREADY_EXISTS, "NAME_TAKEN", "session_id");
  v1::ListSnapshotsRequest list;
  v1::ListSnapshotsResponse listed;
  list.set_page_size(1001);
  ExpectRefusal(client_->sessions().ListSnapshots(client_->Context().get(), list, &listed), kInvalid, "OUT_OF_RANGE",
                "page_size");
  list.set_page_size(1);
  list.set_page_token("../x");
  ExpectRefusal(client_->sessions().ListSnapshots(client_->Context().get(), list, &listed), kInvalid,
                "INVALID_PAGE_TOKEN", "page_token");

  TestServer without;
  TestClient client(without.address(), "acme");
  const Code kFailed = Code::FAILED_PRECONDITION;
  ExpectRefusal(Save(client, SaveOf("sessions/a", "a")), kFailed, "NO_STORE");
  ExpectRefusal(Restore(client, "snapshots/a", &restored), kFailed, "NO_STORE");
}

TEST_F(SnapshotsTest, ARepeatedRequestOpensOneSession) {
  const std::string session = Filled(*client_, "h2o");
  ASSERT_TRUE(Save(*client_, SaveOf(session, "good")).ok());
  v1::Session one, other;
  ASSERT_TRUE(Restore(*client_, "snapshots/good", &one, "", "retried").ok());
  ASSERT_TRUE(Restore(*client_, "snapshots/good", &other, "", "retried").ok());
  EXPECT_EQ(one.name(), other.name());
  EXPECT_EQ(client_->Status().work().sessions(), 2U);
}

TEST_F(SnapshotsTest, IsAdmittedLikeAnyOtherSession) {
  const std::string session = Filled(*client_, "h2o");
  ASSERT_TRUE(Save(*client_, SaveOf(session, "good")).ok());
  const uint64_t bytes = client_->Get(session).reserved_bytes();
  client_.reset();
  server_.reset();
  const TestServer small([&](ServerOptions& options) {
    options.store_dir = folder_.path();
    options.engine.arena_bytes = static_cast<int64_t>(bytes + bytes / 2);
  });
  TestClient client(small.address(), "acme");
  const std::string first = Restored(client, "snapshots/good").name();
  v1::Session restored;
  ExpectRefusal(Restore(client, "snapshots/good", &restored), Code::UNAVAILABLE, "NO_PAGES");
  ASSERT_TRUE(client.Delete(first).ok());
  Restored(client, "snapshots/good");
}

TEST_F(SnapshotsTest, AWriterOrADraftInTheWayIsNamed) {
  const std::string session = Filled(*client_, "h2o");
  v1::VerifyRequest verify;
  verify.set_session(session);
  verify.add_draft_tokens(1);
  verify.set_mode(v1::VERIFY_MODE_MANUAL);
  v1::VerifyResponse verified;
  ASSERT_TRUE(client_->inference().Verify(client_->Context().get(), verify, &verified).ok());
  ExpectRefusal(Save(*client_, SaveOf(session, "x")), Code::FAILED_PRECONDITION, "DRAFT_PENDING");
  v1::AcceptRequest accept;
  accept.set_session(session);
  v1::AcceptResponse accepted;
  ASSERT_TRUE(client_->inference().Accept(client_->Context().get(), accept, &accepted).ok());

  const auto context = client_->Context();
  const auto stream = client_->inference().Decode(context.get(), DecodeTokens(session, 1 << 20));
  v1::DecodeResponse message;
  ASSERT_TRUE(stream->Read(&message));
  ExpectRefusal(Save(*client_, SaveOf(session, "x")), Code::ABORTED, "SESSION_BUSY");
  context->TryCancel();
  while (stream->Read(&message)) continue;
  stream->Finish();
  EXPECT_FALSE(fs::exists(FileOf("acme", "x")));
}

TEST_F(SnapshotsTest, ADiskThatIsFullOrFailsIsSaidAndTheSessionGoesOn) {
  const std::string session = Filled(*client_, "h2o");
  ASSERT_TRUE(Save(*client_, SaveOf(session, "good")).ok());
  const std::string good = ReadFile(FileOf("acme", "good"));
  Decoded(*client_, session, 1);
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {.rlim_cur = 4096, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const grpc::Status full = Save(*client_, SaveOf(session, "good"));
  setrlimit(RLIMIT_FSIZE, &before);
  ExpectRefusal(full, Code::UNAVAILABLE, "STORE_FULL");
  EXPECT_EQ(ReadFile(FileOf("acme", "good")), good) << "the old one is still there";
  EXPECT_THAT(full.error_message(), testing::Not(HasSubstr(folder_.path())));

  TestClient other(server_->address(), "other");
  WriteFile(fs::path(folder_.path()) / "snapshots/other", "where its folder would be");
  const std::string others = Filled(other, "h2o");
  ExpectRefusal(Save(other, SaveOf(others, "x")), Code::UNAVAILABLE, "STORE_FAILED");
  EXPECT_THAT(Decoded(other, others, 5), SizeIs(5));
  EXPECT_TRUE(Save(*client_, SaveOf(session, "good")).ok());
}

// A drained server's sessions are the next one's, by name and generation and down to their next token; what a server
// that ends otherwise had is gone, and does not come back as it once was.
TEST(KeptSessionsTest, ADrainedServersSessionsAreTheNextOnes) {
  const TemporaryFolder folder;
  const auto start = [&folder] {
    return std::make_unique<TestServer>([&folder](ServerOptions& options) {
      options.store_dir = folder.path();
      options.durability = Durability::kDrain;
    });
  };
  auto server = start();
  auto acme = std::make_unique<TestClient>(server->address(), "acme");
  auto other = std::make_unique<TestClient>(server->address(), "other");
  std::vector<v1::Session> before;
  std::vector<std::vector<uint32_t>> right;
  for (TestClient* client : {acme.get(), other.get()}) {
    for (const char* scorer : {"streaming", "h2o", "snapkv"}) {
      right.push_back(Decoded(*client, Filled(*client, scorer), 20));
      before.push_back(client->Get(Filled(*client, scorer)));
    }
  }
  // A draft that waits, and an answer that is being written.
  const std::string drafts = Filled(*acme, "h2o");
  v1::VerifyRequest verify;
  verify.set_session(drafts);
  verify.add_draft_tokens(1);
  verify.set_mode(v1::VERIFY_MODE_MANUAL);
  v1::VerifyResponse verified;
  ASSERT_TRUE(acme->inference().Verify(acme->Context().get(), verify, &verified).ok());
  const std::string runs = Filled(*acme, "h2o");
  const uint64_t prompt = acme->Get(runs).tokens();
  const auto context = acme->Context();
  const auto stream = acme->inference().Decode(context.get(), DecodeTokens(runs, 1 << 20));
  std::vector<uint32_t> seen;
  v1::DecodeResponse message;
  ASSERT_TRUE(stream->Read(&message));
  seen.insert(seen.end(), message.tokens().begin(), message.tokens().end());
  std::thread reader([&] {
    while (stream->Read(&message)) seen.insert(seen.end(), message.tokens().begin(), message.tokens().end());
  });
  server->server().Drain(absl::ZeroDuration());
  reader.join();
  EXPECT_EQ(stream->Finish().error_code(), Code::UNAVAILABLE);
  acme.reset();
  other.reset();
  server.reset();
  server = start();

  acme = std::make_unique<TestClient>(server->address(), "acme");
  other = std::make_unique<TestClient>(server->address(), "other");
  for (size_t i = 0; i < before.size(); ++i) {
    TestClient& client = i < 3 ? *acme : *other;
    const v1::Session after = client.Get(before[i].name());
    EXPECT_EQ(after.generation(), before[i].generation());
    EXPECT_EQ(after.tokens(), before[i].tokens());
    EXPECT_EQ(after.create_time().seconds(), before[i].create_time().seconds());
    EXPECT_EQ(after.policy().DebugString(), before[i].policy().DebugString());
    EXPECT_THAT(Decoded(client, after.name(), 20), ElementsAreArray(right[i]));
  }
  EXPECT_EQ(acme->Get(drafts).pending_draft_tokens(), 0U);
  EXPECT_THAT(Decoded(*acme, drafts, 3), SizeIs(3));
  v1::DecodeRequest resume = DecodeTokens(runs, static_cast<uint32_t>(seen.size()));
  resume.set_resume_from(prompt);
  EXPECT_GE(acme->Get(runs).tokens(), prompt + seen.size()) << "every token that was sent is in the log";
  EXPECT_THAT(acme->Decode(resume).tokens, ElementsAreArray(seen));
  EXPECT_TRUE(fs::is_empty(fs::path(folder.path()) / "sessions/acme")) << "they are no longer in the store";

  acme.reset();
  other.reset();
  server.reset();  // ends at once, without draining
  server = start();
  EXPECT_EQ(TestClient(server->address(), "acme").Status().work().sessions(), 0U);
}

TEST(KeptSessionsTest, AServerThatCannotListenLeavesThemToTheNext) {
  const TemporaryFolder folder;
  const auto keeps = [&folder](ServerOptions& options) {
    options.store_dir = folder.path();
    options.durability = Durability::kDrain;
  };
  {
    TestServer server(keeps);
    TestClient client(server.address(), "acme");
    Filled(client, "h2o");
    server.server().Drain(absl::ZeroDuration());
  }
  TestServer other([](ServerOptions& options) { options.http_listen = {.host = "127.0.0.1", .port = 0}; });
  const TinyModelFile model(TinyModel{});
  ServerOptions options = {.listen = {.host = "127.0.0.1", .port = 0},
                           .engine = {.model_path = model.path(), .threads = 1, .arena_bytes = 64 << 20}};
  keeps(options);
  options.http_listen = other.server().http_address();
  EXPECT_THAT(Server::Start(options).status(), IsRefusal(absl::StatusCode::kUnavailable, "PORT_UNAVAILABLE", ""));
  TestServer next(keeps);
  TestClient client(next.address(), "acme");
  v1::ListSessionsResponse list;
  ASSERT_TRUE(client.sessions().ListSessions(client.Context().get(), {}, &list).ok());
  EXPECT_THAT(list.sessions(), SizeIs(1));
}

TEST(KeptSessionsTest, OneThatIsDamagedStaysInTheStoreAndTheOthersComeBack) {
  const TemporaryFolder folder;
  const auto start = [&folder] {
    return std::make_unique<TestServer>([&folder](ServerOptions& options) {
      options.store_dir = folder.path();
      options.durability = Durability::kDrain;
    });
  };
  auto server = start();
  {
    TestClient client(server->address(), "acme");
    for (const char* id : {"a", "b", "c"}) {
      v1::CreateSessionRequest request = SessionWith(StreamingPolicy(24), 16);
      request.set_session_id(id);
      ASSERT_TRUE(client.Prefill(PrefillText(client.Create(request).name(), kKept)).ok());
    }
    server->server().Drain(absl::ZeroDuration());
  }
  server.reset();
  const fs::path damaged = fs::path(folder.path()) / "sessions/acme/b.snapshot";
  std::string bytes = ReadFile(damaged);
  bytes[bytes.size() / 2] ^= 1;
  WriteFile(damaged, bytes);
  server = start();
  TestClient client(server->address(), "acme");
  v1::ListSessionsResponse list;
  ASSERT_TRUE(client.sessions().ListSessions(client.Context().get(), {}, &list).ok());
  ASSERT_THAT(list.sessions(), SizeIs(2));
  EXPECT_EQ(list.sessions(0).name(), "sessions/a");
  EXPECT_EQ(list.sessions(1).name(), "sessions/c");
  EXPECT_EQ(ReadFile(damaged), bytes);
}

// However far it came: the session is whole, a snapshot of the name is a whole one, and no page is lost.
TEST_F(SnapshotsTest, CallsThatAreCancelledOrLateLeaveNothingHalfDone) {
  const std::string session = Filled(*client_, "h2o");
  ASSERT_TRUE(Save(*client_, SaveOf(session, "s")).ok());
  for (int i = 0; i < 40; ++i) {
    const auto context = client_->Context();
    if (i % 2 == 0) context->set_deadline(std::chrono::system_clock::now() + std::chrono::microseconds(100 * i));
    std::thread hangs_up([&] {
      if (i % 2 == 1) context->TryCancel();
    });
    if (i % 4 < 2) {
      v1::SaveSessionResponse saved;
      client_->sessions().SaveSession(context.get(), SaveOf(session, "s"), &saved);
    } else {
      v1::RestoreSessionRequest request;
      request.set_snapshot("snapshots/s");
      request.set_session_id("again");
      v1::Session restored;
      client_->sessions().RestoreSession(context.get(), request, &restored);
    }
    hangs_up.join();
    // A call of the same kind behind it: by then whatever it did is done.
    ASSERT_TRUE(Save(*client_, SaveOf(session, "s")).ok());
    client_->Delete("sessions/again");
  }
  const std::vector<uint32_t> right = Decoded(*client_, session, 10);
  const std::string restored = Restored(*client_, "snapshots/s").name();
  EXPECT_THAT(Decoded(*client_, restored, 10), ElementsAreArray(right));
  v1::ListSessionsResponse list;
  ASSERT_TRUE(client_->sessions().ListSessions(client_->Context().get(), {}, &list).ok());
  for (const v1::Session& each : list.sessions()) EXPECT_TRUE(client_->Delete(each.name()).ok());
  EXPECT_EQ(client_->Status().cache().pages_reserved(), 0U);
}

}  // namespace
}  // namespace ebb
