// What the rows of prompts' blocks attend to, as tensor cores take it (kernels.h, BlockArgs): queries and keys rotated
// once for all who meet them, everything in BF16, zeros where a slot is free, whose bytes may be anything. Block
// (s, h, i): strip s, 16 slots, of KV head h of session i; and a block for each row's queries.
//
// The tile that a product takes from K is 16 components x 8 slots, from V 16 slots x 8 components; thread 4 g + t of a
// team holds two words of it (tensor.h). Two such tiles are one vector of four words a thread, and lie as they are
// read:
//
//   K, unit u of components   word 2 n + half: components 16 u + 8 half + 2 t, + 1 of slot 8 n + g
//   V, unit u of components   word 2 n + half: slots 8 half + 2 t, + 1 of component 16 u + 8 n + g

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/numbers.h"
#include "engine/ops/gpu/rope.h"
#include "engine/ops/gpu/tensor.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 128;

// A unit, turned, as eight components from place.first on and eight from place.second on.
EBB_DEVICE void RotateUnit(const RopeArgs& rope, int32_t unit, const UnitPlace& place, int32_t position, float* low,
                           float* high) {
  const int32_t pairs = rope.rotary_dims / 2 - kPairs * unit;
  uint64_t turns[kPairs] = {};
  EBB_UNROLL
  for (int32_t j = 0; j < kPairs; ++j) {
    if (j < pairs) turns[j] = rope.turns[kPairs * unit + j];
  }
  float x[kPairs], y[kPairs];
  Rotate(low, high, place.neighbours, position, turns, pairs, x, y);
  EBB_UNROLL
  for (int32_t j = 0; j < kPairs; ++j) {
    if (!place.neighbours) {
      low[j] = x[j];
      high[j] = y[j];
    } else {
      float* const to = j < kPairs / 2 ? low + 2 * j : high + 2 * j - kPairs;
      to[0] = x[j];
      to[1] = y[j];
    }
  }
}

template <typename E>
EBB_DEVICE void ReadScaled(const typename E::Type* from, float scale, float* to) {
  E::ReadEight(from, to);
  EBB_UNROLL
  for (int32_t i = 0; i < 8; ++i) to[i] *= scale;
}

// Eight components of K from `component` on, of a slot of the strip.
template <int32_t kTerms>
EBB_DEVICE void PutKeys(float* eight, int32_t component, int32_t slot, int32_t units, uint32_t* to) {
  EBB_UNROLL
  for (int32_t t = 0; t < 4; ++t) {
    EBB_UNROLL
    for (int32_t term = 0; term < kTerms; ++term) {
      const int32_t vector = (term * units + component / kUnit) * kTeam + 4 * (slot % 8) + t;
      to[4 * vector + 2 * (slot / 8) + component / 8 % 2] = TakeTerm<kTerms>(eight[2 * t], eight[2 * t + 1]);
    }
  }
}

