// RoPE in registers: a head's components in units of 16, each of which is eight pairs that turn together, so that
// whoever has a unit can turn it alone.
//
//   neighbours   components 16 u .. 16 u + 15: pair j is (16 u + 2 j, 16 u + 2 j + 1)
//   halves       components 8 u .. 8 u + 7 and 8 u + rotary / 2 .. : pair j is (8 u + j, 8 u + j + rotary / 2)
//   past rotary  components 16 u .., not turned

#ifndef EBB_ENGINE_OPS_GPU_ROPE_H_
#define EBB_ENGINE_OPS_GPU_ROPE_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"

namespace ebb::gpu::EBB_GPU_TARGET {

inline constexpr int32_t kUnit = 16;
inline constexpr int32_t kPairs = kUnit / 2;

// Where the two halves of a unit begin, and whether its pairs are neighbours there.
struct UnitPlace {
  int32_t first, second;
  bool neighbours;
};
EBB_DEVICE UnitPlace PlaceOf(const RopeArgs& rope, int32_t unit) {
  if (rope.halves != 0 && unit < rope.rotary_dims / kUnit) {
    return {kPairs * unit, kPairs * unit + rope.rotary_dims / 2, false};
  }
  return {kUnit * unit, kUnit * unit + kPairs, rope.halves == 0};
}

// Pair j of what was read as (first eight, second eight) of a unit.
struct Pair {
  float x, y;
};
EBB_DEVICE Pair PairOf(const float* low, const float* high, bool neighbours, int32_t j) {
  if (!neighbours) return {low[j], high[j]};
  return j < kPairs / 2 ? Pair{low[2 * j], low[2 * j + 1]} : Pair{high[2 * j - kPairs], high[2 * j - kPairs + 1]};
}

// The pairs of a unit turned by a position; those past `pairs` stay. `turns`: of this unit's pairs.
EBB_DEVICE void Rotate(const float* low, const float* high, bool neighbours, int32_t position, const uint64_t* turns,
                       int32_t pairs, float* x, float* y) {
  EBB_UNROLL
  for (int32_t j = 0; j < kPairs; ++j) {
    const Pair pair = PairOf(low, high, neighbours, j);
    x[j] = pair.x;
    y[j] = pair.y;
    if (j >= pairs) continue;
    const CosSin turned = Turn(position, turns[j]);
    x[j] = MultiplyAdd(-pair.y, turned.sin, pair.x * turned.cos);
    y[j] = MultiplyAdd(pair.x, turned.sin, pair.y * turned.cos);
  }
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_ROPE_H_
