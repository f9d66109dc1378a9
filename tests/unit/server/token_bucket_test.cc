#include "server/token_bucket.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "policies/hash_random.h"

namespace ebb {
namespace {

constexpr absl::Time kStart = absl::UnixEpoch();

TokenBucket Bucket(int64_t per_minute) {
  TokenBucket bucket;
  bucket.SetRate(per_minute, kStart);
  return bucket;
}

TEST(TokenBucket, HoldsAMinutesTokensAndFillsAsTimePasses) {
  TokenBucket bucket = Bucket(60);
  EXPECT_EQ(bucket.Taken(kStart), 0);
  bucket.Take(59, kStart);
  EXPECT_EQ(bucket.Wait(kStart), absl::ZeroDuration()) << "one is left";
  bucket.Take(1, kStart);
  EXPECT_EQ(bucket.Wait(kStart), absl::Seconds(1));
  EXPECT_EQ(bucket.Wait(kStart + absl::Milliseconds(400)), absl::Milliseconds(600));
  EXPECT_EQ(bucket.Wait(kStart + absl::Seconds(1)), absl::ZeroDuration());
  EXPECT_EQ(bucket.Taken(kStart + absl::Seconds(30)), 30);
  EXPECT_EQ(bucket.Taken(kStart + absl::Minutes(5)), 0) << "no more than a minute's is saved up";
  bucket.Take(60, kStart + absl::Minutes(5));
  EXPECT_EQ(bucket.Wait(kStart + absl::Minutes(5)), absl::Seconds(1));
}

TEST(TokenBucket, WhatIsTakenBeyondIsOwed) {
  TokenBucket bucket = Bucket(60);
  bucket.Take(180, kStart);
  EXPECT_EQ(bucket.Taken(kStart), 180);
  EXPECT_EQ(bucket.Wait(kStart), absl::Seconds(121));
  bucket.Take(-100, kStart);
  EXPECT_EQ(bucket.Taken(kStart), 80) << "given back";
  EXPECT_EQ(bucket.Wait(kStart + absl::Seconds(21)), absl::ZeroDuration());
}

TEST(TokenBucket, AnotherRateKeepsWhatWasTaken) {
  TokenBucket bucket = Bucket(60);
  bucket.Take(90, kStart);
  bucket.SetRate(600, kStart);
  EXPECT_EQ(bucket.Taken(kStart), 90);
  EXPECT_EQ(bucket.Wait(kStart), absl::ZeroDuration());
  bucket.SetRate(30, kStart);
  EXPECT_EQ(bucket.Taken(kStart), 90);
  EXPECT_EQ(bucket.Wait(kStart), absl::Seconds(2 * 61));
  bucket.SetRate(0, kStart);
  bucket.Take(1 << 30, kStart);
  EXPECT_EQ(bucket.Wait(kStart), absl::ZeroDuration()) << "no limit";
}

// Whoever takes when there is a token, as much as it likes, gets over any time what flows in, a minute's, and what it
// took last.
TEST(TokenBucket, NobodyGetsMoreThanFlowsInAndAMinutesAndItsLast) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int64_t rate = random.Uniform(1, 1000);
    TokenBucket bucket = Bucket(rate);
    absl::Time now = kStart;
    int64_t taken = 0;
    for (int i = 0; i < 300; ++i) {
      now += absl::Milliseconds(random.Uniform(0, 3000));
      if (bucket.Wait(now) > absl::ZeroDuration()) {
        EXPECT_GE(bucket.Taken(now), rate);
        continue;
      }
      const int64_t tokens = random.Uniform(1, 400);
      bucket.Take(tokens, now);
      taken += tokens;
      const double flowed = absl::ToDoubleMinutes(now - kStart) * static_cast<double>(rate);
      ASSERT_LE(static_cast<double>(taken), flowed + static_cast<double>(rate + tokens));
    }
    // And no less: it waits no longer than it must.
    EXPECT_GT(static_cast<double>(taken),
              0.9 * absl::ToDoubleMinutes(now - kStart) * static_cast<double>(std::min<int64_t>(rate, 400)) - 400);
  }
}

}  // namespace
}  // namespace ebb
