// Generations that a second model drafts for: the tokens are those of plain decoding, whatever that model says, and its
// caches go with the sessions that they follow.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "policies/status.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using client::ReadDetails;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using Code = grpc::StatusCode;

constexpr char kLamp[] = "The lamp is in the cellar, and the cellar is under the house.";

v1::CreateSessionRequest Create(const v1::PolicySpec& policy, float temperature) {
  v1::CreateSessionRequest request = SessionWith(policy, 16);
  request.mutable_sampling()->set_temperature(temperature);
  request.mutable_sampling()->set_seed(5);
  return request;
}

// A server whose draft model is `draft`; the model that it serves is TinyModel{}.
class Drafted {
 public:
  explicit Drafted(const TinyModel& draft, const std::function<void(ServerOptions&)>& change = {})
      : draft_(draft), server_([&](ServerOptions& options) {
          options.http_listen = {.host = "127.0.0.1", .port = 0};
          options.draft = {.path = draft_.path(), .budget = 256, .arena_bytes = 4 << 20};
          if (change) change(options);
        }) {
    name_ = client_.Status().model().draft_model();
    EXPECT_NE(name_, "");
  }

  v1::GenerateRequest Asked(v1::GenerateRequest request) const {
    request.mutable_speculation()->set_draft_model(name_);
    return request;
  }
  v1::DecodeRequest Asked(v1::DecodeRequest request) const {
    request.mutable_speculation()->set_draft_model(name_);
    return request;
  }
  // What a new session says to the text, and then without drafts, which shows what it is.
  Answer Tell(const v1::CreateSessionRequest& create, uint32_t tokens, bool drafts) {
    const std::string session = client_.Create(create).name();
    const v1::GenerateRequest request = GenerateText(session, kLamp, tokens);
    Answer answer = client_.Generate(drafts ? Asked(request) : request);
    EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
    const Answer after = client_.Decode(DecodeTokens(session, 5));
    answer.tokens.insert(answer.tokens.end(), after.tokens.begin(), after.tokens.end());
    EXPECT_TRUE(client_.Delete(session).ok());
    return answer;
  }

  const std::string& name() const { return name_; }
  TestClient& client() { return client_; }
  double caches() const { return server_.Metric("ebb_draft_caches"); }
  // What a call used goes after its answer.
  bool IsSoonEmpty() const {
    const absl::Time end = absl::Now() + absl::Minutes(1);
    while ((caches() > 0 || pages() > 0) && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
    return caches() == 0 && pages() == 0;
  }
  double pages() const { return server_.Metric("ebb_draft_pages{state=\"reserved\"}"); }
  // Of tenant acme.
  double Tokens(const std::string& what, const std::string& source) const {
    return server_.Metric("ebb_" + what + "_tokens_total{tenant=\"acme\",source=\"" + source + "\"}");
  }

 private:
  TinyModelFile draft_;
  TestServer server_;
  TestClient client_ = TestClient(server_.address(), "acme");
  std::string name_;
};

// A model that is always right, and one that hardly ever is.
const TinyModel kTwin = {};
const TinyModel kStranger = {.layers = 1, .dim = 32, .heads = 2, .kv_heads = 1, .seed = 9};

TEST(DraftModel, ChangesNoTokenUnderAnyPolicyAtAnyTemperature) {
  for (const TinyModel& draft : {kTwin, kStranger}) {
    Drafted server(draft);
    uint32_t drafted = 0, accepted = 0;
    for (const v1::PolicySpec& policy :
         {PolicyOf("full", 400), PolicyOf("streaming", 48), PolicyOf("streaming", 48, 12), PolicyOf("h2o", 72, 12),
          PolicyOf("h2o", 300)}) {
      for (const float temperature : {0.0F, 0.8F}) {
        SCOPED_TRACE(testing::Message() << policy.ShortDebugString() << " at " << temperature);
        const v1::CreateSessionRequest create = Create(policy, temperature);
        const Answer plain = server.Tell(create, 60, false);
        const Answer told = server.Tell(create, 60, true);
        EXPECT_THAT(told.tokens, ElementsAreArray(plain.tokens));
        EXPECT_EQ(told.text, plain.text);
        EXPECT_EQ(told.last().usage().evicted_tokens(), plain.last().usage().evicted_tokens());
        EXPECT_EQ(told.last().usage().cache_length(), plain.last().usage().cache_length());
        drafted += told.last().usage().drafted_tokens();
        accepted += told.last().usage().accepted_draft_tokens();
      }
    }
    EXPECT_GT(drafted, 20U);
    EXPECT_LE(accepted, drafted);
    if (draft.seed == kTwin.seed) {
      EXPECT_GE(accepted, 8U) << "the first drafts of the two greedy answers that nobody is evicted from, at least";
    }
    EXPECT_EQ(server.Tokens("drafted", "model"), drafted);
    EXPECT_EQ(server.Tokens("accepted_draft", "model"), accepted);
    EXPECT_EQ(server.Tokens("drafted", "ngram"), 0);
    EXPECT_TRUE(server.IsSoonEmpty()) << "all sessions are deleted";
  }
}

TEST(DraftModel, InCompanyEverySessionSaysWhatItSaysAlone) {
  Drafted server(kTwin);
  constexpr int kSessions = 6;
  std::vector<Answer> alone(kSessions), together(kSessions);
  const auto tell = [&](int i, bool drafts) {
    return server.Tell(Create(PolicyOf(i % 2 == 0 ? "full" : "h2o", 300), i % 3 == 0 ? 0.8F : 0.0F), 60, drafts);
  };
  for (int i = 0; i < kSessions; ++i) alone[i] = tell(i, false);
  std::vector<std::thread> threads;
  for (int i = 0; i < kSessions; ++i) threads.emplace_back([&, i] { together[i] = tell(i, i != 2); });
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kSessions; ++i) EXPECT_THAT(together[i].tokens, ElementsAreArray(alone[i].tokens)) << i;
  EXPECT_EQ(server.pages(), 0);
}

