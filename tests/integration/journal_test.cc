// Sessions that are journaled, as clients see them: what a client was told is there after the server was killed, and
// each session goes on as if it had not been; and all that can happen to the files meanwhile.
//
// A server that is killed leaves its store as it is at that instant. So these tests copy the store while the server
// runs, when something was told, and start another on the copy. tests/e2e/crash_test.py kills the shipped binary.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/hash_random.h"
#include "tests/support/store_copy.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Code = grpc::StatusCode;

constexpr char kSaidOnce[] = "What was said once is said for good, whoever pulls the plug.";

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void WriteAll(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

struct Life {
  Durability durability = Durability::kStep;
  int64_t snapshot_every = 1 << 20;
  double prefix_share = 0;
};

std::unique_ptr<TestServer> StartOn(const std::string& store, const Life& life = {}) {
  return std::make_unique<TestServer>([&](ServerOptions& options) {
    options.http_listen = {.host = "127.0.0.1", .port = 0};
    options.store_dir = store;
    options.durability = life.durability;
    options.work.live.snapshot_every = life.snapshot_every;
    options.engine.prefix_share = life.prefix_share;
  });
}

// A copy of a server's store: as if it was killed at an instant at which it did nothing to its files.
struct Killed {
  explicit Killed(const std::string& running) {
    CopyStore(fs::path(running) / "journals", fs::path(folder.path()) / "journals");
  }
  TemporaryFolder folder;
};

void Open(TestClient& client, const std::string& id, const std::string& scorer) {
  v1::CreateSessionRequest request = SessionWith(StreamingPolicy(24), 16);
  request.set_session_id(id);
  request.set_request_id("made-" + id);
  if (scorer == "h2o") request.mutable_policy()->mutable_h2o();
  if (scorer == "tova") request.mutable_policy()->mutable_tova();
  if (scorer == "full") {
    request.mutable_policy()->Clear();
    request.mutable_policy()->mutable_full();
    request.mutable_policy()->mutable_trigger()->set_budget(1000);
  }
  request.mutable_sampling()->set_temperature(0.9F);
  request.mutable_sampling()->set_seed(11);
  client.Create(request);
}

// All that a client can see of a session's cache.
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
  return session.DebugString() + response.DebugString();
}

// What a client does to a session, each with what it was told.
using Deed = std::function<std::string(TestClient&, const std::string&)>;

template <typename Stub, typename Method, typename Request, typename Response>
std::string Told(TestClient& client, Stub& stub, Method method, const Request& request, Response* response) {
  const grpc::Status status = (stub.*method)(client.Context().get(), request, response);
  EXPECT_TRUE(status.ok()) << client::Describe(status);
  return {};
}

