// The largest logits of a row, against a sort of the whole of it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "policies/hash_random.h"
#include "tests/unit/engine/ops/gpu/each_target.h"

namespace ebb::gpu {
namespace {

constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();
constexpr float kEndless = std::numeric_limits<float>::infinity();
constexpr uint64_t kUntouched = 0x5A5A5A5A5A5A5A5A;

std::vector<TokenLogit> Launched(const std::vector<float>& logits, int32_t rows, int32_t count) {
  const auto vocab = static_cast<int32_t>(logits.size()) / rows;
  return OnEachTarget([&](const Table& table) {
    std::vector<TokenLogit> largest(static_cast<size_t>(rows * count) + 1, {.logit = 77, .token = -77});
    std::vector<uint64_t> scratch(static_cast<size_t>(rows * LargestScratch(vocab, count)) + 1, kUntouched);
    Mirror mirror(table);
    TokenLogit* const to = mirror.In(largest);
    uint64_t* const scratch_there = mirror.In(scratch);
    table.largest({.logits = mirror.In(logits),
                   .vocab = vocab,
                   .rows = rows,
                   .count = count,
                   .scratch = scratch_there,
                   .largest = to},
                  mirror.stream());
    mirror.Out(to, largest);
    mirror.Out(scratch_there, scratch);
    EXPECT_EQ(largest.back().token, -77) << "written past the end";
    EXPECT_EQ(scratch.back(), kUntouched) << "written past the end";
    largest.pop_back();
    return largest;
  });
}

std::vector<TokenLogit> Sorted(const std::vector<float>& logits, int32_t rows, int32_t count) {
  const size_t vocab = logits.size() / rows;
  std::vector<TokenLogit> all;
  for (int32_t row = 0; row < rows; ++row) {
    std::vector<TokenLogit> of_row;
    for (size_t i = 0; i < vocab; ++i) {
      const float logit = logits[row * vocab + i];
      of_row.push_back({.logit = std::isnan(logit) ? -kEndless : logit + 0.0F, .token = static_cast<int32_t>(i)});
    }
    std::ranges::stable_sort(of_row, std::greater<>(), &TokenLogit::logit);
    all.insert(all.end(), of_row.begin(), of_row.begin() + count);
  }
  return all;
}

void ExpectSorted(const std::vector<float>& logits, int32_t rows, int32_t count) {
  SCOPED_TRACE(testing::Message() << "count " << count << ", " << rows << " rows of " << logits.size() / rows);
  EXPECT_TRUE(BitsAreEqual(Launched(logits, rows, count), Sorted(logits, rows, count)));
}

std::vector<float> Made(int64_t n, const std::function<float(int64_t)>& logit) {
  std::vector<float> logits;
  for (int64_t i = 0; i < n; ++i) logits.push_back(logit(i));
  return logits;
}

TEST(GpuLargest, AreTheFirstOfASortAtEveryShape) {
  HashRandom random(1);
  for (int i = 0; i < Cases(24); ++i) {
    // Within a part, at its end, of a few, and so many that what they leave is of several parts.
    const int32_t vocab = i % 4 == 0   ? random.Uniform(1, 300)
                          : i % 4 == 1 ? kLargestPart + random.Uniform(-1, 1)
                          : i % 4 == 2 ? random.Uniform(kLargestPart, 5 * kLargestPart)
                                       : random.Uniform(33 * kLargestPart, 36 * kLargestPart);
    const int32_t rows = i % 4 == 3 ? 1 : random.Uniform(1, 3);
    const int32_t count = std::min(vocab, i % 3 == 0 ? kLargestMax : random.Uniform(1, kLargestMax));
    ExpectSorted(Made(int64_t{rows} * vocab, [&](int64_t) { return 20 * random.UniformFloat() - 10; }), rows, count);
  }
}

TEST(GpuLargest, OfEqualsTheFirstAndNanLast) {
  HashRandom random(2);
  constexpr float kOdd[] = {kNotANumber, -kNotANumber, 0.0F, -0.0F, kEndless, -kEndless, 1e-45F, -1e-45F};
  for (int i = 0; i < Cases(16); ++i) {
    const int32_t vocab = random.Uniform(1, i % 2 == 0 ? 200 : 3 * kLargestPart);
    const int32_t count = random.Uniform(1, std::min(vocab, kLargestMax));
    ExpectSorted(Made(vocab,
                      [&](int64_t) {
                        if (random.Uniform(0, 9) == 0) return kOdd[random.Uniform(0, 7)];
                        return static_cast<float>(random.Uniform(-4, 4));
                      }),
                 1, count);
  }
  for (const float all : {kNotANumber, 0.0F, -3.0F, kEndless, -kEndless}) {
    ExpectSorted(std::vector<float>(2 * kLargestPart + 5, all), 1, kLargestMax);
    ExpectSorted(std::vector<float>(5, all), 1, 5);
  }
  ExpectSorted({-kEndless, kNotANumber, 3, kNotANumber}, 2, 2);
}

// One thread's, one part's, in either order: what is gathered is the most there can be.
TEST(GpuLargest, WhereverTheLargestLie) {
  constexpr int32_t kVocab = 9 * kLargestPart + 100;
  ExpectSorted(Made(kVocab, [](int64_t i) { return static_cast<float>(i); }), 1, kLargestMax);
  ExpectSorted(Made(kVocab, [](int64_t i) { return static_cast<float>(-i); }), 1, kLargestMax);
  ExpectSorted(Made(kVocab, [](int64_t i) { return static_cast<float>(i % 256 < 128 ? i : -i); }), 1, kLargestMax);
  ExpectSorted(Made(kVocab, [](int64_t i) { return static_cast<float>(i % 256 == 7 ? i : -i); }), 1, kLargestMax);
}

TEST(GpuLargest, OfTheLargestVocabulary) {
  HashRandom random(3);
  ExpectSorted(Made(int64_t{1} << 18, [&](int64_t) { return 20 * random.UniformFloat() - 10; }), 1, kLargestMax);
}

}  // namespace
}  // namespace ebb::gpu
