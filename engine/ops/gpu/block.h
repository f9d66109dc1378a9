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

// One (session, KV head) of a launch; arrays begin at what is its own.
struct BlockLane {
  const AttendArgs* a = nullptr;
  const SessionView* session = nullptr;
  int32_t head = 0;  // of KV
  int32_t units = 0;
  int32_t rows = 0;                   // m
  int32_t words = 0;                  // of a strip's K, and as many of its V
  const int32_t* position = nullptr;  // [LaidStrips * kStripSlots]
  const int32_t* earliest = nullptr;  // [LaidStrips]
  const int32_t* latest = nullptr;    // [LaidStrips]
  const uint32_t* kv = nullptr;
  const uint32_t* q = nullptr;
  int32_t tile_words = 0;  // of q
};
// Where the tiles of q begin that are a session's, the launch's `session`th, and a KV head's.
EBB_DEVICE uint32_t* LaidQueries(const BlockArgs& args, int32_t session, int32_t head, int32_t tile_words) {
  const AttendArgs& a = args.attend;
  const int64_t tiles = int64_t{a.cache.rows} * a.group / kLaidRows + a.cache.session_count;  // LaidTiles
  const int64_t before = a.cache.sessions[a.first_session + session].first_row - a.first_row;
  return args.q + (head * tiles + before * a.group / kLaidRows + session) * tile_words;
}

// Where the strips begin that are a session's and a KV head's.
EBB_DEVICE int64_t FirstStrip(const AttendArgs& a, const SessionView& session, int32_t head) {
  return int64_t{session.first_strip} * a.cache.kv_heads + int64_t{head} * LaidStrips(session.slots);
}

template <int32_t kTerms>
EBB_DEVICE BlockLane LaneOf(const BlockArgs& args, int32_t session, int32_t head) {
  const AttendArgs& a = args.attend;
  BlockLane l = {.a = &a, .session = a.cache.sessions + a.first_session + session, .head = head};
  const int64_t strip = FirstStrip(a, *l.session, head);
  l.units = a.cache.arena.head_dim / kUnit;
  l.rows = l.session->tokens * a.group;
  l.words = kTerms * l.units * kTeam * 4;
  l.position = args.position + strip * kStripSlots;
  l.earliest = args.earliest + strip;
  l.latest = args.latest + strip;
  l.kv = args.kv + strip * 2 * l.words;
  l.tile_words = l.words + 2 * kLaidRows;
  l.q = LaidQueries(args, session, head, l.tile_words);
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
  const uint32_t* const tile = l.q + int64_t{m / kLaidRows} * l.tile_words;
  return static_cast<int32_t>(tile[l.words + kLaidRows + m % kLaidRows]);
}

// How many units there are, known to the compiler where a shape is whole: then nothing is asked between products.
template <int32_t kUnits, bool kWhole>
EBB_DEVICE int32_t UnitsOf(const BlockLane& l) {
  return kWhole ? kUnits : l.units;
}

// What lies as K does, 16 rows of it, as the left side of a product.
EBB_DEVICE void TakeLeft(const Vector16& laid, uint32_t (&left)[4]) {
  left[0] = laid.word[0];
  left[1] = laid.word[2];
  left[2] = laid.word[1];
  left[3] = laid.word[3];
}

// What a thread holds of rows first .. first + 15 as the left sides of products, zeros past the last row. `first` is a
// multiple of 16.
template <bool kWhole, int32_t kTerms, int32_t kUnits>
EBB_DEVICE void ReadQueries(const BlockLane& l, int32_t first, uint32_t (&q)[kTerms][kUnits][4]) {
  if (first >= l.rows) return;
  const int32_t units = UnitsOf<kUnits, kWhole>(l);
  const uint32_t* const words = l.q + int64_t{first / kLaidRows} * l.tile_words;
  const Vector16* const tile = reinterpret_cast<const Vector16*>(words) + ThreadIndex() % kTeam;
  EBB_UNROLL
  for (int32_t term = 0; term < kTerms; ++term) {
    EBB_UNROLL
    for (int32_t u = 0; u < kUnits; ++u) {
      if (u < units) TakeLeft(tile[(term * units + u) * kTeam], q[term][u]);
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

// The slope of row m's query head.
EBB_DEVICE float SlopeOf(const BlockLane& l, int32_t m) { return l.a->slopes[l.head * l.a->group + m % l.a->group]; }

// Whether a slot at position `at` lies before the window of a query at `query`. kPlain: nothing does.
template <bool kPlain>
EBB_DEVICE bool IsBehind(const BlockLane& l, int32_t at, int32_t query) {
  return !kPlain && at <= query - l.a->window;
}

// What a layer makes of q . k: nothing; or some slots lie before a window, or a cap bends what comes out; or slopes
// lower it besides. What most models do without would take registers of them all.
enum class Scores { kPlain, kBent, kLowered };

// launch(Shape<terms, units, whether heads have just so many units, scores>), which is what a kernel makes of a cache's
// type and head, and of a layer.
template <template <int32_t, int32_t, bool, Scores> typename Shape, Scores kScores, typename F>
void WithShapeOf(const Arena& arena, const F& launch) {
  const int32_t d = arena.head_dim;
  if (LaidTerms(arena.type) == 1) {
    if constexpr (kScores != Scores::kLowered) {  // few models are that
      if (d == 64) return launch(Shape<1, 4, true, kScores>());
      if (d == 128) return launch(Shape<1, 8, true, kScores>());
      if (d == 256) return launch(Shape<1, 16, true, kScores>());
    }
    if (d <= 64) return launch(Shape<1, 4, false, kScores>());
    if (d <= 128) return launch(Shape<1, 8, false, kScores>());
    return launch(Shape<1, 16, false, kScores>());
  }
  if (d <= 64) return launch(Shape<kBf16Terms, 4, false, kScores>());
  if (d <= 128) return launch(Shape<kBf16Terms, 8, false, kScores>());
  launch(Shape<kBf16Terms, 16, false, kScores>());
}
template <template <int32_t, int32_t, bool, Scores> typename Shape, typename F>
void WithShape(const AttendArgs& a, const F& launch) {
  if (a.slopes != nullptr) return WithShapeOf<Shape, Scores::kLowered>(a.cache.arena, launch);
  if (a.window == INT32_MAX && !(a.cap > 0)) return WithShapeOf<Shape, Scores::kPlain>(a.cache.arena, launch);
  WithShapeOf<Shape, Scores::kBent>(a.cache.arena, launch);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_BLOCK_H_
