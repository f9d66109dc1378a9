// Servers that share their sessions in a real Redis: sessions move by a server's end, no session is written by two, and
// what becomes of them when Redis is away or comes back with less. tests/e2e/shared_store_test.py does the same to
// processes under load, with SIGKILL and SIGSTOP.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "policies/status.h"
#include "server/redis_sessions.h"
#include "tests/support/redis_process.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using Code = grpc::StatusCode;

constexpr char kOnePlace[] = "Who writes to a session is decided in one place.";
constexpr char kElsewhere[] = "elsewhere:7700";
const SessionName kA = {"default", "a"};

std::string WordOf(const absl::StatusOr<RedisReply>& reply) {
  EXPECT_TRUE(reply.ok()) << reply.status();
  return reply.ok() && !reply->list.empty() ? reply->list.front().text : "";
}

class SharedStoreTest : public testing::Test {
 protected:
  struct Life {
    absl::Duration lease = absl::Seconds(3);
    absl::Duration patience = absl::Seconds(60);
    int64_t snapshot_every = 1 << 20;
    std::string password_file = {};
    std::string swap_dir = {};  // with a small arena; empty: no session is swapped
  };
  std::unique_ptr<TestServer> Start() { return Start({}); }
  std::unique_ptr<TestServer> Start(const Life& life) {
    return std::make_unique<TestServer>([&](ServerOptions& options) {
      options.http_listen = {.host = "127.0.0.1", .port = 0};
      options.durability = Durability::kStep;
      options.shared_store = {.redis = redis_.options(), .lease = life.lease, .patience = life.patience};
      options.shared_store->redis.password_file = life.password_file;
      options.work.live.snapshot_every = life.snapshot_every;
      if (life.swap_dir.empty()) return;
      options.store_dir = life.swap_dir;
      options.swap_bytes_max = 1 << 30;
      options.engine.arena_bytes = 384 << 10;
    });
  }

  static void Open(TestClient& client, const std::string& id) {
    v1::CreateSessionRequest request = SessionWith(StreamingPolicy(24), 16);
    request.set_session_id(id);
    request.mutable_policy()->mutable_h2o();
    request.mutable_sampling()->set_temperature(0.9F);
    request.mutable_sampling()->set_seed(11);
    client.Create(request);
    EXPECT_TRUE(client.Prefill(PrefillText("sessions/" + id, kOnePlace)).ok());
  }

  static std::vector<uint32_t> Decode(TestClient& client, const std::string& name) {
    const Answer answer = client.Decode(DecodeTokens(name, 9));
    EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
    return answer.tokens;
  }

  // What the client's calls come to once the session is there: those that ask too early are told to try again.
  static grpc::Status Await(TestClient& client, const std::string& name, const std::string& reason) {
    grpc::Status status;
    const absl::Time patience = absl::Now() + absl::Minutes(1);
    do {
      v1::GetSessionRequest request;
      request.set_name(name);
      v1::Session session;
      status = client.sessions().GetSession(client.Context().get(), request, &session);
      const std::string said = client::ReadDetails(status).reason;
      if (status.ok() || said != reason) return status;
      absl::SleepFor(absl::Milliseconds(5));  // as the answer's RetryInfo asks for
    } while (absl::Now() < patience);
    return status;
  }

  // Takes the session as another server would after this one's lease.
  void TakeAway(const SessionName& name) {
    RedisConnection connection(redis_.options());
    const auto servers = connection.Run(RedisCommand{"KEYS", "ebb:server:*"});
    ASSERT_TRUE(servers.ok()) << servers.status();
    ASSERT_THAT(servers->list, SizeIs(1));
    const RedisKeys other("ebb:", "other");
    EXPECT_EQ(WordOf(connection.Run(other.Take(name))), "OWNED") << "not while the lease runs";
    const std::vector<RedisCommand> take = {
        {"DEL", servers->list.front().text}, other.Lease(kElsewhere, absl::Minutes(5), false), other.Take(name)};
    const auto taken = connection.Run(std::span<const RedisCommand>(take));  // at once: the server renews its lease
    ASSERT_TRUE(taken.ok()) << taken.status();
    ASSERT_EQ(taken->back().list.front().text, "OK");
  }

  TemporaryFolder folder_;
  RedisProcess redis_{folder_.path()};
};