std::string Prefills(TestClient& client, const std::string& name) {
  EXPECT_TRUE(client.Prefill(PrefillText(name, kSaidOnce)).ok());
  return {};
}
std::string Decodes(TestClient& client, const std::string& name) {
  const Answer answer = client.Decode(DecodeTokens(name, 9));
  EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
  return testing::PrintToString(answer.tokens);
}
std::string LooksUp(TestClient& client, const std::string& name) {
  v1::DecodeRequest request = DecodeTokens(name, 9);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_speculation()->set_ngram(true);
  const Answer answer = client.Decode(request);
  EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
  return testing::PrintToString(answer.tokens);
}
std::string Verifies(TestClient& client, const std::string& name, v1::VerifyMode mode) {
  v1::VerifyRequest request;
  request.set_session(name);
  for (const uint32_t token : {4, 9, 4}) request.add_draft_tokens(token);
  request.set_mode(mode);
  v1::VerifyResponse response;
  Told(client, client.inference(), &v1::InferenceService::Stub::Verify, request, &response);
  response.clear_timings();
  return response.DebugString();
}
std::string VerifiesAtOnce(TestClient& client, const std::string& name) {
  return Verifies(client, name, v1::VERIFY_MODE_AUTO);
}
std::string VerifiesFirst(TestClient& client, const std::string& name) {
  return Verifies(client, name, v1::VERIFY_MODE_MANUAL);
}
std::string Accepts(TestClient& client, const std::string& name) {
  v1::AcceptRequest request;
  request.set_session(name);
  request.set_count(2);
  v1::AcceptResponse response;
  Told(client, client.inference(), &v1::InferenceService::Stub::Accept, request, &response);
  return response.DebugString();
}
std::string Edits(TestClient& client, const std::string& name, v1::EditMode mode) {
  v1::EditRequest request;
  request.set_session(name);
  request.set_mode(mode);
  v1::EditSpan& span = *request.add_spans();
  const uint64_t tokens = client.Get(name).tokens();
  span.set_start(tokens - 12);
  span.set_end(tokens - 9);
  span.mutable_tokens()->add_ids(7);
  v1::EditResponse response;
  Told(client, client.inference(), &v1::InferenceService::Stub::Edit, request, &response);
  response.clear_timings();
  response.clear_elapsed_ms();
  return response.DebugString();
}
std::string EditsTheTail(TestClient& client, const std::string& name) {
  return Edits(client, name, v1::EDIT_MODE_RECOMPUTE_TAIL);
}
std::string EditsASpan(TestClient& client, const std::string& name) {
  return Edits(client, name, v1::EDIT_MODE_RECOMPUTE_SPAN);
}
std::string Evicts(TestClient& client, const std::string& name) {
  v1::EvictRequest request;
  request.set_session(name);
  request.mutable_keep()->set_count(20);
  request.mutable_keep()->set_scorer("streaming");
  v1::EvictResponse response;
  Told(client, client.eviction(), &v1::EvictionService::Stub::Evict, request, &response);
  return response.DebugString();
}
std::string Swaps(TestClient& client, const std::string& name) {
  v1::SetPolicyRequest request;
  request.set_session(name);
  *request.mutable_policy() = StreamingPolicy(30);
  request.mutable_policy()->mutable_tova();
  v1::SetPolicyResponse response;
  Told(client, client.eviction(), &v1::EvictionService::Stub::SetPolicy, request, &response);
  return response.DebugString();
}

const std::vector<Deed> kDeeds = {Prefills, Decodes,  LooksUp,      VerifiesAtOnce, VerifiesFirst,
                                  Accepts,  Prefills, EditsTheTail, Decodes,        EditsASpan,
                                  Evicts,   Decodes,  Swaps,        Prefills,       Decodes};

class JournalTest : public testing::TestWithParam<Life> {};

