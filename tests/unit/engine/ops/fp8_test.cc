// Bytes of KvType::kFp8 are the E4M3 of OCP in every instruction set: tests/support/e4m3.h, which knows it by itself.

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/e4m3.h"
#include "tests/support/test_lane.h"
#include "tests/unit/engine/ops/each_isa.h"

namespace ebb {
namespace {

constexpr int32_t kRowDim = 40;  // vectors in pairs, and a part of one

// K of slot 0 .. 15 lies component by component in a tile, V slot by slot, then come the scales of both.
struct Tile {
  const KvFormat format = {.type = KvType::kFp8, .head_dim = kRowDim, .page_tiles = 1};
  TestLane lane = TestLane(format, 16);

  uint8_t* at(int32_t first) const { return reinterpret_cast<uint8_t*>(lane.storage().pages[0]) + first; }
  uint8_t& k(int32_t slot, int32_t component) const { return *at(16 * component + slot); }
  uint8_t& v(int32_t slot, int32_t component) const { return *at(16 * kRowDim + kRowDim * slot + component); }
  void SetScales(float scale) const {
    for (int32_t i = 0; i < 32; ++i) std::memcpy(at(32 * kRowDim + 4 * i), &scale, 4);
  }
};

TEST(Fp8, EveryCodeIsItsNumber) {
  ForEachIsa([](Ops& ops) {
    const Tile tile;
    tile.SetScales(256);  // bytes are 2^-8 of their numbers
    std::array<float, 16 * kRowDim> keys, values;
    for (int32_t i = 0; i < 16 * kRowDim; ++i) {
      tile.k(i / kRowDim, i % kRowDim) = static_cast<uint8_t>(i);
      tile.v(i / kRowDim, i % kRowDim) = static_cast<uint8_t>(i);
    }
    ops.Read(tile.lane.storage(), Ops::Part::kKeys, 0, 16, keys.data());
    ops.Read(tile.lane.storage(), Ops::Part::kValues, 0, 16, values.data());
    for (int32_t i = 0; i < 16 * kRowDim; ++i) {
      const auto code = static_cast<uint8_t>(i);
      const double no_number = code < 0x80 ? 480 : -480;  // engine/ops.h
      const double expected = std::isnan(E4M3Number(code)) ? no_number : E4M3Number(code);
      ASSERT_EQ(keys[i], expected) << i;
      ASSERT_EQ(values[i], expected) << i;
      ASSERT_EQ(std::signbit(keys[i]), code >= 0x80) << i;
      ASSERT_EQ(std::signbit(values[i]), code >= 0x80) << i;
    }
  });
}

// One number of each row is 448, so that what is rounded is what is given. Tokens in the order of slots fill tiles, and
// others go one by one.
TEST(Fp8, RoundsToTheNearestEven) {
  const std::vector<float> rows = E4M3Trials(kRowDim);
  for (const bool in_order : {true, false}) {
    ForEachIsa([&](Ops& ops) {
      for (size_t first = 0; first + 16 * kRowDim <= rows.size(); first += 16 * kRowDim) {
        Tile tile;
        std::vector<int32_t> slots(16);
        for (int32_t t = 0; t < 16; ++t) slots[t] = in_order ? t : (7 * t) % 16;
        const std::span some = std::span(rows).subspan(first, 16 * kRowDim);
        tile.lane.Write(ops, {}, slots, slots, some, some);
        for (int32_t i = 0; i < 16 * kRowDim; ++i) {
          const uint8_t expected = E4M3Code(some[i]);
          ASSERT_EQ(tile.k(slots[i / kRowDim], i % kRowDim), expected) << some[i];
          ASSERT_EQ(tile.v(slots[i / kRowDim], i % kRowDim), expected) << some[i];
        }
      }
    });
  }
}

// The scale says that a row is not finite; its bytes are numbers all the same, and the same everywhere.
TEST(Fp8, BytesAreNumbersWhateverTheyAreMadeOf) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float nan = std::nanf("");
  std::vector<float> row(kRowDim, 2);
  row[1] = -2, row[3] = kInf, row[17] = nan, row[18] = -nan, row[20] = -kInf;
  ForEachIsa([&](Ops& ops) {
    Tile tile;
    const std::vector<int32_t> slots = {5};
    tile.lane.Write(ops, {}, slots, slots, row, row);
    for (int32_t i = 0; i < kRowDim; ++i) {
      const bool is_finite = std::isfinite(row[i]);
      ASSERT_EQ(tile.k(5, i), (std::signbit(row[i]) ? 0x80 : 0) + (is_finite ? 0 : 0x7E)) << i;
      ASSERT_EQ(tile.v(5, i), tile.k(5, i)) << i;
    }
    ASSERT_TRUE(std::isnan(tile.lane.Read(TestLane::Part::kK, 5, 0)));
    ASSERT_TRUE(std::isnan(tile.lane.Read(TestLane::Part::kV, 5, 0)));
  });
}

// What one component that is `larger` than the others can be costs these, as a part of their root mean square.
double ErrorBeside(float larger, KvType type) {
  const KvFormat format = {.type = type, .head_dim = kRowDim, .page_tiles = 1};
  std::vector<float> rows = RandomFloats(8, 2, 16 * kRowDim);
  std::vector<int32_t> slots(16);
  for (int32_t t = 0; t < 16; ++t) rows[t * kRowDim] = larger, slots[t] = t;
  TestLane lane(format, 16);
  lane.Write(*OpsFor(""), {}, slots, slots, rows, rows);
  double squares = 0, errors = 0;
  for (int32_t i = 0; i < 16 * kRowDim; ++i) {
    if (i % kRowDim == 0) continue;
    const double error = lane.Read(TestLane::Part::kV, i / kRowDim, i % kRowDim) - rows[i];
    errors += error * error;
    squares += double{rows[i]} * rows[i];
  }
  return std::sqrt(errors / squares);
}

// Of neither type of bytes the other is the better: what decides is how far the largest component is from the rest.
TEST(Fp8, KeepsTheRestWhereFewComponentsAreLarge) {
  for (const float larger : {1.0F, 4.0F, 8.0F, 16.0F, 64.0F, 256.0F}) {
    const double int8 = ErrorBeside(larger, KvType::kInt8), fp8 = ErrorBeside(larger, KvType::kFp8);
    std::printf("one component of %g, the others below 1: these are off by %.4f (INT8), %.4f (FP8)\n", larger, int8,
                fp8);
    EXPECT_LT(fp8, 0.04);
    if (larger <= 4) {
      EXPECT_LT(int8, fp8);
    } else if (larger >= 16) {
      EXPECT_LT(fp8, int8);
    }
  }
}

}  // namespace
}  // namespace ebb
