#include "client/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace ebb::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::PrefillResponse Block(uint32_t done, uint32_t total) {
  v1::PrefillResponse block;
  block.set_tokens_done(done);
  block.set_tokens_total(total);
  return block;
}

v1::DecodeResponse DecodedTokens(const std::vector<uint32_t>& tokens, const std::string& text = {}) {
  v1::DecodeResponse message;
  message.mutable_tokens()->Add(tokens.begin(), tokens.end());
  message.set_text(text);
  return message;
}

v1::GenerateRequest OfText() {
  v1::GenerateRequest request;
  request.set_session("sessions/s");
  request.mutable_prompt()->set_text("t");
  return request;
}

v1::GenerateRequest OfIds(int count) {
  v1::GenerateRequest request;
  for (int i = 0; i < count; ++i) request.mutable_prompt()->mutable_tokens()->add_ids(1);
  return request;
}

// What the session has read and made at the break, and what had come of it.
struct AtBreak {
  uint64_t read = 0, made = 0;
  std::vector<std::pair<uint32_t, uint32_t>> blocks = {};  // done, total
  std::vector<uint32_t> tokens = {};
  uint64_t generation = 4;
};

template <typename Request>
absl::StatusOr<std::optional<NextStream>> Next(const Request& request, const AtBreak& at) {
  Progress progress(Asked::For(request));
  v1::Session session;
  session.set_name("sessions/s");
  session.set_tokens(100);
  session.set_prompt_tokens(60);
  session.set_generation(3);
  session.set_block_size(8);
  EXPECT_EQ(progress.Begin(session).expected_generation, 3);
  for (const auto& [done, total] : at.blocks) {
    v1::PrefillResponse block = Block(done, total);
    EXPECT_TRUE(progress.Take(block));
  }
  v1::DecodeResponse tokens = DecodedTokens(at.tokens);
  EXPECT_TRUE(progress.Take(tokens).ok());
  session.set_tokens(100 + at.read + at.made);
  session.set_prompt_tokens(60 + at.read);
  session.set_generation(at.generation);
  return progress.AfterBreak(session);
}

TEST(Progress, AnAnswerIsAskedForFromItsFirstToken) {
  struct Case {
    std::string name;
    absl::StatusOr<std::optional<NextStream>> next;
    uint64_t start;
    uint64_t generation = 4;
  };
  const std::vector<Case> cases = {
      {"the prompt is read", Next(OfText(), {.read = 20, .blocks = {{20, 20}}}), 120},
      {"its last block is shorter", Next(OfText(), {.read = 20}), 120},
      {"tokens were made, so the prompt is read", Next(OfText(), {.read = 16, .made = 3}), 116},
      {"some of them came", Next(OfIds(20), {.read = 20, .made = 5, .tokens = {1, 2}}), 120},
      {"a change of policy is no reason to stop",
       Next(OfText(), {.read = 20, .made = 1, .blocks = {{20, 20}}, .generation = 6}), 120, 6},
      {"no prompt", Next(v1::DecodeRequest(), {}), 100},
      {"no prompt, some tokens", Next(v1::DecodeRequest(), {.made = 4, .tokens = {1}}), 100},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    ASSERT_TRUE(c.next.ok() && c.next->has_value());
    EXPECT_EQ((*c.next)->resume_from, c.start);
    EXPECT_EQ((*c.next)->expected_generation, c.generation);
  }
}

TEST(Progress, BehindTheLastMessageNothingIsMissing) {
  Progress reads(Asked::For(v1::PrefillRequest()));
  v1::PrefillResponse block = Block(8, 20);
  reads.Take(block);
  EXPECT_FALSE(reads.is_whole());
  block = Block(20, 20);
  reads.Take(block);
  EXPECT_TRUE(reads.is_whole());

  Progress answers(Asked::For(OfText()));
  block = Block(20, 20);
  answers.Take(block);
  EXPECT_FALSE(answers.is_whole());
  v1::DecodeResponse tokens = DecodedTokens({1, 2});
  EXPECT_TRUE(*answers.Take(tokens));
  EXPECT_FALSE(answers.is_whole());
  v1::DecodeResponse last = DecodedTokens({3});
  last.set_finish_reason(v1::FINISH_REASON_STOP);
  EXPECT_TRUE(*answers.Take(last));
  EXPECT_TRUE(answers.is_whole());
}

TEST(Progress, APromptIsAskedForAgainOrWhatIsMissingOfIt) {
  const auto again = Next(OfText(), {});
  ASSERT_TRUE(again.ok() && again->has_value());
  EXPECT_EQ((*again)->expected_generation, 4);
  EXPECT_EQ((*again)->prompt_skip, 0);
  EXPECT_EQ((*again)->resume_from, std::nullopt);

  const auto rest = Next(OfIds(20), {.read = 16, .blocks = {{8, 20}}});
  ASSERT_TRUE(rest.ok() && rest->has_value());
  EXPECT_EQ((*rest)->prompt_skip, 16);
  EXPECT_EQ((*rest)->resume_from, std::nullopt);

  v1::GenerateRequest tied = OfText();
  tied.set_expected_generation(3);
  EXPECT_EQ((*Next(tied, {}))->expected_generation, 3) << "the caller's own stands";
}

