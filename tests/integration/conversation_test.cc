// What a session's log holds, and that its tokens depend on the session alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/support/test_server.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;
using ::testing::SizeIs;

constexpr char kPrompt[] = "It was a dark and stormy night, and the old man sat by the fire.";

std::vector<uint32_t> Tail(const std::vector<uint32_t>& tokens, size_t from) {
  return {tokens.begin() + static_cast<std::ptrdiff_t>(from), tokens.end()};
}

class Conversation : public testing::Test {
 protected:
  std::string Open(uint32_t budget = 24) { return client_.Create(SessionWith(StreamingPolicy(budget))).name(); }

  // A session that has read the prompt.
  std::string Primed(uint32_t budget = 24) {
    const std::string name = Open(budget);
    EXPECT_TRUE(client_.Prefill(PrefillText(name, kPrompt)).ok());
    return name;
  }

  TestServer server_;
  TestClient client_{server_.address()};
};

TEST_F(Conversation, GeneratesPastItsBudgetWithTheCacheFlat) {
  const Answer answer = client_.Generate(GenerateText(Open(), kPrompt, 100));
  ASSERT_TRUE(answer.status.ok()) << client::Describe(answer.status);
  EXPECT_THAT(answer.tokens, SizeIs(100));
  EXPECT_EQ(answer.last().finish_reason(), v1::FINISH_REASON_MAX_TOKENS);
  EXPECT_EQ(answer.last().usage().cache_length(), 24U);
  EXPECT_EQ(answer.last().usage().completion_tokens(), 100U);
  for (const v1::DecodeResponse& message : answer.messages) EXPECT_EQ(message.cache_length(), 24U);
}

TEST_F(Conversation, TwoDecodesOfTenAreOneOfTwenty) {
  const std::string once = Primed();
  const std::string twice = Primed();
  const Answer twenty = client_.Decode(DecodeTokens(once, 20));
  Answer ten = client_.Decode(DecodeTokens(twice, 10));
  const Answer ten_more = client_.Decode(DecodeTokens(twice, 10));
  ten.tokens.insert(ten.tokens.end(), ten_more.tokens.begin(), ten_more.tokens.end());
  EXPECT_THAT(twenty.tokens, SizeIs(20));
  EXPECT_THAT(ten.tokens, ElementsAreArray(twenty.tokens));
  EXPECT_EQ(ten.text + ten_more.text, twenty.text);
  EXPECT_EQ(client_.Get(once).tokens(), client_.Get(twice).tokens());
}

TEST_F(Conversation, TheLogHoldsWhatWasSentAndNoMore) {
  const std::string name = Primed();
  const uint64_t before = client_.Get(name).tokens();
  const Answer answer = client_.Decode(DecodeTokens(name, 10));
  EXPECT_EQ(client_.Get(name).tokens(), before + answer.tokens.size());
}

TEST_F(Conversation, ResumeFromSendsCommittedTokensAgainAndGoesOn) {
  const std::string name = Primed();
  const std::string other = Primed();
  const uint64_t start = client_.Get(name).tokens();
  const Answer whole = client_.Decode(DecodeTokens(other, 30));
  client_.Decode(DecodeTokens(name, 20));
  v1::DecodeRequest resume = DecodeTokens(name, 25);
  resume.set_resume_from(start + 5);
  const Answer resumed = client_.Decode(resume);
  ASSERT_TRUE(resumed.status.ok()) << client::Describe(resumed.status);
  EXPECT_THAT(resumed.tokens, ElementsAreArray(Tail(whole.tokens, 5)));
  EXPECT_EQ(resumed.last().usage().completion_tokens(), 10U) << "fifteen were sent again, ten are new";
}

TEST_F(Conversation, TokensAreTheSameAloneAndBesideFifteenOthers) {
  const Answer alone = client_.Decode(DecodeTokens(Primed(), 40));
  std::vector<std::string> names;
  for (int i = 0; i < 16; ++i) names.push_back(Primed());
  std::vector<Answer> answers(names.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < names.size(); ++i) {
    threads.emplace_back([&, i] { answers[i] = client_.Decode(DecodeTokens(names[i], 40)); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Answer& answer : answers) EXPECT_THAT(answer.tokens, ElementsAreArray(alone.tokens));
}

}  // namespace
}  // namespace ebb
