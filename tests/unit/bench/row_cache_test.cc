// The baselines of updating in place keep the right tokens in the right order: an honest opponent does all of its work.

#include "bench/row_cache.h"

#include <gtest/gtest.h>

#include <vector>

#include "bench/lanes.h"
#include "engine/ops/cpu/ops_cpu.h"

namespace ebb::bench {
namespace {

constexpr int32_t kTokens = 10;
constexpr int64_t kLanes = 3;
constexpr int64_t kRowBytes = 4;

// Token t of a lane says 16 * lane + t in every byte of K, and 100 more in V.
void Number(RowCache& cache) {
  for (int part = 0; part < 2; ++part) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      for (int64_t token = 0; token < kTokens; ++token) {
        for (std::byte& byte : cache.Row(part, lane, token)) byte = std::byte(16 * lane + token + 100 * part);
      }
    }
  }
}

std::vector<int> Read(RowCache& cache, int part, int64_t lane) {
  std::vector<int> tokens;
  for (int64_t token = 0; token < kTokens; ++token) {
    tokens.push_back(static_cast<int>(cache.Row(part, lane, token).back()) - static_cast<int>(16 * lane) - 100 * part);
  }
  return tokens;
}

TEST(RowCache, KeepsWhoStaysInOrderAndAppendsTheNew) {
  const Victims victims = {{0, 1}, {3, 7}, {8, 9}};
  const std::vector<std::byte> rows(2 * kRowBytes, std::byte{99});
  for (const bool shift : {true, false}) {
    Parallel parallel(2);
    RowCache cache(kLanes, kTokens, kRowBytes);
    Number(cache);
    shift ? cache.ShiftAndAppend(parallel, victims, rows) : cache.Concatenate(parallel, victims, rows);
    for (int part = 0; part < 2; ++part) {
      std::vector<std::vector<int>> expected = {
          {2, 3, 4, 5, 6, 7, 8, 9}, {0, 1, 2, 4, 5, 6, 8, 9}, {0, 1, 2, 3, 4, 5, 6, 7}};
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        std::vector<int>& tokens = expected[static_cast<size_t>(lane)];
        tokens.insert(tokens.end(), 2, 99 - static_cast<int>(16 * lane) - 100 * part);
        EXPECT_EQ(Read(cache, part, lane), tokens) << "lane " << lane << " part " << part << " shift " << shift;
      }
    }
  }
}

TEST(RowCache, CountsTheBytesOfWhatMoves) {
  RowCache cache(1, kTokens, kRowBytes);
  // Behind victim 3 lie 6 tokens; one is appended. K and V, read and written.
  EXPECT_EQ(cache.ShiftBytes({{3}}), (6 + 1) * kRowBytes * 2 * 2);
}

TEST(Lanes, AreFullAndReadBackAsWritten) {
  const auto ops = *MakeCpuOps({});
  const Lanes lanes(*ops, {.type = KvType::kF32, .head_dim = 16}, 40, 2, 1);
  const std::vector<float> k = RandomFloats(1, 1, 40 * 16);
  std::vector<float> read(k.size());
  ops->Read(lanes.lane(1), Ops::Part::kKeys, 0, 40, read.data());
  EXPECT_EQ(read, k);
  EXPECT_EQ(lanes.lane(0).position[39], 39);
  EXPECT_LT(lanes.lane(0).position[40], 0);
}

}  // namespace
}  // namespace ebb::bench
