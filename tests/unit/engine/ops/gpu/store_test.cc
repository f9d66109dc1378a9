// Bytes of FP8 as a device writes them: those that tests/unit/engine/ops/fp8_test.cc holds the CPU to, and scales
// alike.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "policies/hash_random.h"
#include "tests/support/e4m3.h"
#include "tests/unit/engine/ops/gpu/each_target.h"
#include "tests/unit/engine/ops/gpu/resting_lanes.h"

namespace ebb::gpu {
namespace {

constexpr size_t kRow = 48;
constexpr int32_t kSlot = 19;

// Lanes of one page each.
RestingLanes Fp8Lanes(int32_t lanes) {
  HashRandom random(74);
  return {{.type = Element::kFp8, .head_dim = kRow, .lanes = lanes, .capacity = 64, .live = 2}, Part::kKeys, random};
}

// The arena after a row was stored in kSlot of each lane, as K and as V.
std::vector<std::byte> Stored(const RestingLanes& l, const std::vector<float>& rows) {
  return OnEachTarget([&](const Table& table) {
    Mirror mirror(table);
    SessionView view = l.View(mirror);
    view.placed = mirror.In(std::vector<int32_t>(l.lanes, kSlot));
    view.block_max = 1;
    CacheArgs cache = l.Cache(view, l.lanes, mirror);
    cache.row_session = mirror.In(std::vector<int32_t>{0});
    cache.rows = 1;
    table.store({.cache = cache, .k = mirror.In(rows), .v = mirror.In(rows), .stride = std::ssize(rows)},
                mirror.stream());
    std::vector<std::byte> arena(l.arena.size());
    mirror.Out(static_cast<std::byte*>(cache.arena.base), arena);
    return arena;
  });
}

TEST(GpuStore, BytesOfFp8AreTheCpus) {
  const std::vector<float> rows = E4M3Trials(kRow);
  const RestingLanes l = Fp8Lanes(static_cast<int32_t>(rows.size() / kRow));
  std::vector<std::byte> expected = l.arena;
  const int64_t page_bytes = PageBytes(l.type, l.head_dim);
  for (int32_t lane = 0; lane < l.lanes; ++lane) {
    for (const Part part : {Part::kKeys, Part::kValues}) {
      WriteRow(l.type, std::span(rows).subspan(lane * kRow, kRow), kSlot, part, &expected[l.page[lane] * page_bytes]);
    }
  }
  EXPECT_EQ(Stored(l, rows), expected);
}

TEST(GpuStore, BytesOfFp8AreNumbersWhateverTheyAreMadeOf) {
  std::vector<float> row(kRow, 2);
  row[1] = -2, row[3] = INFINITY, row[17] = NAN, row[18] = -NAN, row[40] = -INFINITY;
  const std::vector<std::byte> page = Stored(Fp8Lanes(1), row);
  for (const size_t part : {size_t{0}, kPageSlots * kRow}) {
    for (size_t c = 0; c < kRow; ++c) {
      const int code = (std::signbit(row[c]) ? 0x80 : 0) + (std::isfinite(row[c]) ? 0 : 0x7E);
      ASSERT_EQ(static_cast<int>(page[part + kSlot * kRow + c]), code) << c;
    }
  }
  for (const size_t scales : {2 * kPageSlots * kRow, 2 * kPageSlots * kRow + 4 * kPageSlots}) {
    float scale = 0;
    std::memcpy(&scale, &page[scales + 4 * kSlot], 4);
    ASSERT_TRUE(std::isnan(scale));
  }
}

}  // namespace
}  // namespace ebb::gpu