template <typename E, int32_t kTerms>
EBB_KERNEL(kThreads)
LayStrip(BlockArgs args) {
  const AttendArgs& a = args.attend;
  const SessionView& session = a.cache.sessions[a.first_session + BlockZ()];
  const int32_t first = BlockX() * kStripSlots;
  if (first >= (session.slots + kStageSlots - 1) / kStageSlots * kStageSlots) return;
  const int32_t d = a.cache.arena.head_dim;
  const int32_t units = d / kUnit;
  const int32_t lane = a.layer * a.cache.kv_heads + BlockY();
  const int64_t strip = (int64_t{BlockZ()} * a.cache.kv_heads + BlockY()) * args.strips + BlockX();
  int32_t* const position = args.position + strip * kStripSlots;
  const int32_t thread = ThreadIndex();
  if (thread < kStripSlots) {
    const int32_t slot = first + thread;
    position[thread] = slot < session.slots ? session.position[int64_t{lane} * session.capacity + slot] : -1;
    if (position[thread] < 0) position[thread] = INT32_MAX;
  }
  Barrier();
  if (thread == 0) {
    int32_t earliest = INT32_MAX;
    for (int32_t i = 0; i < kStripSlots; ++i) {
      if (position[i] < earliest) earliest = position[i];
    }
    args.earliest[strip] = earliest;
  }

  uint32_t* const keys = args.kv + strip * 2 * kTerms * units * kTeam * 4;
  for (int32_t i = thread; i < kStripSlots * units; i += kThreads) {
    const int32_t slot = i / units;
    const int32_t unit = i % units;
    const UnitPlace place = PlaceOf(a.rope, unit);
    float low[8] = {}, high[8] = {};
    if (position[slot] != INT32_MAX) {
      const SlotRows<E> rows = RowsOf<E>(a.cache.arena, session, lane, first + slot);
      ReadScaled<E>(rows.k + place.first, rows.Scales().k, low);
      ReadScaled<E>(rows.k + place.second, rows.Scales().k, high);
      RotateUnit(a.rope, unit, place, position[slot], low, high);
    }
    PutKeys<kTerms>(low, place.first, slot, units, keys);
    PutKeys<kTerms>(high, place.second, slot, units, keys);
  }

  uint32_t* const values = keys + kTerms * units * kTeam * 4;
  for (int32_t i = thread; i < kStripSlots / 2 * (d / 8); i += kThreads) {
    const int32_t pair = i / (d / 8);  // slots 2 pair, 2 pair + 1
    const int32_t eight = i % (d / 8);
    float v[2][8] = {};
    EBB_UNROLL
    for (int32_t j = 0; j < 2; ++j) {
      if (position[2 * pair + j] == INT32_MAX) continue;
      const SlotRows<E> rows = RowsOf<E>(a.cache.arena, session, lane, first + 2 * pair + j);
      ReadScaled<E>(rows.v + 8 * eight, rows.Scales().v, v[j]);
    }
    EBB_UNROLL
    for (int32_t g = 0; g < 8; ++g) {
      EBB_UNROLL
      for (int32_t term = 0; term < kTerms; ++term) {
        const int32_t vector = (term * units + eight / 2) * kTeam + 4 * g + pair % 4;
        values[4 * vector + 2 * (eight % 2) + pair / 4] = TakeTerm<kTerms>(v[0][g], v[1][g]);
      }
    }
  }
}

template <int32_t kTerms>
EBB_KERNEL(kThreads)
LayQueries(BlockArgs args) {
  const AttendArgs& a = args.attend;
  const int32_t row = a.first_row + BlockX();
  const SessionView& session = a.cache.sessions[a.cache.row_session[row]];
  const int32_t d = a.cache.arena.head_dim;
  const int32_t units = d / kUnit;
  const int32_t heads = a.cache.kv_heads * a.group;
  for (int32_t i = ThreadIndex(); i < heads * units; i += kThreads) {
    const int32_t head = i / units;
    const int32_t lane = a.layer * a.cache.kv_heads + head / a.group;
    const int32_t slot = session.placed[int64_t{lane} * session.block_max + row - session.first_row];
    const UnitPlace place = PlaceOf(a.rope, i % units);
    const float* const q = a.q + row * a.q_stride + int64_t{head} * d;
    float half[2][8];
    KvF32::ReadEight(q + place.first, half[0]);
    KvF32::ReadEight(q + place.second, half[1]);
    RotateUnit(a.rope, i % units, place, session.position[int64_t{lane} * session.capacity + slot], half[0], half[1]);
    EBB_UNROLL
    for (int32_t j = 0; j < 8; ++j) {
      float* const pair = half[j / 4] + 2 * (j % 4);
      pair[0] *= a.scale;
      pair[1] *= a.scale;
      EBB_UNROLL
      for (int32_t term = 0; term < kTerms; ++term) {
        const int64_t at = (int64_t{term} * a.cache.rows + BlockX()) * heads + head;
        args.q[(at * d + (j < 4 ? place.first : place.second)) / 2 + j % 4] = TakeTerm<kTerms>(pair[0], pair[1]);
      }
    }
  }
}

template <typename E>
void LaunchOf(const BlockArgs& args, Stream stream) {
  constexpr int32_t kTerms = LaidTerms(E::kElement);
  const CacheArgs& cache = args.attend.cache;
  Launch(LayStrip<E, kTerms>, {args.strips, cache.kv_heads, cache.session_count}, kThreads, args, stream);
  Launch(LayQueries<kTerms>, {cache.rows}, kThreads, args, stream);
}

}  // namespace

void LaunchLay(const BlockArgs& args, Stream stream) {
  WithElement(args.attend.cache.arena.type, [&](auto element) { LaunchOf<decltype(element)>(args, stream); });
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