// Killed after each of its deeds, at any of them before a snapshot took the journal's place or after, a session is what
// it is on a server that was never killed.
TEST_P(JournalTest, ASessionIsWhatItWasAfterEachOfItsDeeds) {
  TestServer undisturbed;
  TestClient calm(undisturbed.address());
  auto store = std::make_unique<TemporaryFolder>();
  auto server = StartOn(store->path(), GetParam());
  auto client = std::make_unique<TestClient>(server->address());
  const std::vector<std::string> scorers = {"streaming", "h2o", "full"};
  for (const std::string& scorer : scorers) {
    Open(calm, scorer, scorer);
    Open(*client, scorer, scorer);
  }
  for (size_t i = 0; i < kDeeds.size(); ++i) {
    for (const std::string& scorer : scorers) {
      const std::string name = "sessions/" + scorer;
      EXPECT_EQ(kDeeds[i](*client, name), kDeeds[i](calm, name)) << scorer << " " << i;
    }
    Killed killed(store->path());
    const auto next = StartOn(killed.folder.path(), GetParam());
    TestClient after(next->address());
    EXPECT_EQ(next->Metric("ebb_recovered_sessions_total{result=\"ok\"}"), 3);
    for (const std::string& scorer : scorers) {
      const std::string name = "sessions/" + scorer;
      ASSERT_EQ(Seen(after, name), Seen(calm, name)) << scorer << " " << i;
      const bool drafts = after.Get(name).pending_draft_tokens() > 0;
      if (i == 0 || drafts) continue;
      EXPECT_EQ(Decodes(after, name), Decodes(calm, name)) << scorer << " " << i;
      Decodes(*client, name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Lives, JournalTest,
                         testing::Values(Life{}, Life{.snapshot_every = 5}, Life{.durability = Durability::kSync}));

class OneSession : public testing::Test {
 protected:
  OneSession() : server_(StartOn(store_.path())), client_(std::make_unique<TestClient>(server_->address())) {}

  static fs::path FileOf(const std::string& store, const std::string& file) {
    return fs::path(store) / "journals/default" / file;
  }
  static uint64_t Sessions(TestServer& server) { return TestClient(server.address()).Status().work().sessions(); }

  TemporaryFolder store_;
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<TestClient> client_;
};

TEST_F(OneSession, EveryTokenThatWasToldIsThereWheneverTheServerIsKilled) {
  Open(*client_, "a", "h2o");
  Prefills(*client_, "sessions/a");
  const uint64_t prompt = client_->Get("sessions/a").tokens();
  const auto context = client_->Context();
  const auto stream = client_->inference().Decode(context.get(), DecodeTokens("sessions/a", 60));
  std::vector<uint32_t> told;
  std::vector<std::pair<size_t, std::unique_ptr<Killed>>> kills;
  v1::DecodeResponse message;
  while (stream->Read(&message)) {
    told.insert(told.end(), message.tokens().begin(), message.tokens().end());
    if (told.size() < 12 * kills.size() + 5) continue;
    const size_t so_far = told.size();
    kills.emplace_back(so_far, std::make_unique<Killed>(store_.path()));
  }
  ASSERT_TRUE(stream->Finish().ok());
  ASSERT_THAT(told, SizeIs(60));
  ASSERT_FALSE(kills.empty());
  for (const auto& [count, killed] : kills) {
    const auto next = StartOn(killed->folder.path());
    TestClient after(next->address());
    EXPECT_GE(after.Get("sessions/a").tokens(), prompt + count);
    v1::DecodeRequest resume = DecodeTokens("sessions/a", 60);
    resume.set_resume_from(prompt);
    EXPECT_THAT(after.Decode(resume).tokens, ElementsAreArray(told)) << "killed after " << count;
  }
}

TEST_F(OneSession, WhatWasCreatedForkedAndDeletedIsAndStaysSo) {
  Open(*client_, "a", "h2o");
  Open(*client_, "gone", "h2o");
  Prefills(*client_, "sessions/a");
  v1::ForkSessionRequest fork;
  fork.set_session("sessions/a");
  fork.set_session_id("b");
  v1::Session branch;
  ASSERT_TRUE(client_->sessions().ForkSession(client_->Context().get(), fork, &branch).ok());
  ASSERT_TRUE(client_->Delete("sessions/gone").ok());
  Decodes(*client_, "sessions/b");
  Killed killed(store_.path());
  const auto next = StartOn(killed.folder.path());
  TestClient after(next->address());
  EXPECT_EQ(Sessions(*next), 2U);
  EXPECT_EQ(Seen(after, "sessions/b"), Seen(*client_, "sessions/b"));
  EXPECT_EQ(Decodes(after, "sessions/a"), Decodes(*client_, "sessions/a"));
  v1::CreateSessionRequest again = SessionWith(StreamingPolicy(24), 16);
  again.set_session_id("other");
  again.set_request_id("made-a");
  EXPECT_EQ(after.Create(again).name(), "sessions/a") << "a retry of what was done";
}

// What a prompt did not have to run, since an earlier one began alike.
TEST(JournaledPrefixTest, WhatWasReusedIsThereToo) {
  const TemporaryFolder store;
  const auto server = StartOn(store.path(), {.prefix_share = 0.5});
  TestClient client(server->address());
  for (const char* id : {"a", "b"}) {
    Open(client, id, "h2o");
    Prefills(client, absl::StrFormat("sessions/%s", id));
  }
  ASSERT_EQ(server->Metric("ebb_prefix_hits_total{tenant=\"default\"}"), 1);
  Killed killed(store.path());
  const auto next = StartOn(killed.folder.path());
  TestClient after(next->address());
  EXPECT_EQ(Seen(after, "sessions/b"), Seen(client, "sessions/b"));
  EXPECT_EQ(Decodes(after, "sessions/b"), Decodes(client, "sessions/b"));
}

// Files that cannot be read at one start may be at the next: until then nobody writes in their place.
TEST_F(OneSession, WhatCannotBeReadNowIsLeftToTheNextStart) {
  Open(*client_, "a", "h2o");
  Prefills(*client_, "sessions/a");
  const std::string told = Seen(*client_, "sessions/a");
  Killed killed(store_.path());
  const fs::path journal = FileOf(killed.folder.path(), "a.1.journal");
  const fs::path elsewhere = FileOf(killed.folder.path(), "elsewhere");
  fs::rename(journal, elsewhere);
  fs::create_directory(journal);
  {
    const auto next = StartOn(killed.folder.path());
    TestClient after(next->address());
    EXPECT_EQ(next->Metric("ebb_recovered_sessions_total{result=\"left\"}"), 1);
    v1::CreateSessionRequest request = SessionWith(StreamingPolicy(24), 16);
    request.set_session_id("a");
    v1::Session made;
    const grpc::Status status = after.sessions().CreateSession(after.Context().get(), request, &made);
    EXPECT_EQ(status.error_code(), Code::UNAVAILABLE);
    EXPECT_EQ(client::ReadDetails(status).reason, "JOURNAL_FAILED");
    Open(after, "b", "h2o");
    EXPECT_EQ(Sessions(*next), 1U);
  }
  fs::remove(journal);
  fs::rename(elsewhere, journal);
  const auto last = StartOn(killed.folder.path());
  TestClient later(last->address());
  EXPECT_EQ(Seen(later, "sessions/a"), told);
}

// Tokens that a power cut took, but that the client was told: they are drawn anew.
TEST(SyncTest, AnAnswerGoesOnFromWhatTheClientHas) {
  const TemporaryFolder store;
  const Life life = {.durability = Durability::kSync};
  auto server = StartOn(store.path(), life);
  std::vector<uint32_t> told;
  uint64_t prompt = 0;
  {
    TestClient client(server->address());
    Open(client, "a", "h2o");
    Prefills(client, "sessions/a");
    prompt = client.Get("sessions/a").tokens();
    v1::DecodeRequest request = DecodeTokens("sessions/a", 40);
    request.mutable_sampling()->set_temperature(0.7F);
    request.mutable_sampling()->set_seed(3);
    const auto context = client.Context();
    const auto stream = client.inference().Decode(context.get(), request);
    v1::DecodeResponse message;
    while (told.size() < 25 && stream->Read(&message)) {
      told.insert(told.end(), message.tokens().begin(), message.tokens().end());
    }
    context->TryCancel();
    stream->Finish();
  }
  // All records of tokens, and the answer's end, are what was not synced yet: cut behind the beginning of the answer.
  const fs::path journal = fs::path(store.path()) / "journals/default/a.1.journal";
  const std::string bytes = ReadAll(journal);
  server.reset();
  int answered = 0;
  for (size_t cut = bytes.size(); cut-- > 0;) {
    if (bytes[cut] != '\xEB') continue;
    WriteAll(journal, bytes.substr(0, cut + 1));
    server = StartOn(store.path(), life);
    TestClient client(server->address());
    const uint64_t length = client.Get("sessions/a").tokens();
    if (length < prompt) break;
    v1::DecodeRequest resume = DecodeTokens("sessions/a", 5);  // a slow reader may have been told all 40 already
    resume.mutable_sampling()->set_temperature(0.7F);
    resume.mutable_sampling()->set_seed(3);
    resume.set_resume_from(prompt + told.size());
    if (length < prompt + told.size()) {
      const Answer rest = client.Decode(resume);
      if (!rest.status.ok()) break;  // the answer had not begun
      ++answered;
      v1::DecodeRequest all = DecodeTokens("sessions/a", static_cast<uint32_t>(told.size()));
      all.set_resume_from(prompt);
      EXPECT_THAT(client.Decode(all).tokens, ElementsAreArray(told)) << length;
      if (length == prompt) break;
      if (answered == 1) cut -= cut / 8;  // one of many, and the last
    }
    server.reset();
  }
  EXPECT_GT(answered, 1);
}

TEST_F(OneSession, OneThatIsDamagedIsNamedAndSetAsideAndTheOthersComeBack) {
  for (const char* id : {"a", "b"}) {
    Open(*client_, id, "h2o");
    Prefills(*client_, absl::StrFormat("sessions/%s", id));
    Decodes(*client_, absl::StrFormat("sessions/%s", id));
  }
  const std::string other = Seen(*client_, "sessions/b");
  for (const std::string file : {"a.1.journal", "a.1.snapshot"}) {
    const std::string bytes = ReadAll(FileOf(store_.path(), file));
    for (uint64_t i = 0; i < 6; ++i) {
      const uint64_t bit = HashBits(i, 0, bytes.size()) % (8 * bytes.size());
      std::string flipped = bytes;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
      Killed killed(store_.path());
      WriteAll(FileOf(killed.folder.path(), file), flipped);
      const auto next = StartOn(killed.folder.path());
      TestClient after(next->address());
      EXPECT_EQ(next->Metric("ebb_recovered_sessions_total{result=\"set_aside\"}"), 1) << file << " bit " << bit;
      EXPECT_EQ(Sessions(*next), 1U);
      EXPECT_EQ(Seen(after, "sessions/b"), other);
      EXPECT_TRUE(fs::exists(FileOf(killed.folder.path(), file + ".damaged")));
      Open(after, "a", "h2o");  // the name is free again
    }
  }
}

// The last record at any of its bytes: it was not acknowledged, and what was before it is there.
TEST_F(OneSession, AJournalThatIsCutInItsLastRecordIsWhatItWasBefore) {
  Open(*client_, "a", "h2o");
  Prefills(*client_, "sessions/a");
  const std::string before = Seen(*client_, "sessions/a");
  const size_t length = ReadAll(FileOf(store_.path(), "a.1.journal")).size();
  Evicts(*client_, "sessions/a");
  const std::string bytes = ReadAll(FileOf(store_.path(), "a.1.journal"));
  ASSERT_GT(bytes.size(), length);
  for (size_t cut = length; cut < bytes.size(); cut += 7) {  // all of them: JournalFileTest
    Killed killed(store_.path());
    WriteAll(FileOf(killed.folder.path(), "a.1.journal"), bytes.substr(0, cut));
    const auto next = StartOn(killed.folder.path());
    TestClient after(next->address());
    EXPECT_EQ(Seen(after, "sessions/a"), before) << cut;
    Decodes(after, "sessions/a");  // goes on behind the cut
    const std::string now = Seen(after, "sessions/a");
    Killed again(killed.folder.path());
    const auto last = StartOn(again.folder.path());
    TestClient later(last->address());
    EXPECT_EQ(Seen(later, "sessions/a"), now);
  }
}

TEST_F(OneSession, AJournalThatCannotBeWrittenEndsItsSessionByNameAndNoOther) {
  signal(SIGXFSZ, SIG_IGN);
  for (const char* id : {"a", "b"}) Open(*client_, id, "h2o");
  Prefills(*client_, "sessions/a");
  Prefills(*client_, "sessions/a");
  const std::string told = Seen(*client_, "sessions/a");
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {.rlim_cur = ReadAll(FileOf(store_.path(), "a.1.journal")).size() + 30,
                        .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const Answer answer = client_->Decode(DecodeTokens("sessions/a", 20));
  const grpc::Status again = client_->Prefill(PrefillText("sessions/a", kSaidOnce));
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(answer.status.error_code(), Code::FAILED_PRECONDITION);
  EXPECT_EQ(client::ReadDetails(answer.status).reason, "JOURNAL_FAILED");
  EXPECT_THAT(answer.status.error_message(), HasSubstr("sessions/a"));
  EXPECT_THAT(answer.tokens, IsEmpty()) << "what is not written is not told";
  EXPECT_EQ(client::ReadDetails(again).reason, "JOURNAL_FAILED");
  EXPECT_EQ(server_->Metric("ebb_journal_failures_total"), 1);
  Prefills(*client_, "sessions/b");  // the others go on
  Killed killed(store_.path());
  const auto next = StartOn(killed.folder.path());
  TestClient after(next->address());
  EXPECT_EQ(Seen(after, "sessions/a"), told);
  EXPECT_EQ(Seen(after, "sessions/b"), Seen(*client_, "sessions/b"));
  EXPECT_TRUE(client_->Delete("sessions/a").ok()) << "and its name is free";
  Open(*client_, "a", "h2o");
}

}  // namespace
}  // namespace ebb
