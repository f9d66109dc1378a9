#include "client/token_diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace ebb::client {
namespace {

using Tokens = std::vector<uint32_t>;

Tokens Applied(Tokens tokens, const std::vector<TokenSpan>& spans) {
  for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
    const auto at = tokens.erase(tokens.begin() + static_cast<int64_t>(span->start),
                                 tokens.begin() + static_cast<int64_t>(span->end));
    tokens.insert(at, span->tokens.begin(), span->tokens.end());
  }
  return tokens;
}

size_t Changes(const std::vector<TokenSpan>& spans) {
  size_t changes = 0;
  for (const TokenSpan& span : spans) changes += span.end - span.start + span.tokens.size();
  return changes;
}

// The length of the longest common subsequence says how few changes there can be.
size_t FewestChanges(const Tokens& a, const Tokens& b) {
  std::vector<std::vector<size_t>> common(a.size() + 1, std::vector<size_t>(b.size() + 1, 0));
  for (size_t x = 0; x < a.size(); ++x) {
    for (size_t y = 0; y < b.size(); ++y) {
      common[x + 1][y + 1] = a[x] == b[y] ? common[x][y] + 1 : std::max(common[x][y + 1], common[x + 1][y]);
    }
  }
  return a.size() + b.size() - 2 * common[a.size()][b.size()];
}

TEST(DiffTokens, NamesASingleChange) {
  const Tokens from = {1, 2, 3, 4, 5, 6};
  EXPECT_TRUE(DiffTokens(from, from).empty());
  const auto spans = DiffTokens(from, Tokens{1, 2, 9, 9, 5, 6});
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].start, 2U);
  EXPECT_EQ(spans[0].end, 4U);
  EXPECT_THAT(spans[0].tokens, testing::ElementsAre(9, 9));
}

TEST(DiffTokens, MakesOneListOfAnotherWithAsFewChangesAsCanBe) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    Tokens from, to;
    const uint32_t words = 1 + random() % 6;
    for (uint32_t i = random() % 30; i > 0; --i) from.push_back(random() % words);
    for (uint32_t i = random() % 30; i > 0; --i) to.push_back(random() % words);
    const auto spans = DiffTokens(from, to);
    ASSERT_EQ(Applied(from, spans), to) << "round " << round;
    ASSERT_EQ(Changes(spans), FewestChanges(from, to)) << "round " << round;
    size_t done = 0;
    for (const TokenSpan& span : spans) {
      ASSERT_TRUE(span.start > done || (done == 0 && span.start == 0)) << "spans lie apart";
      ASSERT_GE(span.end, span.start);
      done = span.end;
    }
  }
}

TEST(DiffTokens, OfListsThatHaveLittleInCommonIsOneSpan) {
  Tokens from(3000, 1), to(3000, 2);
  from.front() = to.front() = 7;
  from.back() = to.back() = 8;
  const auto spans = DiffTokens(from, to, 100);
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].start, 1U);
  EXPECT_EQ(spans[0].end, 2999U);
  EXPECT_EQ(Applied(from, spans), to);
}

}  // namespace
}  // namespace ebb::client
