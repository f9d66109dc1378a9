// Attention of the rows of a prompt's block, on tensor cores: a block of threads takes 64 rows (block.h) through a
// split of their lane, a stage of slots at a time, and K and V are read once for all of them. Block (x, h, i): tile and
// split of KV head h of session i; the tiles that see most begin first.
//
//   team w   rows 16 w .. 16 w + 15: queries, sums [16][d] and the softmax so far, all in registers
//   stage    kStrips strips of K and V (kernels.h, BlockArgs), copied to shared memory while the one before is
//            multiplied; of three terms they are read where they lie
//
//   logits = q K^T, -inf where a row may not see the slot
//   peak'  = max(peak, logits);  p = e^(logits - peak')
//   weight = weight e^(peak - peak') + p;  sums = sums e^(peak - peak') + p V      p in BF16, by terms as V is
//
// A product's result lies with the threads as its next left side wants it, so p never leaves registers. Stages that no
// row of the tile can see are left out. A row meets the stages of its split in order and nothing of other rows, so its
// bits are its own where every K and V that the tile meets is finite: a slot that it may not see counts 0 times V.

#include <cstdint>

#include "engine/ops/gpu/block.h"
#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"
#include "engine/ops/gpu/reduce.h"
#include "engine/ops/gpu/tensor.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 128;
constexpr int32_t kRows = kThreads / kTeam * kTileRows;
constexpr float kLog2E = 1.44269504F;

// Rows first + g and first + g + 8 of a team, as thread 4 g + t has them: its columns of logits and components of sums.
template <int32_t kTerms, int32_t kUnits>
struct RowsSoFar {
  uint32_t q[kTerms][kUnits][4] = {};
  int32_t query[2] = {-1, -1};  // positions; -1 sees nothing
  float sums[2 * kUnits][4] = {};
  float peak[2] = {};    // begins as -inf
  float weight[2] = {};  // this thread's columns
};

// Masks logits, moves the peak and turns logits into p.
template <int32_t kTerms, int32_t kUnits, int32_t kTiles>
EBB_DEVICE void Soften(RowsSoFar<kTerms, kUnits>& r, const int32_t* position, float (&p)[kTiles][4]) {
  float peak[2] = {r.peak[0], r.peak[1]};
  EBB_UNROLL
  for (int32_t n = 0; n < kTiles; ++n) {
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t at = position[8 * n + 2 * (ThreadIndex() % 4) + i % 2];
      if (at < 0 || at > r.query[i / 2]) p[n][i] = MinusInfinity();
      peak[i / 2] = Larger(p[n][i], peak[i / 2]);
    }
  }
  float base[2], factor[2];
  EBB_UNROLL
  for (int32_t half = 0; half < 2; ++half) {
    peak[half] = ReduceTeam(peak[half], Largest(), 4);
    base[half] = peak[half] == MinusInfinity() ? 0 : peak[half] * kLog2E;
    factor[half] = Exp2(r.peak[half] * kLog2E - base[half]);  // exactly 1 where the peak stays
    r.peak[half] = peak[half];
    r.weight[half] *= factor[half];
  }
  EBB_UNROLL
  for (int32_t n = 0; n < kTiles; ++n) {
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      p[n][i] = Exp2(MultiplyAdd(p[n][i], kLog2E, -base[i / 2]));
      r.weight[i / 2] += p[n][i];
    }
  }
  if (factor[0] == 1 && factor[1] == 1) return;  // peaks soon stay
  EBB_UNROLL
  for (int32_t n = 0; n < 2 * kUnits; ++n) {
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) r.sums[n][i] *= factor[i / 2];
  }
}

// One stage, whose K and V of strip after strip are `kv`.
template <int32_t kTerms, int32_t kUnits, int32_t kStrips>
EBB_DEVICE void AttendStage(const BlockLane& l, RowsSoFar<kTerms, kUnits>& r, const Vector16* kv,
                            const int32_t* position) {
  const int32_t vectors = l.words / 4;
  SyncTeam();
  float p[2 * kStrips][4] = {};
  EBB_UNROLL
  for (int32_t s = 0; s < kStrips; ++s) MultiplyKeys(l, r.q, kv + 2 * s * vectors, p[2 * s], p[2 * s + 1]);
  Soften(r, position, p);
  SyncTeam();
  EBB_UNROLL
  for (int32_t s = 0; s < kStrips; ++s) {
    uint32_t left[kTerms][4];
    EBB_UNROLL
    for (int32_t term = 0; term < kTerms; ++term) {
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        float* const pair = p[2 * s + i / 2] + 2 * (i % 2);
        left[term][i] = TakeTerm<kTerms>(pair[0], pair[1]);
      }
    }
    const Vector16* const v = kv + (2 * s + 1) * vectors;
    EBB_UNROLL
    for (int32_t u = 0; u < kUnits; ++u) {
      if (u >= l.units) continue;
      EBB_UNROLL
      for (int32_t of_v = 0; of_v < kTerms; ++of_v) {
        const Vector16 tiles = v[(of_v * l.units + u) * kTeam + ThreadIndex() % kTeam];
        EBB_UNROLL
        for (int32_t of_p = 0; of_p < kTerms - of_v; ++of_p) {
          MultiplyTwo(left[of_p], tiles, r.sums[2 * u], r.sums[2 * u + 1]);
        }
      }
    }
  }
}