TEST_F(SharedStoreTest, SessionsOfAServerThatEndsGoOnAtAnother) {
  TestServer undisturbed;
  TestClient calm(undisturbed.address());
  Open(calm, "a");
  Open(calm, "b");
  auto first = Start({.snapshot_every = 5});  // snapshots take the journals' places
  auto second = Start();
  {
    TestClient client(first->address());
    Open(client, "a");
    Open(client, "b");
    EXPECT_EQ(Decode(client, "sessions/a"), Decode(calm, "sessions/a"));
  }
  for (int turn = 0; turn < 2; ++turn) {
    TestClient other(second->address());
    v1::GetSessionRequest request;
    request.set_name("sessions/a");
    v1::Session session;
    const grpc::Status moved = other.sessions().GetSession(other.Context().get(), request, &session);
    EXPECT_EQ(moved.error_code(), Code::UNAVAILABLE);
    EXPECT_EQ(client::ReadDetails(moved).reason, "SESSION_MOVED");
    EXPECT_THAT(moved.error_message(), HasSubstr(first->address()));
    first.reset();
    for (const char* name : {"sessions/a", "sessions/b"}) {
      ASSERT_TRUE(Await(other, name, "SESSION_MOVED").ok());
      EXPECT_EQ(Decode(other, name), Decode(calm, name)) << turn;
    }
    EXPECT_EQ(second->Metric("ebb_taken_sessions_total{result=\"ok\"}"), 2);
    first = std::exchange(second, turn == 0 ? Start({.snapshot_every = 5}) : Start());
  }
  TestClient client(first->address());
  for (const char* name : {"sessions/a", "sessions/b"}) EXPECT_TRUE(client.Delete(name).ok());
  EXPECT_EQ(redis_.Ask({"EVAL", "return #redis.call('KEYS', 'ebb:session*')", "0"}), "0");
  EXPECT_EQ(Await(client, "sessions/a", "SESSION_MOVED").error_code(), Code::NOT_FOUND);
}

// What is swapped is in Redis as what is in memory is: it moves with the others, to a server that has no room for all
// of them either, and nothing of it stays behind.
TEST_F(SharedStoreTest, SessionsThatAreSwappedMoveAsOthersDo) {
  constexpr int kSessions = 30;  // 24 fill the arena
  TestServer undisturbed;
  TestClient calm(undisturbed.address());
  const TemporaryFolder here, there;
  auto first = Start({.snapshot_every = 20, .swap_dir = here.path()});
  std::vector<std::string> names;
  {
    TestClient client(first->address());
    for (int i = 0; i < kSessions; ++i) {
      const std::string id = absl::StrCat("s", i);
      Open(client, id);
      Open(calm, id);
      names.push_back("sessions/" + id);
    }
    for (const std::string& name : names) ASSERT_EQ(Decode(client, name), Decode(calm, name)) << name;
  }
  ASSERT_GT(first->Metric("ebb_swapped_sessions"), 0);
  auto second = Start({.swap_dir = there.path()});
  first.reset();
  {
    TestClient client(second->address());
    for (const std::string& name : names) {
      ASSERT_TRUE(Await(client, name, "SESSION_MOVED").ok()) << name;
      ASSERT_EQ(Decode(client, name), Decode(calm, name)) << name;
    }
  }
  EXPECT_GT(second->Metric("ebb_swapped_sessions"), 0);
  // One that another server takes while it is swapped here is gone here, file and all.
  const auto is_away = [&](const std::string& name) {
    TestClient client(second->address());
    return client.Get(name).swapped();
  };
  const auto away = std::ranges::find_if(names, is_away);
  ASSERT_NE(away, names.end());
  const double swapped = second->Metric("ebb_swapped_sessions");
  TakeAway({"default", away->substr(sizeof("sessions/") - 1)});
  TestClient client(second->address());
  const grpc::Status lost = client.Decode(DecodeTokens(*away, 1)).status;
  EXPECT_EQ(lost.error_code(), Code::UNAVAILABLE);
  EXPECT_EQ(client::ReadDetails(lost).reason, "SESSION_MOVED");
  EXPECT_EQ(client::ReadDetails(Await(client, *away, "")).reason, "SESSION_MOVED");
  EXPECT_LE(second->Metric("ebb_swapped_sessions"), swapped);
  for (const std::string& name : names) {
    if (name == *away) continue;
    EXPECT_TRUE(client.Delete(name).ok()) << name;
  }
  EXPECT_EQ(second->Metric("ebb_swapped_sessions"), 0);
  EXPECT_EQ(second->Metric("ebb_swap_file_bytes"), 0);
}

