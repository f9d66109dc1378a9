// The baseline of replacing tokens in place moves what a cache in order has to move, once, and nothing else.

#include "bench/shifting_ops.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "bench/lanes.h"
#include "engine/ops/cpu/ops_cpu.h"

namespace ebb::bench {
namespace {

constexpr KvFormat kFormat = {.type = KvType::kF32, .head_dim = 16, .page_tiles = 1};
constexpr int32_t kSlots = 40;  // two full pages of 16 rows, and a half

// The first number of each row of a lane's memory.
std::vector<float> Rows(const LaneStorage& lane) {
  std::vector<float> rows;
  for (int32_t slot = 0; slot < lane.slots; ++slot) {
    float value = 0;
    std::memcpy(&value, lane.pages[slot / kTileSlots] + slot % kTileSlots * kFormat.slot_bytes(), sizeof(value));
    rows.push_back(value);
  }
  return rows;
}

void Number(const LaneStorage& lane) {
  for (int32_t slot = 0; slot < lane.slots; ++slot) {
    const auto value = static_cast<float>(slot);
    std::memcpy(lane.pages[slot / kTileSlots] + slot % kTileSlots * kFormat.slot_bytes(), &value, sizeof(value));
  }
}

std::vector<float> Without(int32_t rank) {
  std::vector<float> rows;
  for (int32_t slot = 0; slot < kSlots; ++slot) {
    if (slot != rank) rows.push_back(static_cast<float>(slot));
  }
  return rows;
}

TEST(ShiftLane, MovesWhatLiesBehindDownByOne) {
  const auto ops = MakeCpuOps({.threads = 1}).value();
  for (const int32_t rank : {0, 4, 15, 16, 17, 31, 32, 38, 39}) {
    SCOPED_TRACE(rank);
    const Lanes lanes(*ops, kFormat, kSlots, 2, 1);
    const std::vector<float> neighbour = Rows(lanes.lane(1));
    Number(lanes.lane(0));
    ShiftLane(lanes.lane(0), rank);
    std::vector<float> rows = Rows(lanes.lane(0));
    rows.pop_back();  // where the newest token would be written
    EXPECT_EQ(rows, Without(rank));
    EXPECT_EQ(Rows(lanes.lane(1)), neighbour);
  }
}

TEST(ShiftingOps, ShiftFullLanesOnceAStepWhenTheyWereAttended) {
  const auto plain = MakeCpuOps({.threads = 1}).value();
  const Rope rope = RopeOf(16);
  const std::vector<float> q = RandomFloats(1, 1, 2 * 16);
  const std::vector<int32_t> positions = {kSlots - 2, kSlots - 1};
  for (const int32_t tokens : {1, 2}) {
    for (const int32_t full : {kSlots, kSlots + 1}) {
      const auto shifting = MakeShiftingOps(MakeCpuOps({.threads = 1}).value(), {.rank = 4, .full = full});
      const Lanes lanes(*plain, kFormat, kSlots, 1, 1);
      const std::vector<float> before = Rows(lanes.lane(0));
      std::vector<float> out(q.size()), expected(q.size());
      AttendTask task = {.lane = lanes.lane(0),
                         .q = q.data(),
                         .out = expected.data(),
                         .stride = 16,
                         .tokens = tokens,
                         .q_position = positions.data()};
      plain->Attend(rope, 1, {&task, 1});
      task.out = out.data();
      int done = 0;
      shifting->Attend(rope, 1, {&task, 1}, [&](size_t, int32_t) { ++done; });
      EXPECT_EQ(done, 1);
      EXPECT_EQ(out, expected) << "shifted behind attention, not before";
      std::vector<float> rows = before;
      if (tokens == 1 && full == kSlots) rows.erase(rows.begin() + 4);
      std::vector<float> after = Rows(lanes.lane(0));
      after.resize(rows.size());
      EXPECT_EQ(after, rows);
    }
  }
}

}  // namespace
}  // namespace ebb::bench