TEST(Progress, BlocksOfARestAreCountedFromTheWholePromptsFirst) {
  Progress progress(Asked::For(OfIds(20)));
  v1::Session session;
  progress.Begin(session);
  session.set_tokens(16);
  session.set_prompt_tokens(16);
  ASSERT_TRUE(progress.AfterBreak(session).ok());
  v1::PrefillResponse block = Block(3, 4);
  progress.Take(block);
  EXPECT_EQ(block.tokens_done(), 19);
  EXPECT_EQ(block.tokens_total(), 20);
}

TEST(Progress, APromptThatIsReadIsOverThoughItsLastMessageWasLost) {
  v1::PrefillRequest prefill;
  prefill.mutable_prompt()->set_text("t");
  Progress progress(Asked::For(prefill));
  v1::Session session;
  session.set_block_size(8);
  progress.Begin(session);
  session.set_tokens(20);
  session.set_prompt_tokens(20);
  session.set_generation(1);
  session.set_cache_length(12);
  const auto next = progress.AfterBreak(session);
  ASSERT_TRUE(next.ok());
  EXPECT_FALSE(next->has_value());
  ASSERT_TRUE(progress.last_block());
  EXPECT_EQ(progress.last_block()->tokens_done(), 20);
  EXPECT_EQ(progress.last_block()->generation(), 1);
  EXPECT_EQ(progress.last_block()->usage().cache_length(), 12);
}

TEST(Progress, WhatCannotGoOnSaysWhy) {
  v1::GenerateRequest logprobs = OfText();
  logprobs.mutable_stopping()->set_logprobs(1);
  struct Case {
    absl::StatusOr<std::optional<NextStream>> next;
    std::string says;
  };
  const std::vector<Case> cases = {
      {Next(OfText(), {.read = 16}), "which are missing"},
      {Next(logprobs, {.read = 20, .made = 1}), "log-probabilities"},
      {Next(OfText(), {.read = 20, .made = 1, .blocks = {{8, 16}}}), "changed by others"},
      {Next(OfText(), {.read = 20, .made = 1, .generation = 5}), "changed by others"},
      {Next(v1::DecodeRequest(), {.made = 1, .tokens = {1, 2}}), "changed by others"},
      {Next(v1::DecodeRequest(), {.read = 2, .made = 1}), "changed by others"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.says);
    ASSERT_FALSE(c.next.ok());
    EXPECT_EQ(c.next.status().code(), absl::StatusCode::kAborted);
    EXPECT_THAT(c.next.status().message(), HasSubstr(c.says));
  }
}

TEST(Progress, WhatHadComeIsLeftOutAndOtherTokensAreFoundOut) {
  Progress progress(Asked::For(v1::DecodeRequest()));
  v1::Session session;
  session.set_tokens(10);
  session.set_generation(1);
  progress.Begin(session);
  v1::DecodeResponse first = DecodedTokens({1, 2}, "ab");
  EXPECT_TRUE(*progress.Take(first));
  EXPECT_EQ(first.sequence(), 0);
  session.set_tokens(13);
  session.set_generation(2);
  ASSERT_TRUE(progress.AfterBreak(session).ok());
  v1::DecodeResponse old = DecodedTokens({1}, "a");
  EXPECT_FALSE(*progress.Take(old));
  v1::DecodeResponse rest = DecodedTokens({2, 3}, "bc");
  EXPECT_TRUE(*progress.Take(rest));
  EXPECT_THAT(rest.tokens(), ElementsAre(3));
  EXPECT_EQ(rest.text(), "c");
  EXPECT_EQ(rest.sequence(), 1);
  v1::DecodeResponse evicted = DecodedTokens({});
  evicted.set_evicted_tokens(2);
  EXPECT_TRUE(*progress.Take(evicted)) << "what left is told once";
  v1::DecodeResponse end = DecodedTokens({});
  end.set_finish_reason(v1::FINISH_REASON_MAX_TOKENS);
  EXPECT_TRUE(*progress.Take(end)) << "an answer's end is new";
  EXPECT_THAT(end.tokens(), IsEmpty());
  session.set_generation(3);
  ASSERT_TRUE(progress.AfterBreak(session).ok());
  v1::DecodeResponse other = DecodedTokens({1, 9}, "ax");
  EXPECT_THAT(progress.Take(other).status().message(), HasSubstr("other tokens"));
}

}  // namespace
}  // namespace ebb::client