TEST_F(SharedStoreTest, AServerThatLostASessionWritesAndTellsNothingMoreOfIt) {
  const auto server = Start();
  TestClient client(server->address());
  Open(client, "a");
  const std::string journal = redis_.Ask({"GET", "ebb:session:default/a:journal:1"});
  TakeAway(kA);
  const Answer answer = client.Decode(DecodeTokens("sessions/a", 20));
  EXPECT_EQ(answer.status.error_code(), Code::UNAVAILABLE);
  EXPECT_EQ(client::ReadDetails(answer.status).reason, "SESSION_MOVED");
  EXPECT_THAT(answer.status.error_message(), HasSubstr(kElsewhere));
  EXPECT_THAT(answer.tokens, SizeIs(0)) << "what is not written is not told";
  EXPECT_EQ(redis_.Ask({"GET", "ebb:session:default/a:journal:1"}), journal);
  const grpc::Status again = client.Prefill(PrefillText("sessions/a", kOnePlace));
  EXPECT_THAT(again.error_message(), HasSubstr(kElsewhere)) << client::Describe(again);
  EXPECT_EQ(server->Metric("ebb_fenced_sessions_total"), 1);
  Open(client, "b");  // others are untouched
  EXPECT_EQ(Decode(client, "sessions/b").size(), 9U);
}

// A retry that reached another server made another session there, since no server knows of the other's calls.
TEST_F(SharedStoreTest, WhatTwoServersMadeForOneRequestComesTogether) {
  auto first = Start();
  auto second = Start();
  v1::CreateSessionRequest request = SessionWith(StreamingPolicy(24), 16);
  request.set_request_id("once");
  const std::string here = TestClient(first->address()).Create(request).name();
  TestClient other(second->address());
  const std::string there = other.Create(request).name();
  EXPECT_NE(here, there);
  first.reset();
  EXPECT_TRUE(Await(other, here, "SESSION_MOVED").ok());
  EXPECT_TRUE(Await(other, there, "SESSION_MOVED").ok());
  EXPECT_EQ(second->Metric("ebb_taken_sessions_total{result=\"ok\"}"), 1);
  EXPECT_EQ(other.Create(request).name(), there) << "of the two, the one that was made here";
}

TEST_F(SharedStoreTest, ANameIsTakenOnAllServers) {
  const auto first = Start();
  const auto second = Start();
  TestClient client(first->address());
  TestClient other(second->address());
  Open(client, "a");
  v1::CreateSessionRequest request = SessionWith(StreamingPolicy(24), 16);
  request.set_session_id("a");
  v1::Session session;
  const grpc::Status status = other.Create(request, &session);
  EXPECT_EQ(status.error_code(), Code::ALREADY_EXISTS);
  EXPECT_EQ(client::ReadDetails(status).reason, "NAME_TAKEN");
  EXPECT_EQ(Decode(client, "sessions/a").size(), 9U);
}

TEST_F(SharedStoreTest, WritesWaitForARedisThatIsAway) {
  TestServer undisturbed;
  TestClient calm(undisturbed.address());
  Open(calm, "a");
  const auto server = Start();
  TestClient client(server->address());
  Open(client, "a");
  redis_.Kill();
  std::vector<uint32_t> told;
  std::thread reader([&] { told = Decode(client, "sessions/a"); });
  redis_.Start();
  reader.join();
  EXPECT_EQ(told, Decode(calm, "sessions/a"));
}

TEST_F(SharedStoreTest, WhoseWritesWaitedTooLongComesBackAsRedisHasIt) {
  TestServer undisturbed;
  TestClient calm(undisturbed.address());
  Open(calm, "a");
  const auto server = Start({.lease = absl::Milliseconds(300), .patience = absl::ZeroDuration()});
  TestClient client(server->address());
  Open(client, "a");
  redis_.Kill();
  const Answer answer = client.Decode(DecodeTokens("sessions/a", 9));
  EXPECT_EQ(answer.status.error_code(), Code::UNAVAILABLE);
  EXPECT_EQ(client::ReadDetails(answer.status).reason, "STORE_FAILED");
  EXPECT_THAT(answer.tokens, SizeIs(0));
  redis_.Start();
  const std::string name = "sessions/a";
  grpc::Status back = Await(client, name, "STORE_FAILED");
  if (!back.ok()) back = Await(client, name, "SESSION_MOVED");
  ASSERT_TRUE(back.ok()) << client::Describe(back);
  EXPECT_EQ(Decode(client, name), Decode(calm, name));
}

