// What a client is told of an answer: where it stops, how likely its tokens were, and that a chat goes on in one
// session.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/support/test_server.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

using Ids = std::vector<uint32_t>;

v1::PolicySpec Full() {
  v1::PolicySpec policy;
  policy.mutable_full();
  return policy;
}

v1::Prompt TokenPrompt(const Ids& ids) {
  v1::Prompt prompt;
  prompt.mutable_tokens()->mutable_ids()->Assign(ids.begin(), ids.end());
  return prompt;
}

v1::Prompt UserPrompt(const std::string& content) {
  v1::Prompt prompt;
  v1::ChatMessage& message = *prompt.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content(content);
  return prompt;
}

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Answers : public testing::Test {
 protected:
  std::string Open(const v1::PolicySpec& policy = Full()) { return client_.Create(SessionWith(policy)).name(); }

  Ids Tokenize(const v1::Prompt& prompt, bool omit_begin = false) {
    v1::TokenizeRequest request;
    *request.mutable_prompt() = prompt;
    request.set_omit_begin(omit_begin);
    v1::TokenizeResponse response;
    const grpc::Status status = client_.inference().Tokenize(client_.Context().get(), request, &response);
    EXPECT_TRUE(status.ok()) << client::Describe(status);
    return {response.ids().begin(), response.ids().end()};
  }

  Answer Generate(const std::string& session, const v1::Prompt& prompt, uint32_t max_tokens) {
    v1::GenerateRequest request = GenerateText(session, "", max_tokens);
    *request.mutable_prompt() = prompt;
    Answer answer = client_.Generate(request);
    EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
    return answer;
  }

  v1::ScoreResponse Score(const v1::Prompt& context, const v1::Prompt& target) {
    v1::ScoreRequest request;
    if (context.content_case() != v1::Prompt::CONTENT_NOT_SET) *request.mutable_context() = context;
    *request.mutable_target() = target;
    request.set_block_size(16);
    v1::ScoreResponse response;
    const grpc::Status status = client_.inference().Score(client_.Context().get(), request, &response);
    EXPECT_TRUE(status.ok()) << client::Describe(status);
    return response;
  }

  TestServer server_;
  TestClient client_{server_.address()};
};

// A chat over several turns in one session.

using Chat = Answers;

// Each turn sends its own message alone; the session's log is the whole dialogue all the same: a new session that is
// given this dialogue as tokens, written out by the template's rule, answers the last turn with the same tokens.
TEST_F(Chat, GoesOnOverTurnsInOneSession) {
  const std::string session = Open();
  const std::vector<std::string> messages = {"The lamp is in the cellar.", "And the cat?", "Where is the lamp?"};
  Ids dialogue;
  Answer answer;
  Ids before_last;
  for (const std::string& message : messages) {
    const bool first = dialogue.empty();
    if (!first) dialogue.push_back(kTinyEnd);  // the answer before was cut off by max_tokens: its turn is ended
    dialogue = dialogue + Tokenize(UserPrompt(message), !first);
    before_last = dialogue;
    answer = Generate(session, UserPrompt(message), 20);
    ASSERT_THAT(answer.tokens, SizeIs(20));
    ASSERT_THAT(answer.tokens, Not(testing::Contains(static_cast<uint32_t>(kTinyEnd)))) << "the seed must not end it";
    dialogue = dialogue + answer.tokens;
    EXPECT_EQ(client_.Get(session).tokens(), dialogue.size());
  }
  EXPECT_THAT(Generate(Open(), TokenPrompt(before_last), 20).tokens, ElementsAreArray(answer.tokens));
}

TEST_F(Chat, GoesOnPastItsBudget) {
  const std::string session = Open(StreamingPolicy(24));
  for (int turn = 0; turn < 6; ++turn) {
    const Answer answer = Generate(session, UserPrompt("Tell me more about the frog."), 20);
    EXPECT_THAT(answer.tokens, SizeIs(20));
    EXPECT_EQ(answer.last().usage().cache_length(), 24U);
  }
  const v1::Session after = client_.Get(session);
  EXPECT_EQ(after.completion_tokens(), 6U * 20U);
  EXPECT_EQ(after.tokens(), after.prompt_tokens() + after.completion_tokens());
  EXPECT_EQ(after.evicted_tokens(), after.tokens() - after.cache_length());
}

// Stop texts. The model's tokens are bytes, so each of these texts is spelled by several tokens.

class Stops : public Answers {
 protected:
  // Sixty letters, with `stop` to end them.
  Answer Letters(const std::vector<std::string>& stop, uint32_t max_tokens = 60) {
    v1::GenerateRequest request = GenerateText(Open(), "Once upon a time", max_tokens);
    for (char letter = 'a'; letter <= 'z'; ++letter) (*request.mutable_sampling()->mutable_logit_bias())[letter] = 80;
    request.mutable_sampling()->set_seed(3);  // the session's own seed differs
    for (const std::string& text : stop) request.mutable_stopping()->add_stop(text);
    const Answer answer = client_.Generate(request);
    EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
    return answer;
  }
};

