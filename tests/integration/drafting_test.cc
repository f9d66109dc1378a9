// Generations that draft for themselves: the tokens, the log and the cache are those of plain decoding, whatever ends
// the answer and whoever else is served.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/test_server.h"

namespace ebb {
namespace {

using client::ReadDetails;
using ::testing::ElementsAreArray;

// Says everything twice, and begins to say it a third time.
constexpr char kCounting[] = "one two three four five, one two three four five, one two";

class SpeculationTest : public testing::Test {
 protected:
  struct Told {
    Answer answer = {};
    v1::Session session = {};
    const v1::Usage& usage() const { return answer.last().usage(); }
  };

  Told Tell(const v1::CreateSessionRequest& create, v1::GenerateRequest request, bool speculates) {
    Told told;
    const std::string name = client_.Create(create).name();
    request.set_session(name);
    request.mutable_speculation()->set_ngram(speculates);
    told.answer = client_.Generate(request);
    EXPECT_TRUE(told.answer.status.ok()) << client::Describe(told.answer.status);
    uint64_t left = 0;
    for (const v1::PrefillResponse& block : told.answer.blocks) left += block.evicted_tokens();
    for (const v1::DecodeResponse& message : told.answer.messages) left += message.evicted_tokens();
    EXPECT_EQ(left, told.usage().evicted_tokens()) << "the messages tell of all that left";
    told.session = client_.Get(name);
    // What a session yields after this shows what it is.
    const Answer after = client_.Decode(DecodeTokens(name, 5));
    told.answer.tokens.insert(told.answer.tokens.end(), after.tokens.begin(), after.tokens.end());
    EXPECT_TRUE(client_.Delete(name).ok());
    return told;
  }

  // A session that says nothing but these letters: the fewer, the more often drafts are right.
  static v1::CreateSessionRequest Create(const v1::PolicySpec& policy, float temperature,
                                         const std::string& letters = "ab") {
    v1::CreateSessionRequest request = SessionWith(policy, 16);
    request.mutable_sampling()->set_temperature(temperature);
    request.mutable_sampling()->set_seed(5);
    for (const char letter : letters) (*request.mutable_sampling()->mutable_logit_bias())[letter] = 50;
    return request;
  }

  Told ExpectSame(const v1::CreateSessionRequest& create, const v1::GenerateRequest& request) {
    const Told plain = Tell(create, request, false);
    Told drafted = Tell(create, request, true);
    EXPECT_EQ(plain.usage().drafted_tokens(), 0U);
    EXPECT_THAT(drafted.answer.tokens, ElementsAreArray(plain.answer.tokens));
    EXPECT_EQ(drafted.answer.text, plain.answer.text);
    EXPECT_EQ(drafted.answer.last().finish_reason(), plain.answer.last().finish_reason());
    EXPECT_EQ(drafted.usage().completion_tokens(), plain.usage().completion_tokens());
    EXPECT_EQ(drafted.usage().evicted_tokens(), plain.usage().evicted_tokens());
    EXPECT_EQ(drafted.session.tokens(), plain.session.tokens());
    EXPECT_EQ(drafted.session.cache_length(), plain.session.cache_length());
    EXPECT_EQ(drafted.session.completion_tokens(), plain.session.completion_tokens());
    EXPECT_LE(drafted.usage().accepted_draft_tokens(), drafted.usage().drafted_tokens());
    return drafted;
  }