TEST_F(SharedStoreTest, APasswordThatChangesIsReadWithTheNextConnection) {
  TestServer undisturbed;
  TestClient calm(undisturbed.address());
  Open(calm, "a");
  const std::string file = folder_.path() + "/password";
  const auto write = [&](const std::string& text) { std::ofstream(file) << text; };
  write("first\nno part of it\n");
  redis_.Ask({"CONFIG", "SET", "requirepass", "first"});
  RedisOptions options = redis_.options();
  options.password_file = file;
  RedisConnection admin(options);
  const auto server = Start({.password_file = file});
  TestClient client(server->address());
  Open(client, "a");
  ASSERT_TRUE(admin.Run(RedisCommand{"CONFIG", "SET", "requirepass", "second"}).ok());
  const RedisCommand cut_others = {"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"};
  ASSERT_NE(admin.Run(cut_others)->text, "0");
  EXPECT_THAT(RedisConnection(options).Run(RedisCommand{"PING"}).status().message(), HasSubstr("WRONGPASS"));
  write("second\n");
  EXPECT_EQ(Decode(client, "sessions/a"), Decode(calm, "sessions/a"));

  RedisConnection other(options);
  ASSERT_TRUE(other.Run(RedisCommand{"PING"}).ok());
  ASSERT_NE(admin.Run(cut_others)->text, "0");
  EXPECT_FALSE(other.Run(RedisCommand{"PING"}).ok()) << "it learns that it was cut";
  for (const char* const text : {"", "\nsecond\n"}) {
    write(text);
    const absl::Status status = other.Run(RedisCommand{"PING"}).status();
    EXPECT_EQ(GetRefusal(status).reason, "STORE_FAILED");
    EXPECT_THAT(status.message(), HasSubstr("store.redis_password_file: a password is expected on the first line of "
                                            "password"));
    EXPECT_THAT(status.message(), Not(HasSubstr(folder_.path()))) << "tenants read it";
  }
  fs::remove(file);
  EXPECT_THAT(other.Run(RedisCommand{"PING"}).status().message(), HasSubstr("first line of password"));
  write("second");
  EXPECT_TRUE(other.Run(RedisCommand{"PING"}).ok());
}

// As after a power cut with appendfsync everysec.
TEST_F(SharedStoreTest, WhatRedisForgotEndsTheSessionByName) {
  auto server = Start();
  auto client = std::make_unique<TestClient>(server->address());
  Open(*client, "a");
  const TemporaryFolder earlier;
  fs::copy(fs::path(folder_.path()) / "appendonlydir", fs::path(earlier.path()) / "appendonlydir",
           fs::copy_options::recursive);
  Decode(*client, "sessions/a");
  const uint64_t tokens = client->Get("sessions/a").tokens();
  redis_.Kill();
  fs::remove_all(fs::path(folder_.path()) / "appendonlydir");
  fs::copy(fs::path(earlier.path()) / "appendonlydir", fs::path(folder_.path()) / "appendonlydir",
           fs::copy_options::recursive);
  redis_.Start();
  const Answer answer = client->Decode(DecodeTokens("sessions/a", 9));
  EXPECT_EQ(answer.status.error_code(), Code::FAILED_PRECONDITION);
  const client::ErrorDetails details = client::ReadDetails(answer.status);
  EXPECT_EQ(details.reason, "JOURNAL_FAILED");
  EXPECT_THAT(details.metadata, ::testing::Contains(::testing::Pair("cause", "STORE_LOST")));
  EXPECT_THAT(answer.status.error_message(), HasSubstr("less than it had acknowledged"));
  EXPECT_THAT(answer.tokens, SizeIs(0));
  EXPECT_GE(client->Get("sessions/a").tokens(), tokens) << "all of it can still be read";
  client.reset();
  server.reset();
  const auto next = Start();
  TestClient after(next->address());
  const grpc::Status status = Await(after, "sessions/a", "SESSION_MOVED");
  EXPECT_EQ(status.error_code(), Code::DATA_LOSS) << "it does not come back as it once was";
  EXPECT_EQ(client::ReadDetails(status).reason, "JOURNAL_DAMAGED");
}