template <int32_t kTerms, int32_t kUnits>
EBB_DEVICE void WritePartials(const BlockLane& l, RowsSoFar<kTerms, kUnits>& r, int32_t first, int32_t split) {
  const AttendArgs& a = *l.a;
  const int32_t t = ThreadIndex() % 4;
  EBB_UNROLL
  for (int32_t half = 0; half < 2; ++half) {
    const float weight = ReduceTeam(r.weight[half], Plus(), 4);
    const int32_t m = first + ThreadIndex() % kTeam / 4 + 8 * half;
    if (m >= l.rows) continue;
    const int64_t at = StepRow(l, m) * a.splits + split;
    if (t == 0) {
      a.partial_stats[2 * at] = r.peak[half];
      a.partial_stats[2 * at + 1] = weight;
    }
    float* const sums = a.partial_sums + at * kUnit * l.units + 2 * t;
    EBB_UNROLL
    for (int32_t n = 0; n < 2 * kUnits; ++n) {
      if (n >= 2 * l.units) continue;
      sums[8 * n] = r.sums[n][2 * half];
      sums[8 * n + 1] = r.sums[n][2 * half + 1];
    }
  }
}

// The first stage from `strip` on in which something is not past `last`, the newest position of the tile; else `end`.
template <int32_t kStrips>
EBB_DEVICE int32_t NextStage(const BlockLane& l, int32_t strip, int32_t end, int32_t last) {
  for (; strip < end; strip += kStrips) {
    for (int32_t s = 0; s < kStrips; ++s) {
      if (l.earliest[strip + s] <= last) return strip;
    }
  }
  return end;
}

template <int32_t kTerms, int32_t kUnits>
EBB_KERNEL(kThreads)
AttendTile(BlockArgs args) {
  constexpr bool kStaged = kTerms == 1;
  constexpr int32_t kStrips = kStaged ? 16 / kUnits : 1;  // two buffers of 16 KB
  static_assert(kStageSlots % (kStrips * kStripSlots) == 0);
  EBB_SHARED Vector16 staged[2][kStaged ? kStrips * 2 * kUnits * kTeam : 1];
  const BlockLane l = LaneOf<kTerms>(args, BlockZ(), BlockY());
  const int32_t tiles = (args.tokens_max * args.attend.group + kRows - 1) / kRows;
  const int32_t tile = tiles - 1 - BlockX() % tiles;
  const int32_t split = BlockX() / tiles;
  const int32_t slots = (l.session->slots + kStageSlots - 1) / kStageSlots * kStageSlots;
  if (tile * kRows >= l.rows || split * kBlockSplitSlots >= slots) return;

  const int32_t team = ThreadIndex() / kTeam;
  const int32_t first = tile * kRows + team * kTileRows;
  // Pairs of teams have rows or not: all threads of a warp meet in each product.
  const bool has_rows = tile * kRows + team / 2 * 2 * kTileRows < l.rows;
  RowsSoFar<kTerms, kUnits> r;
  r.peak[0] = r.peak[1] = MinusInfinity();
  if (has_rows) {
    ReadQueries(l, first, r.q);
    EBB_UNROLL
    for (int32_t half = 0; half < 2; ++half) {
      const int32_t m = first + ThreadIndex() % kTeam / 4 + 8 * half;
      if (m < l.rows) r.query[half] = PositionOf(l, m);
    }
  }
  const int32_t last = PositionOf(l, (tile + 1) * kRows < l.rows ? (tile + 1) * kRows - 1 : l.rows - 1);
  const int32_t begin = split * kBlockSplitSlots;
  const int32_t end = (begin + kBlockSplitSlots < slots ? begin + kBlockSplitSlots : slots) / kStripSlots;
  const int32_t vectors = 2 * (l.words / 4);  // of a strip
  const Vector16* const kv = reinterpret_cast<const Vector16*>(l.kv);
  const auto copy = [&](int32_t strip, Vector16* to) {
    for (int32_t i = ThreadIndex(); i < kStrips * vectors; i += kThreads) CopyAhead(to + i, kv + strip * vectors + i);
  };

  int32_t strip = NextStage<kStrips>(l, begin / kStripSlots, end, last);
  if (kStaged && strip < end) copy(strip, staged[0]);
  for (int32_t buffer = 0; strip < end; buffer ^= 1) {
    const int32_t next = NextStage<kStrips>(l, strip + kStrips, end, last);
    if (kStaged) {
      CopiesArrived();
      Barrier();  // this buffer is whole, and the other one free
      if (next < end) copy(next, staged[buffer ^ 1]);
    }
    if (has_rows) {
      AttendStage<kTerms, kUnits, kStrips>(l, r, kStaged ? staged[buffer] : kv + strip * vectors,
                                           l.position + strip * kStripSlots);
    }
    strip = next;
  }
  if (has_rows) WritePartials(l, r, first, split);
}

template <int32_t kTerms>
void LaunchOf(const BlockArgs& args, Stream stream) {
  const AttendArgs& a = args.attend;
  const int32_t tiles = (args.tokens_max * a.group + kRows - 1) / kRows;
  const Grid grid = {int64_t{tiles} * a.splits, a.cache.kv_heads, a.cache.session_count};
  const int32_t d = a.cache.arena.head_dim;
  if (d <= 64) return Launch(AttendTile<kTerms, 4>, grid, kThreads, args, stream);
  if (d <= 128) return Launch(AttendTile<kTerms, 8>, grid, kThreads, args, stream);
  Launch(AttendTile<kTerms, 16>, grid, kThreads, args, stream);
}

}  // namespace

void LaunchAttendBlock(const BlockArgs& args, Stream stream) {
  if (LaidTerms(args.attend.cache.arena.type) == 1) return LaunchOf<1>(args, stream);
  LaunchOf<kBf16Terms>(args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