// Whatever a client does to a session between two drafts: the next tokens are those of a session that never drafted.
TEST(DraftModel, FollowsASessionThroughAllThatHappensToIt) {
  Drafted server(kTwin);
  TestClient& client = server.client();
  const auto live = [&](bool drafts) {
    const auto asked = [&](const v1::DecodeRequest& request) { return drafts ? server.Asked(request) : request; };
    std::vector<uint32_t> told;
    const auto go_on = [&](const std::string& session) {
      const Answer answer = client.Decode(asked(DecodeTokens(session, 12)));
      EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
      told.insert(told.end(), answer.tokens.begin(), answer.tokens.end());
    };
    v1::CreateSessionRequest create = Create(PolicyOf("h2o", 60, 16), 0.5F);
    create.set_session_id("trunk");
    const std::string session = client.Create(create).name();
    EXPECT_TRUE(client.Prefill(PrefillText(session, kLamp)).ok());
    go_on(session);

    v1::EditRequest edit;  // of the part that the draft model has read
    edit.set_session(session);
    v1::EditSpan& span = *edit.add_spans();
    span.set_start(client.Get(session).tokens() - 10);
    span.set_end(client.Get(session).tokens() - 4);
    span.mutable_tokens()->add_ids(77);
    v1::EditResponse edited;
    EXPECT_TRUE(client.inference().Edit(client.Context().get(), edit, &edited).ok());
    go_on(session);

    v1::EvictRequest evict;
    evict.set_session(session);
    evict.mutable_keep()->set_count(30);
    v1::EvictResponse evicted;
    EXPECT_TRUE(client.eviction().Evict(client.Context().get(), evict, &evicted).ok());
    go_on(session);

    v1::SetPolicyRequest swap;
    swap.set_session(session);
    *swap.mutable_policy() = StreamingPolicy(50);
    swap.mutable_policy()->mutable_trigger()->set_overflow(9);
    v1::SetPolicyResponse swapped;
    EXPECT_TRUE(client.eviction().SetPolicy(client.Context().get(), swap, &swapped).ok());
    go_on(session);

    v1::VerifyRequest verify;
    verify.set_session(session);
    for (const uint32_t token : {4, 9, 4}) verify.add_draft_tokens(token);
    v1::VerifyResponse verified;
    EXPECT_TRUE(client.inference().Verify(client.Context().get(), verify, &verified).ok());
    go_on(session);

    v1::ForkSessionRequest fork;
    fork.set_session(session);
    fork.set_session_id("branch");  // whose seed follows from its name
    v1::Session branch;
    EXPECT_TRUE(client.sessions().ForkSession(client.Context().get(), fork, &branch).ok());
    go_on(branch.name());
    go_on(session);

    // A reader that hangs up leaves tokens in the log that nobody counted; then the session is deleted with its cache.
    auto context = client.Context();
    auto stream = client.inference().Decode(context.get(), asked(DecodeTokens(branch.name(), 1 << 24)));
    v1::DecodeResponse message;
    EXPECT_TRUE(stream->Read(&message));
    context->TryCancel();
    while (stream->Read(&message)) continue;
    EXPECT_EQ(stream->Finish().error_code(), Code::CANCELLED);
    EXPECT_TRUE(client.Delete(session).ok());
    EXPECT_TRUE(client.Delete(branch.name()).ok());
    return told;
  };
  const std::vector<uint32_t> plain = live(false);
  EXPECT_THAT(plain, SizeIs(7 * 12));
  EXPECT_THAT(live(true), ElementsAreArray(plain));
  EXPECT_GT(server.Tokens("drafted", "model"), 0);
  EXPECT_GT(server.Tokens("drafted", "client"), 0);
  EXPECT_TRUE(server.IsSoonEmpty()) << "the cancelled call's session goes when its step is over";
}