TEST_F(SharedStoreTest, OneThatIsDamagedIsNamedAndTheOthersMove) {
  auto first = Start();
  {
    TestClient client(first->address());
    Open(client, "a");
    Open(client, "b");
  }
  first.reset();
  redis_.Ask({"SETRANGE", "ebb:session:default/a:journal:1", "30", "????"});
  const auto second = Start();
  TestClient client(second->address());
  EXPECT_TRUE(Await(client, "sessions/b", "SESSION_MOVED").ok());
  const grpc::Status status = Await(client, "sessions/a", "SESSION_MOVED");
  EXPECT_EQ(client::ReadDetails(status).reason, "JOURNAL_DAMAGED");
  EXPECT_THAT(status.error_message(), HasSubstr("byte"));
  EXPECT_EQ(second->Metric("ebb_recovered_sessions_total{result=\"set_aside\"}"), 1);
}

// The scripts themselves, as two servers send them.
TEST_F(SharedStoreTest, AWriteIsDoneOnceAndByTheLastWhoTookTheSession) {
  RedisConnection redis(redis_.options());
  const RedisKeys one("ebb:", "one");
  const RedisKeys two("ebb:", "two");
  ASSERT_TRUE(redis.Run(one.Lease("one:1", absl::Minutes(5), false)).ok());
  EXPECT_EQ(WordOf(redis.Run(one.Stage("snapshot", 0))), "OK");
  EXPECT_EQ(WordOf(redis.Run(one.Begin(kA, 1))), "OK");
  EXPECT_EQ(WordOf(redis.Run(one.Begin(kA, 1))), "OK") << "the second try";
  EXPECT_EQ(WordOf(redis.Run(one.Begin(kA, 2))), "TAKEN");
  EXPECT_EQ(WordOf(redis.Run(two.Begin(kA, 1))), "TAKEN");
  JournalPlace place = {.epoch = 1};
  EXPECT_EQ(WordOf(redis.Run(one.Append(kA, place, "first"))), "OK");
  EXPECT_EQ(WordOf(redis.Run(one.Append(kA, place, "first"))), "OK") << "the second try";
  EXPECT_EQ(redis_.Ask(one.Journal(kA, 1)), "first") << "and once there";
  place.end.bytes = 5;
  EXPECT_EQ(WordOf(redis.Run(two.Append(kA, place, "other"))), "FENCED") << "the number alone is not enough";
  EXPECT_EQ(WordOf(redis.Run(two.Take(kA))), "OWNED");
  ASSERT_TRUE(redis.Run(one.EndLease()).ok());
  EXPECT_EQ(WordOf(redis.Run(two.Take(kA))), "OK");
  EXPECT_EQ(WordOf(redis.Run(one.Append(kA, place, "late"))), "FENCED");
  EXPECT_EQ(WordOf(redis.Run(one.Renew(kA, place))), "FENCED");
  EXPECT_EQ(WordOf(redis.Run(one.AddSlice(kA, 1, 1, 1, "late"))), "FENCED");
  EXPECT_EQ(WordOf(redis.Run(one.Settle(kA, 1, 1, 1))), "FENCED");
  EXPECT_EQ(WordOf(redis.Run(one.Remove(kA, 1))), "FENCED");
  EXPECT_EQ(WordOf(redis.Run(one.Release(kA, 1, ""))), "FENCED");
  EXPECT_EQ(WordOf(redis.Run(one.Take(kA))), "OK") << "two has no lease";
  EXPECT_EQ(WordOf(redis.Run(one.Append(kA, place, "late"))), "FENCED") << "an older number of its own";
  place.epoch = 3;
  EXPECT_EQ(WordOf(redis.Run(one.Append(kA, place, "again"))), "OK");
  EXPECT_EQ(redis_.Ask(one.Journal(kA, 1)), "firstagain");
  EXPECT_EQ(WordOf(redis.Run(one.Remove(kA, 3))), "OK");
  EXPECT_EQ(WordOf(redis.Run(one.Remove(kA, 3))), "MISSING");
}

}  // namespace
}  // namespace ebb
