// What the rows of prompts' blocks attend to, as tensor cores take it (kernels.h, BlockArgs): queries and keys rotated
// once for all who meet them, everything in BF16, zeros where a slot is free, whose bytes may be anything. Block
// (s, h, i): strip s, 16 slots, of KV head h of session i; and tile s, 16 rows of queries, which lie as K does.
//
// The tile that a product takes from K is 16 components x 8 slots, from V 16 slots x 8 components; thread 4 g + t of a
// team holds two words of it (tensor.h). Two such tiles are one vector of four words a thread, and lie as they are
// read:
//
//   K, unit u of components   word 2 n + half: components 16 u + 8 half + 2 t, + 1 of slot 8 n + g
//   V, unit u of components   word 2 n + half: slots 8 half + 2 t, + 1 of component 16 u + 8 n + g

#include <cstdint>

#include "engine/ops/gpu/block.h"
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

// What a block lays out goes through shared memory, word by word, and from there in whole vectors. Places are exchanged
// so that neither way meets one bank again and again.
template <int32_t kTerms>
struct Laid {
  Vector16 vectors[kTerms * (kHeadDimMax / kUnit) * kTeam];

  static EBB_DEVICE int32_t PlaceOf(int32_t vector) { return vector ^ (vector >> 3 & 3); }
  EBB_DEVICE void Put(int32_t vector, int32_t word, uint32_t value) { vectors[PlaceOf(vector)].word[word] = value; }
  // `count` vectors, by the whole block, which meets before and after.
  EBB_DEVICE void Write(int32_t count, uint32_t* to) {
    Barrier();
    for (int32_t i = ThreadIndex(); i < count; i += kThreads) {
      reinterpret_cast<Vector16*>(to)[i] = vectors[PlaceOf(i)];
    }
    Barrier();
  }
};

// Eight components of K or q from `component` on, of one of 16 rows.
template <int32_t kTerms>
EBB_DEVICE void PutKeys(float* eight, int32_t component, int32_t row, int32_t units, Laid<kTerms>& to) {
  EBB_UNROLL
  for (int32_t t = 0; t < 4; ++t) {
    EBB_UNROLL
    for (int32_t term = 0; term < kTerms; ++term) {
      to.Put((term * units + component / kUnit) * kTeam + 4 * (row % 8) + t, 2 * (row / 8) + component / 8 % 2,
             TakeTerm<kTerms>(eight[2 * t], eight[2 * t + 1]));
    }
  }
}

template <typename E, int32_t kTerms>
EBB_KERNEL(kThreads)
LayStrip(BlockArgs args) {
  EBB_SHARED Laid<kTerms> laid;
  const AttendArgs& a = args.attend;
  const SessionView& session = a.cache.sessions[a.first_session + BlockZ()];
  const int32_t first = BlockX() * kStripSlots;
  if (BlockX() >= LaidStrips(session.slots)) return;
  const int32_t d = a.cache.arena.head_dim;
  const int32_t units = d / kUnit;
  const int32_t lane = a.layer * a.cache.kv_heads + BlockY();
  const int64_t strip = FirstStrip(a, session, BlockY()) + BlockX();
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
    int32_t latest = -1;
    for (int32_t i = 0; i < kStripSlots; ++i) {
      if (position[i] < earliest) earliest = position[i];
      if (position[i] > latest && position[i] != INT32_MAX) latest = position[i];
    }
    args.earliest[strip] = earliest;
    args.latest[strip] = latest;
  }

  uint32_t* const keys = args.kv + strip * 2 * kTerms * units * kTeam * 4;
  for (int32_t i = thread; i < kStripSlots * units; i += kThreads) {
    const int32_t slot = i % kStripSlots;
    const int32_t unit = i / kStripSlots;
    const UnitPlace place = PlaceOf(a.rope, unit);
    float low[8] = {}, high[8] = {};
    if (position[slot] != INT32_MAX) {
      const SlotRows<E> rows = RowsOf<E>(a.cache.arena, session, lane, first + slot);
      ReadScaled<E>(rows.k + place.first, rows.Scales().k, low);
      ReadScaled<E>(rows.k + place.second, rows.Scales().k, high);
      RotateUnit(a.rope, unit, place, position[slot], low, high);
    }
    PutKeys<kTerms>(low, place.first, slot, units, laid);
    PutKeys<kTerms>(high, place.second, slot, units, laid);
  }
  laid.Write(kTerms * units * kTeam, keys);

  for (int32_t i = thread; i < kStripSlots / 2 * (d / 8); i += kThreads) {
    const int32_t pair = i % (kStripSlots / 2);  // slots 2 pair, 2 pair + 1
    const int32_t eight = i / (kStripSlots / 2);
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
        laid.Put((term * units + eight / 2) * kTeam + 4 * g + pair % 4, 2 * (eight % 2) + pair / 4,
                 TakeTerm<kTerms>(v[0][g], v[1][g]));
      }
    }
  }
  laid.Write(kTerms * units * kTeam, keys + kTerms * units * kTeam * 4);
}

