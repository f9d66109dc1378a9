// All query heads of a KV head, in the registers of the teams that read keys. A slot's K is d components in units of
// 16, one unit a thread; the threads of a slot are a team of `width`, the power of two at or above d / 16. With d = 128
// a team is 8 threads, and 16 teams of 128 threads read 16 slots at once:
//
//   thread   0          1          ...  7           8          ...
//   slot     first      first           first       first + 1
//   unit     0          1               7           0
//
// A unit is eight pairs that RoPE turns, so a rotation never leaves its thread (rope.h).

#ifndef EBB_ENGINE_OPS_GPU_QUERY_HEADS_H_
#define EBB_ENGINE_OPS_GPU_QUERY_HEADS_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/numbers.h"
#include "engine/ops/gpu/reduce.h"
#include "engine/ops/gpu/rope.h"

namespace ebb::gpu::EBB_GPU_TARGET {

// What one thread has: its unit of every head, rotated and scaled; zeros for heads that the group does not have.
template <int kGroup>
struct QueryHeads {
  int32_t width, unit, team;
  int32_t pairs;  // of the unit's, that turn
  bool has_unit;
  UnitPlace place;
  uint64_t turns[kPairs];
  float x[kGroup][kPairs], y[kGroup][kPairs];

  // `q` [group][d], of a token at `position`.
  EBB_DEVICE QueryHeads(const RopeArgs& rope, float scale, const float* q, int32_t group, int32_t d, int32_t position)
      : width(TeamFor(d / kUnit)),
        unit(ThreadIndex() % width),
        team(ThreadIndex() / width),
        pairs(unit < d / kUnit ? rope.rotary_dims / 2 - kPairs * unit : 0),
        has_unit(unit < d / kUnit),
        place(PlaceOf(rope, unit)),
        turns(),
        x(),
        y() {
    EBB_UNROLL
    for (int32_t j = 0; j < kPairs; ++j) {
      if (j < pairs) turns[j] = rope.turns[kPairs * unit + j];
    }
    if (!has_unit) return;
    EBB_UNROLL
    for (int32_t g = 0; g < kGroup; ++g) {
      if (g >= group) continue;
      float low[8], high[8];
      KvF32::ReadEight(q + int64_t{g} * d + place.first, low);
      KvF32::ReadEight(q + int64_t{g} * d + place.second, high);
      Rotate(low, high, place.neighbours, position, turns, pairs, x[g], y[g]);
      EBB_UNROLL
      for (int32_t j = 0; j < kPairs; ++j) {
        x[g][j] *= scale;
        y[g][j] *= scale;
      }
    }
  }

  // What this thread's unit adds to every head's product with the key `k` [d] of a token at `position`.
  // REQUIRES: has_unit.
  template <typename E>
  EBB_DEVICE void AddUnit(const typename E::Type* k, int32_t position, float (&dot)[kGroup]) const {
    float low[8], high[8], kx[kPairs], ky[kPairs];
    E::ReadEight(k + place.first, low);
    E::ReadEight(k + place.second, high);
    Rotate(low, high, place.neighbours, position, turns, pairs, kx, ky);
    EBB_UNROLL
    for (int32_t g = 0; g < kGroup; ++g) {
      EBB_UNROLL
      for (int32_t j = 0; j < kPairs; ++j) {
        dot[g] = MultiplyAdd(kx[j], x[g][j], dot[g]);
        dot[g] = MultiplyAdd(ky[j], y[g][j], dot[g]);
      }
    }
  }

  // Sums of the team, shared out: this thread has those of heads first .. first + count - 1, in the first `count`
  // numbers. In half as many exchanges each time, as each half of the team goes on with half of the heads.
  struct Own {
    int32_t first, count;
  };
  EBB_DEVICE Own ShareSums(float (&dot)[kGroup]) const {
    Own own = {0, kGroup};
    int32_t mask = width / 2;
    EBB_UNROLL
    for (int32_t half = kGroup / 2; half > 0; half /= 2) {
      if (mask == 0) continue;
      const bool upper = (unit & mask) != 0;
      EBB_UNROLL
      for (int32_t g = 0; g < half; ++g) {
        const float given = ShuffleXor(upper ? dot[g] : dot[half + g], mask);
        dot[g] = (upper ? dot[half + g] : dot[g]) + given;
      }
      own = {own.first + (upper ? half : 0), half};
      mask /= 2;
    }
    for (; mask > 0; mask /= 2) dot[0] += ShuffleXor(dot[0], mask);
    return own;
  }

  // Every head's logit of the slot that the thread's team reads, known to the whole team. `exists`: alike for the team;
  // where nothing does, nothing is read, and logits are 0.
  template <typename E>
  EBB_DEVICE void Multiply(bool exists, const Arena& arena, const SessionView& session, int32_t lane, int32_t slot,
                           int32_t position, float (&logit)[kGroup]) const {
    float dot[kGroup] = {};
    float scale_of_k = 1;
    if (exists && has_unit) {
      const SlotRows<E> rows = RowsOf<E>(arena, session, lane, slot);
      scale_of_k = rows.Scales().k;
      AddUnit<E>(rows.k, position, dot);
    }
    EBB_UNROLL
    for (int32_t g = 0; g < kGroup; ++g) logit[g] = ReduceTeam(dot[g], Plus(), width) * scale_of_k;
  }
};

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_QUERY_HEADS_H_