TEST(DraftModel, DraftsForEveryAnswerToOnePrompt) {
  Drafted server(kTwin);
  const auto texts = [&](bool drafts) {
    v1::GenerateRequest request = GenerateText("", kLamp, 30);
    request.mutable_sampling()->set_seed(3);
    request.set_n(3);
    if (drafts) request = server.Asked(request);
    auto context = server.client().Context();
    auto stream = server.client().inference().Generate(context.get(), request);
    std::vector<std::string> answers(3);
    v1::GenerateResponse message;
    while (stream->Read(&message)) answers[message.index()] += message.decode().text();
    EXPECT_TRUE(stream->Finish().ok());
    return answers;
  };
  const std::vector<std::string> plain = texts(false);
  EXPECT_EQ(texts(true), plain);
  EXPECT_TRUE(server.IsSoonEmpty()) << "branches are gone, and so is the throw-away session";
}

TEST(DraftModel, ASessionFromTheJournalIsDraftedForAnew) {
  const TemporaryFolder store;
  const auto journaled = [&](ServerOptions& options) {
    options.store_dir = store.path();
    options.durability = Durability::kStep;
  };
  const v1::CreateSessionRequest create = [] {
    v1::CreateSessionRequest request = Create(PolicyOf("full", 400), 0);
    request.set_session_id("kept");
    return request;
  }();
  std::vector<uint32_t> told;
  std::string session;
  {
    Drafted before(kTwin, journaled);
    session = before.client().Create(create).name();
    const Answer answer = before.client().Generate(before.Asked(GenerateText(session, kLamp, 20)));
    ASSERT_TRUE(answer.status.ok()) << client::Describe(answer.status);
    told = answer.tokens;
    EXPECT_EQ(before.caches(), 1);
  }
  Drafted after(kTwin, journaled);
  EXPECT_EQ(after.caches(), 0);
  const Answer answer = after.client().Decode(after.Asked(DecodeTokens(session, 20)));
  ASSERT_TRUE(answer.status.ok()) << client::Describe(answer.status);
  told.insert(told.end(), answer.tokens.begin(), answer.tokens.end());
  EXPECT_GT(answer.last().usage().accepted_draft_tokens(), 0U);
  EXPECT_EQ(after.caches(), 1);
  const std::string plain = after.client().Create(Create(PolicyOf("full", 400), 0)).name();
  EXPECT_THAT(told, ElementsAreArray(after.client().Generate(GenerateText(plain, kLamp, 40)).tokens));
}

