// Lanes of one session whose tokens sit in random slots of random pages, as a device has them; what is free holds bytes
// that are no numbers.

#ifndef EBB_TESTS_UNIT_ENGINE_OPS_GPU_RESTING_LANES_H_
#define EBB_TESTS_UNIT_ENGINE_OPS_GPU_RESTING_LANES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/ops/gpu/kernels.h"
#include "policies/hash_random.h"
#include "tests/support/attend_case.h"
#include "tests/support/gpu_target.h"
#include "tests/unit/engine/ops/gpu/resting_row.h"

namespace ebb::gpu {

struct LanesShape {
  Element type = Element::kF32;
  int32_t head_dim = 64;
  int32_t lanes = 2;
  int32_t capacity = 100;
  int32_t live = 60;

  int32_t pages_per_lane() const { return (capacity + kPageSlots - 1) / kPageSlots; }
  int64_t slots() const { return int64_t{lanes} * capacity; }
};

struct RestingLanes : LanesShape {
  RestingLanes(const LanesShape& shape, Part part_of_rows, HashRandom& random)
      : LanesShape(shape),
        part(part_of_rows),
        token(slots(), -1),
        page(RandomOrder(random, lanes * pages_per_lane())),
        rows(slots() * head_dim, 0),
        arena(std::ssize(page) * PageBytes(type, head_dim), std::byte{0xFF}) {}

  // `index` sits in a lane's slot, with this row. What it is when it rests is in `rows`.
  void Seat(int32_t lane, int32_t slot, int32_t index, std::span<const float> row) {
    const int64_t at = int64_t{lane} * capacity + slot;
    token[at] = index;
    const int32_t its_page = page[lane * pages_per_lane() + slot / kPageSlots];
    WriteRow(type, row, slot, part, &arena[its_page * PageBytes(type, head_dim)]);
    std::ranges::copy(Rest(type, row).numbers, rows.begin() + at * head_dim);
  }

  // During a step that brought the last token, and in which one leaves; -7 is where nobody has written what is kept.
  SessionView View(Mirror& mirror) const {
    return {.token = mirror.In(token),
            .keep = mirror.In(std::vector<float>(token.size(), -7)),
            .page = mirror.In(page),
            .capacity = capacity,
            .pages_per_lane = pages_per_lane(),
            .live = live - 1,
            .slots = capacity,
            .tokens = 1,
            .drop = 1};
  }
  CacheArgs Cache(const SessionView& view, int32_t kv_heads, Mirror& mirror) const {
    return {.arena = {.base = mirror.In(arena), .type = type, .head_dim = head_dim},
            .sessions = mirror.In(std::vector{view}),
            .session_count = 1,
            .kv_heads = kv_heads,
            .lanes = lanes,
            .slots_max = capacity};
  }

  Part part;  // of the cache that is written, keys or values
  std::vector<int32_t> token, page;
  std::vector<float> rows;  // [lanes][capacity][d], as they rest; 0 where free
  std::vector<std::byte> arena;
};

}  // namespace ebb::gpu

#endif  // EBB_TESTS_UNIT_ENGINE_OPS_GPU_RESTING_LANES_H_