template <int32_t kTerms>
EBB_KERNEL(kThreads)
LayQueries(BlockArgs args) {
  EBB_SHARED Laid<kTerms> laid;
  EBB_SHARED int32_t position[kLaidRows];
  const AttendArgs& a = args.attend;
  const SessionView& session = a.cache.sessions[a.first_session + BlockZ()];
  const int32_t first = BlockX() * kLaidRows;
  const int32_t rows = session.tokens * a.group;
  if (first >= rows) return;
  const int32_t d = a.cache.arena.head_dim;
  const int32_t units = d / kUnit;
  const int64_t lane = a.layer * a.cache.kv_heads + BlockY();
  const int32_t vectors = kTerms * units * kTeam;
  const int32_t tile_words = 4 * vectors + 2 * kLaidRows;
  uint32_t* const tile = LaidQueries(args, BlockZ(), BlockY(), tile_words) + int64_t{BlockX()} * tile_words;
  if (ThreadIndex() < kLaidRows) {
    const int32_t m = first + ThreadIndex() < rows ? first + ThreadIndex() : rows - 1;
    const int32_t slot = session.placed[lane * session.block_max + m / a.group];
    position[ThreadIndex()] = session.position[lane * session.capacity + slot];
    tile[4 * vectors + kLaidRows + ThreadIndex()] = static_cast<uint32_t>(position[ThreadIndex()]);
  }
  Barrier();
  for (int32_t i = ThreadIndex(); i < kLaidRows * units; i += kThreads) {
    const int32_t row = i % kLaidRows;
    const int32_t unit = i / kLaidRows;
    const int32_t m = first + row;
    const UnitPlace place = PlaceOf(a.rope, unit);
    float half[2][8] = {};
    if (m < rows) {
      const int64_t head = int64_t{BlockY()} * a.group + m % a.group;
      const float* const q = a.q + (session.first_row + m / a.group) * a.q_stride + head * d;
      KvF32::ReadEight(q + place.first, half[0]);
      KvF32::ReadEight(q + place.second, half[1]);
      RotateUnit(a.rope, unit, place, position[row], half[0], half[1]);
      EBB_UNROLL
      for (int32_t j = 0; j < 16; ++j) half[j / 8][j % 8] *= a.scale;
    }
    PutKeys<kTerms>(half[0], place.first, row, units, laid);
    PutKeys<kTerms>(half[1], place.second, row, units, laid);
  }
  laid.Write(vectors, tile);
}

template <typename E>
void LaunchOf(const BlockArgs& args, Stream stream) {
  constexpr int32_t kTerms = LaidTerms(E::kElement);
  const CacheArgs& cache = args.attend.cache;
  Launch(LayStrip<E, kTerms>, {args.strips, cache.kv_heads, cache.session_count}, kThreads, args, stream);
  const int32_t tiles = (args.tokens_max * args.attend.group + kLaidRows - 1) / kLaidRows;
  Launch(LayQueries<kTerms>, {tiles, cache.kv_heads, cache.session_count}, kThreads, args, stream);
}

}  // namespace

void LaunchLay(const BlockArgs& args, Stream stream) {
  WithElement(args.attend.cache.arena.type, [&](auto element) { LaunchOf<decltype(element)>(args, stream); });
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
