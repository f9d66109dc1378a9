// Rows of a prompt's block as the rows of products (kernels.h, BlockArgs): row m of a session and KV head is query head
// m % G of its token m / G, so that all heads that share K and V stand in one tile, and no tile has gaps.

#ifndef EBB_ENGINE_OPS_GPU_BLOCK_H_
#define EBB_ENGINE_OPS_GPU_BLOCK_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"
#include "engine/ops/gpu/rope.h"
#include "engine/ops/gpu/tensor.h"

namespace ebb::gpu::EBB_GPU_TARGET {

inline constexpr int32_t kTileRows = 16;  // of a team

// One (session, KV head) of a launch; arrays begin at what is its own.
struct BlockLane {
  const AttendArgs* a = nullptr;
  const SessionView* session = nullptr;
  int32_t head = 0;  // of KV
  int32_t units = 0;
  int32_t rows = 0;                   // m
  int32_t words = 0;                  // of a strip's K, and as many of its V
  const int32_t* position = nullptr;  // [strips * kStripSlots]
  const int32_t* earliest = nullptr;  // [strips]
  const uint32_t* kv = nullptr;
  const uint32_t* q = nullptr;  // of the whole launch
};
template <int32_t kTerms>
EBB_DEVICE BlockLane LaneOf(const BlockArgs& args, int32_t session, int32_t head) {
  const AttendArgs& a = args.attend;
  BlockLane l = {.a = &a, .session = a.cache.sessions + a.first_session + session, .head = head};
  const int64_t strip = (int64_t{session} * a.cache.kv_heads + head) * args.strips;
  l.units = a.cache.arena.head_dim / kUnit;
  l.rows = l.session->tokens * a.group;
  l.words = kTerms * l.units * kTeam * 4;
  l.position = args.position + strip * kStripSlots;
  l.earliest = args.earliest + strip;
  l.kv = args.kv + strip * 2 * l.words;
  l.q = args.q;
  return l;
}

// The row of the step's arrays [T][H * G][...] that is row m.
EBB_DEVICE int64_t StepRow(const BlockLane& l, int32_t m) {
  const int32_t group = l.a->group;
  const int64_t token = l.session->first_row + m / group;
  return (token * l.a->cache.kv_heads + l.head) * group + m % group;
}

// The position of row m's token.
EBB_DEVICE int32_t PositionOf(const BlockLane& l, int32_t m) {
  const SessionView& s = *l.session;
  const int64_t lane = l.a->layer * l.a->cache.kv_heads + l.head;
  return s.position[lane * s.capacity + s.placed[lane * s.block_max + m / l.a->group]];
}

// How many units there are, known to the compiler where a shape is whole: then nothing is asked between products.
template <int32_t kUnits, bool kWhole>
EBB_DEVICE int32_t UnitsOf(const BlockLane& l) {
  return kWhole ? kUnits : l.units;
}

// What a thread holds of rows first .. first + 15 as the 16 x 16 tiles of a product, zeros past the last row.
template <bool kWhole, int32_t kTerms, int32_t kUnits>
EBB_DEVICE void ReadQueries(const BlockLane& l, int32_t first, uint32_t (&q)[kTerms][kUnits][4]) {
  const int32_t lane = ThreadIndex() % kTeam;
  const int64_t heads = int64_t{l.a->cache.kv_heads} * l.a->group;
  const int64_t before = l.a->first_row * heads;  // rows of q begin with the launch's
  const int32_t units = UnitsOf<kUnits, kWhole>(l);
  EBB_UNROLL
  for (int32_t half = 0; half < 2; ++half) {
    const int32_t m = first + lane / 4 + 8 * half;
    const int64_t row = m < l.rows ? StepRow(l, m) - before : 0;
    EBB_UNROLL
    for (int32_t term = 0; term < kTerms; ++term) {
      const uint32_t* const words = l.q + (term * l.a->cache.rows * heads + row) * (kUnit / 2 * units) + lane % 4;
      EBB_UNROLL
      for (int32_t u = 0; u < kUnits; ++u) {
        if (u >= units) continue;
        q[term][u][half] = m < l.rows ? words[8 * u] : 0;
        q[term][u][2 + half] = m < l.rows ? words[8 * u + 4] : 0;
      }
    }
  }
}

// Products of 16 rows with the two tiles that lie in one vector a thread, added to both sums.
EBB_DEVICE void MultiplyTwo(const uint32_t (&a)[4], const Vector16& b, float (&first)[4], float (&second)[4]) {
  const uint32_t low[2] = {b.word[0], b.word[1]};
  const uint32_t high[2] = {b.word[2], b.word[3]};
  MultiplySmallTile(a, low, first);
  MultiplySmallTile(a, high, second);
}

// Logits of 16 rows and more, tile by tile, with slots 0 .. 7 and 8 .. 15 of each of the strips that lie from `kv` on,
// added to `logits`. A tile of K that was read meets all tiles of rows. Products of terms that are together smaller
// than the last are left out.
template <bool kWhole, int32_t kTiles, int32_t kTerms, int32_t kUnits, int32_t kColumns>
EBB_DEVICE void MultiplyKeys(const BlockLane& l, const uint32_t (&q)[kTiles][kTerms][kUnits][4], const Vector16* kv,
                             float (&logits)[kTiles][kColumns][4]) {
  const int32_t units = UnitsOf<kUnits, kWhole>(l);
  EBB_UNROLL
  for (int32_t u = 0; u < kUnits; ++u) {
    if (u >= units) continue;
    EBB_UNROLL
    for (int32_t s = 0; s < kColumns / 2; ++s) {
      const Vector16* const k = kv + 2 * s * kTerms * units * kTeam;
      EBB_UNROLL
      for (int32_t of_k = 0; of_k < kTerms; ++of_k) {
        const Vector16 two = k[(of_k * units + u) * kTeam + ThreadIndex() % kTeam];
        EBB_UNROLL
        for (int32_t of_q = 0; of_q < kTerms - of_k; ++of_q) {
          EBB_UNROLL
          for (int32_t tile = 0; tile < kTiles; ++tile) {
            MultiplyTwo(q[tile][of_q][u], two, logits[tile][2 * s], logits[tile][2 * s + 1]);
          }
        }
      }
    }
  }
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_BLOCK_H_