  TestServer server_;
  TestClient client_{server_.address(), "acme"};
};

TEST_F(SpeculationTest, ChangesNoTokenUnderAnyPolicyAtAnyTemperature) {
  uint32_t accepted = 0;
  for (const v1::PolicySpec& policy :
       {PolicyOf("full", 400, 1), PolicyOf("streaming", 40, 1), PolicyOf("streaming", 40, 12), PolicyOf("h2o", 48, 12),
        PolicyOf("tova", 48, 9), PolicyOf("h2o", 300, 1)}) {
    for (const float temperature : {0.0F, 0.3F, 1.0F}) {
      for (const char* letters : {"", "ab", "abcd"}) {
        SCOPED_TRACE(testing::Message() << policy.ShortDebugString() << " at " << temperature << " of " << letters);
        const Told told = ExpectSame(Create(policy, temperature, letters), GenerateText("", kCounting, 150));
        accepted += told.usage().accepted_draft_tokens();
      }
    }
  }
  EXPECT_GT(accepted, 500U);
}

TEST_F(SpeculationTest, EndsWhereDecodingEnds) {
  const v1::CreateSessionRequest create = Create(PolicyOf("full", 400, 1), 0);
  const Told plain = Tell(create, GenerateText("", kCounting, 60), false);
  for (size_t at = 10; at < 50; at += 3) {  // any token of a draft may be the last
    SCOPED_TRACE(at);
    ExpectSame(create, GenerateText("", kCounting, static_cast<uint32_t>(at)));
    v1::GenerateRequest request = GenerateText("", kCounting, 60);
    request.mutable_stopping()->add_stop(plain.answer.text.substr(at, 6));
    ExpectSame(create, request);
  }
  v1::GenerateRequest rare = GenerateText("", kCounting, 60);
  rare.mutable_stopping()->add_stop_tokens('b');
  (*rare.mutable_sampling()->mutable_logit_bias())['a'] = 51;
  ExpectSame(create, rare);
  // The length limit of a session that does not evict.
  const Told limited = ExpectSame(Create(PolicyOf("full", 100, 1), 0), GenerateText("", kCounting, 400));
  EXPECT_EQ(limited.answer.last().finish_reason(), v1::FINISH_REASON_LENGTH_LIMIT);
  EXPECT_EQ(limited.session.cache_length(), 100U);
}

TEST_F(SpeculationTest, ReportsTheSameLogProbabilities) {
  const v1::CreateSessionRequest create = Create(PolicyOf("full", 400, 1), 0);
  v1::GenerateRequest request = GenerateText("", kCounting, 60);
  request.mutable_stopping()->set_logprobs(2);
  const Told plain = Tell(create, request, false);
  const Told drafted = Tell(create, request, true);
  const auto logprobs = [](const Told& told) {
    std::vector<std::string> all;
    for (const v1::DecodeResponse& message : told.answer.messages) {
      for (const v1::TokenLogprob& logprob : message.logprobs()) all.push_back(logprob.SerializeAsString());
    }
    return all;
  };
  EXPECT_EQ(logprobs(plain).size(), 60U);
  EXPECT_THAT(logprobs(drafted), ElementsAreArray(logprobs(plain)));
  EXPECT_GT(drafted.usage().accepted_draft_tokens(), 0U);
}

TEST_F(SpeculationTest, DraftsOnlyWhereNobodyWouldBeEvictedInTheMiddle) {
  const Told full = ExpectSame(Create(PolicyOf("streaming", 40, 1), 0), GenerateText("", kCounting, 60));
  EXPECT_EQ(full.usage().drafted_tokens(), 0U) << "57 tokens of prompt fill the cache";
  const Told lazy = ExpectSame(Create(PolicyOf("streaming", 40, 12), 0), GenerateText("", kCounting, 60));
  EXPECT_GT(lazy.usage().drafted_tokens(), 0U);
  EXPECT_GT(lazy.usage().evicted_tokens(), 0U);
}

TEST_F(SpeculationTest, InCompanyEverySessionSaysWhatItSaysAlone) {
  constexpr int kSessions = 6;
  std::vector<Told> alone(kSessions), together(kSessions);
  const auto tell = [&](int i, bool speculates) {
    return Tell(Create(PolicyOf(i % 2 == 0 ? "full" : "h2o", 300, 1), i % 3 == 0 ? 0.8F : 0.0F),
                GenerateText("", std::string(kCounting).substr(static_cast<size_t>(i)), 100), speculates);
  };
  for (int i = 0; i < kSessions; ++i) alone[i] = tell(i, false);
  std::vector<std::thread> threads;
  for (int i = 0; i < kSessions; ++i) threads.emplace_back([&, i] { together[i] = tell(i, i != 2); });
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kSessions; ++i) EXPECT_THAT(together[i].answer.tokens, ElementsAreArray(alone[i].answer.tokens));
}

TEST_F(SpeculationTest, RefusesDraftsOfAnotherLength) {
  for (const uint32_t most : {0U, 64U}) {
    v1::GenerateRequest request = GenerateText("", kCounting, 4);
    request.mutable_speculation()->set_ngram(true);
    request.mutable_speculation()->set_draft_tokens_max(most);
    const grpc::Status status = client_.Generate(request).status;
    EXPECT_EQ(ReadDetails(status).reason, "OUT_OF_RANGE");
    EXPECT_EQ(ReadDetails(status).field, "speculation.draft_tokens_max");
  }
}

}  // namespace
}  // namespace ebb