TEST_F(Stops, AStopSplitOverTokensEndsTheAnswerAndIsNeverSent) {
  const std::string text = Letters({}).text;
  ASSERT_THAT(text, SizeIs(60));
  for (const size_t length : {1, 2, 3, 7}) {
    const std::string stop = text.substr(30, length);
    const size_t at = text.find(stop);
    const Answer answer = Letters({stop});
    EXPECT_EQ(answer.text, text.substr(0, at));
    EXPECT_THAT(answer.tokens, SizeIs(at + length)) << "the tokens that spelled it are in the log, and sent";
    EXPECT_EQ(answer.last().finish_reason(), v1::FINISH_REASON_STOP);
    std::string sent;  // message by message: nothing that would have to be taken back
    for (const v1::DecodeResponse& message : answer.messages) {
      sent += message.text();
      EXPECT_EQ(text.substr(0, at).substr(0, sent.size()), sent);
    }
  }
}

TEST_F(Stops, TheFirstOfSeveralStopsEndsTheAnswer) {
  const std::string text = Letters({}).text;
  const std::string early = text.substr(10, 4), late = text.substr(40, 4);
  EXPECT_EQ(Letters({late, early}).text, text.substr(0, text.find(early)));
}

TEST_F(Stops, WhatOnlyBeganLikeAStopIsSentAfterAll) {
  const std::string text = Letters({}).text;
  const Answer answer = Letters({text.substr(56, 4) + "!", text.substr(20, 3) + "!"});
  EXPECT_EQ(answer.text, text) << "held back until it was certain, at the latest until the end";
  EXPECT_EQ(answer.last().finish_reason(), v1::FINISH_REASON_MAX_TOKENS);
}

// Log-probabilities.

using Scores = Answers;

TEST_F(Scores, OfAnAnswerAreThoseThatDecodeReported) {
  const Ids context = Tokenize(UserPrompt("Where is the lamp?"));
  const std::string session = Open();
  v1::PrefillRequest prefill;
  prefill.set_session(session);
  *prefill.mutable_prompt() = TokenPrompt(context);
  ASSERT_TRUE(client_.Prefill(prefill).ok());
  v1::DecodeRequest decode = DecodeTokens(session, 30);
  decode.mutable_stopping()->set_logprobs(5);
  const Answer answer = client_.Decode(decode);
  std::vector<v1::TokenLogprob> reported;
  for (const v1::DecodeResponse& message : answer.messages) {
    reported.insert(reported.end(), message.logprobs().begin(), message.logprobs().end());
  }
  ASSERT_THAT(reported, SizeIs(30));

  const v1::ScoreResponse score = Score(TokenPrompt(context), TokenPrompt(answer.tokens));
  ASSERT_THAT(score.tokens(), SizeIs(30));
  double sum = 0;
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(reported[i].token(), answer.tokens[i]);
    EXPECT_EQ(score.tokens(i).token(), answer.tokens[i]);
    EXPECT_FLOAT_EQ(score.tokens(i).logprob(), reported[i].logprob()) << "in blocks as token by token";
    sum += score.tokens(i).logprob();
  }
  EXPECT_DOUBLE_EQ(score.logprob(), sum);
}

TEST_F(Scores, NameTheLikeliestTokensBestFirst) {
  const std::string session = Open();
  ASSERT_TRUE(client_.Prefill(PrefillText(session, "Once upon a time")).ok());
  v1::DecodeRequest decode = DecodeTokens(session, 20);
  decode.mutable_sampling()->set_temperature(0);
  decode.mutable_stopping()->set_logprobs(20);
  for (const v1::DecodeResponse& message : client_.Decode(decode).messages) {
    for (const v1::TokenLogprob& drawn : message.logprobs()) {
      ASSERT_THAT(drawn.top(), SizeIs(20));
      EXPECT_EQ(drawn.top(0).token(), drawn.token()) << "greedy takes the best";
      EXPECT_EQ(drawn.top(0).logprob(), drawn.logprob());
      double mass = 0;
      for (int i = 0; i < 20; ++i) {
        EXPECT_LE(drawn.top(i).logprob(), drawn.top(std::max(i - 1, 0)).logprob());
        mass += std::exp(drawn.top(i).logprob());
      }
      EXPECT_LE(mass, 1 + 1e-5);
    }
  }
}

TEST_F(Scores, OfAWholeIsTheSumOfItsParts) {
  const Ids context = Tokenize(UserPrompt("Where is the lamp?"));
  const Ids first = {'i', 'n', ' ', 't', 'h', 'e'}, second = {' ', 'c', 'e', 'l', 'l', 'a', 'r'};
  const double whole = Score(TokenPrompt(context), TokenPrompt(first + second)).logprob();
  const double parts = Score(TokenPrompt(context), TokenPrompt(first)).logprob() +
                       Score(TokenPrompt(context + first), TokenPrompt(second)).logprob();
  EXPECT_NEAR(whole, parts, 1e-4 * std::abs(whole));
  EXPECT_LT(whole, 0);
}

TEST_F(Scores, WithoutContextBeginAfterTheBeginToken) {
  v1::Prompt text;
  text.set_text("Once upon a time");
  const v1::ScoreResponse alone = Score({}, text);
  EXPECT_THAT(alone.tokens(), SizeIs(16));
  EXPECT_DOUBLE_EQ(alone.logprob(), Score(TokenPrompt({kTinyBos}), TokenPrompt(Tokenize(text, true))).logprob());
}

TEST_F(Scores, LeaveNothingBehind) {
  v1::Prompt text;
  text.set_text("Once upon a time");
  Score({}, text);
  const v1::GetStatusResponse status = client_.Status();
  EXPECT_EQ(status.work().sessions(), 0U);
  EXPECT_EQ(status.cache().pages_reserved(), 0U);
  EXPECT_EQ(status.cache().used_bytes(), 0U);
}

}  // namespace
}  // namespace ebb