TEST(DraftModel, WithoutRoomForACacheAnswersComeWithoutDrafts) {
  const auto little = [](ServerOptions& options) { options.draft.arena_bytes = 128 << 10; };
  Drafted server(kTwin, little);
  std::vector<std::string> sessions;
  uint32_t drafted = 0;
  for (int i = 0; i < 5; ++i) {
    sessions.push_back(server.client().Create(Create(PolicyOf("full", 200), 0)).name());
    const Answer answer = server.client().Generate(server.Asked(GenerateText(sessions.back(), kLamp, 4)));
    EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
    EXPECT_THAT(answer.tokens, SizeIs(4));
    drafted = answer.last().usage().drafted_tokens();
  }
  EXPECT_EQ(drafted, 0U) << "of the last: the others hold all there is";
  EXPECT_GE(server.caches(), 1);
  for (const std::string& session : sessions) EXPECT_TRUE(server.client().Delete(session).ok());
  EXPECT_EQ(server.pages(), 0);
}

TEST(DraftModel, RefusesWhatItIsNot) {
  Drafted server(kTwin);
  v1::GenerateRequest request = GenerateText("", kLamp, 4);
  request.mutable_speculation()->set_draft_model("nobody");
  grpc::Status status = server.client().Generate(request).status;
  EXPECT_EQ(status.error_code(), Code::NOT_FOUND);
  EXPECT_EQ(ReadDetails(status).reason, "UNKNOWN_MODEL");
  EXPECT_EQ(ReadDetails(status).field, "speculation.draft_model");
  EXPECT_THAT(status.error_message(), HasSubstr("'" + server.name() + "'"));

  request = server.Asked(request);
  request.mutable_speculation()->set_ngram(true);
  status = server.client().Generate(request).status;
  EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT);
  EXPECT_EQ(ReadDetails(status).reason, "DRAFTS_AMBIGUOUS");

  const TestServer none;
  TestClient client(none.address());
  EXPECT_EQ(client.Status().model().draft_model(), "");
  status = client.Generate(server.Asked(GenerateText("", kLamp, 4))).status;
  EXPECT_EQ(ReadDetails(status).reason, "UNKNOWN_MODEL");
  EXPECT_THAT(status.error_message(), HasSubstr("model.draft"));
}

absl::Status StartWith(const DraftModelOptions& draft, const TinyModel& serving = {}) {
  const TinyModelFile model(serving);
  return Server::Start({.listen = {.host = "127.0.0.1", .port = 0},
                        .engine = {.model_path = model.path(), .threads = 1, .arena_bytes = 4 << 20},
                        .draft = draft})
      .status();
}

TEST(DraftModel, OfAnotherVocabularyIsRefusedAtTheStart) {
  const TinyModelFile larger(TinyModel{.vocab = 300});
  absl::Status status = StartWith({.path = larger.path()});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetRefusal(status).reason, "DRAFT_VOCABULARY");
  EXPECT_EQ(GetRefusal(status).field, "model.draft");
  EXPECT_THAT(std::string(status.message()), HasSubstr("it has 300 tokens, and 261 are needed"));

  // The first pair of letters behind the special tokens is another.
  const TemporaryFolder folder;
  const std::string other = folder.path() + "/other.gguf";
  {
    std::ifstream file(larger.path(), std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    const size_t at = bytes.find(std::string("\2\0\0\0\0\0\0\0aa", 10));
    ASSERT_NE(at, std::string::npos);
    bytes[at + 9] = '7';
    std::ofstream(other, std::ios::binary) << bytes;
  }
  status = StartWith({.path = other}, TinyModel{.vocab = 300});
  EXPECT_EQ(GetRefusal(status).reason, "DRAFT_VOCABULARY");
  EXPECT_THAT(std::string(status.message()), HasSubstr("token 261 is 'a7' there and 'aa' here"));

  status = StartWith({.path = larger.path() + ".gone"});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.draft"));
}

TEST(DraftModel, ThatDoesNotFitItsArenaIsRefusedAtTheStart) {
  const TinyModelFile draft(TinyModel{});
  absl::Status status = StartWith({.path = draft.path(), .budget = 512, .arena_bytes = 64 << 10});
  EXPECT_EQ(GetRefusal(status).reason, "ARENA_TOO_SMALL");
  EXPECT_EQ(GetRefusal(status).field, "model.draft_arena");
  EXPECT_THAT(std::string(status.message()), HasSubstr("a cache of 512 tokens needs"));
  status = StartWith({.path = draft.path(), .arena_bytes = int64_t{1} << 60});
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.draft_arena"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("cache.arena")));
}

}  // namespace
}  // namespace ebb
