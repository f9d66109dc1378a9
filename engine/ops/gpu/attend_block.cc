// Attention of the rows of a prompt's block, on tensor cores: a block of threads takes 128 rows (block.h) through a
// split of their lane, a stage of slots at a time, and K and V are read once for all of them. Block (x, h, i): tile and
// split of KV head h of session i; the tiles that see most begin first.
//
//   team w   rows 32 w .. 32 w + 31: queries, sums [32][d] and the softmax so far, all in registers; of heads past 128
//            and of three terms 16 rows
//   stage    kStrips strips of K and V (kernels.h, BlockArgs) and their positions. Shared memory holds kStages: one is
//            multiplied while the next are copied; of three terms they are read where they lie
//
//   logits = q K^T, capped, lowered by slopes, -inf where a row may not see the slot
//   peak'  = max(peak, logits);  p = e^(logits - peak')
//   weight = weight e^(peak - peak') + p;  sums = sums e^(peak - peak') + p V      p in BF16, by terms as V is
//
// A product's result lies with the threads as its next left side wants it, so p never leaves registers. What was read
// of K or V meets two tiles of 16 rows, since shared memory gives half of what tensor cores take. Most slots are seen
// by all rows of a team or by none, which one comparison a column finds out. Stages that no row of the tile can see are
// left out. A row meets the stages of its split in order and nothing of other rows, so its bits are its own where every
// K and V that the tile meets is finite: a slot that it may not see counts 0 times V.

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
constexpr int32_t kTeams = kThreads / kTeam;
constexpr float kLog2E = 1.44269504F;

// kWhole: kUnits is how many there are, not just a limit. kPlain: no row has a window, and no logit a cap or a slope.
template <int32_t kTermsOf, int32_t kUnitsOf, bool kIsWhole, Scores kScores>
struct Shape {
  static constexpr int32_t kTerms = kTermsOf;
  static constexpr int32_t kUnits = kUnitsOf;
  static constexpr bool kWhole = kIsWhole;
  static constexpr bool kPlain = kScores == Scores::kPlain;
  static constexpr bool kLowered = kScores == Scores::kLowered;
  static constexpr bool kStaged = kTerms == 1;
  static constexpr int32_t kTiles = kStaged && kUnits <= 8 ? 2 : 1;  // of kLaidRows, of a team: as registers allow
  static constexpr int32_t kTeamRows = kTiles * kLaidRows;
  static constexpr int32_t kRows = kTeams * kTeamRows;
  static constexpr int32_t kStrips = kStaged ? 16 / kUnits : 1;  // of a stage: 16 KB
  static constexpr int32_t kSlots = kStrips * kStripSlots;
  static constexpr int32_t kVectors = kStrips * 2 * kTerms * kUnits * kTeam;
  static constexpr int32_t kStages = 3;
  static_assert(kStageSlots % kSlots == 0);
};

// What a block has in shared memory. A stage is K and V of strip after strip.
template <typename S>
struct Shared {
  Vector16 kv[S::kStaged ? S::kStages : 1][S::kStaged ? S::kVectors : 1];
  alignas(16) int32_t position[S::kStaged ? S::kStages : 1][S::kSlots];
  int32_t query[S::kRows];  // positions of the rows; past the last one its own
};

// The rows of a team. Of tile i thread 4 g + t has rows 16 i + g and 16 i + g + 8: its columns of logits and components
// of sums.
template <typename S>
struct RowsSoFar {
  uint32_t q[S::kTiles][S::kTerms][S::kUnits][4] = {};
  int32_t oldest = 0, newest = 0;  // positions of the first row and the last
  float sums[S::kTiles][2 * S::kUnits][4] = {};
  float peak[S::kTiles][2];
  float weight[S::kTiles][2] = {};  // this thread's columns
  float slope[S::kTiles][2] = {};   // where logits are lowered
};

// What logits begin as: -inf in a column that no row of the team may see. Whether rows differ in what they may see of
// this thread's columns.
template <typename S>
EBB_DEVICE bool MaskColumns(const BlockLane& l, const RowsSoFar<S>& r, const int32_t* position,
                            float (&p)[S::kTiles][2 * S::kStrips][4]) {
  bool differ = false;
  EBB_UNROLL
  for (int32_t n = 0; n < 2 * S::kStrips; ++n) {
    EBB_UNROLL
    for (int32_t j = 0; j < 2; ++j) {
      const int32_t at = position[8 * n + 2 * (ThreadIndex() % 4) + j];
      const bool is_seen = at <= r.newest && !IsBehind<S::kPlain>(l, at, r.oldest);
      const float mask = is_seen ? 0.0F : MinusInfinity();
      differ |= is_seen && (at > r.oldest || IsBehind<S::kPlain>(l, at, r.newest));
      EBB_UNROLL
      for (int32_t tile = 0; tile < S::kTiles; ++tile) p[tile][n][j] = p[tile][n][2 + j] = mask;
    }
  }
  return differ;
}

// Calls use(tile, half, position of the row, position of the column, logit). `query`: of the team's rows.
template <typename S, typename Use>
EBB_DEVICE void ForLogits(const int32_t* position, const int32_t* query, float (&p)[S::kTiles][2 * S::kStrips][4],
                          const Use& use) {
  EBB_UNROLL
  for (int32_t tile = 0; tile < S::kTiles; ++tile) {
    EBB_UNROLL
    for (int32_t half = 0; half < 2; ++half) {
      const int32_t row = query[kLaidRows * tile + 8 * half + ThreadIndex() % kTeam / 4];
      EBB_UNROLL
      for (int32_t n = 0; n < 2 * S::kStrips; ++n) {
        EBB_UNROLL
        for (int32_t j = 0; j < 2; ++j) {
          use(tile, half, row, position[8 * n + 2 * (ThreadIndex() % 4) + j], p[tile][n][2 * half + j]);
        }
      }
    }
  }
}

// What MaskColumns leaves to each row.
template <typename S>
EBB_DEVICE void MaskRows(const BlockLane& l, const int32_t* position, const int32_t* query,
                         float (&p)[S::kTiles][2 * S::kStrips][4]) {
  ForLogits<S>(position, query, p, [&](int32_t, int32_t, int32_t row, int32_t at, float& logit) {
    if (at > row || IsBehind<S::kPlain>(l, at, row)) logit = MinusInfinity();
  });
}

template <typename S>
EBB_DEVICE void CapLogits(float cap, float (&p)[S::kTiles][2 * S::kStrips][4]) {
  EBB_UNROLL
  for (int32_t i = 0; i < S::kTiles * 2 * S::kStrips * 4; ++i) {
    float& logit = p[i / (8 * S::kStrips)][i / 4 % (2 * S::kStrips)][i % 4];
    if (logit != MinusInfinity()) logit = Capped(logit, cap);  // else nobody sees the column
  }
}

// What MaskColumns or MaskRows hides stays hidden.
template <typename S>
EBB_DEVICE void LowerLogits(const RowsSoFar<S>& r, const int32_t* position, const int32_t* query,
                            float (&p)[S::kTiles][2 * S::kStrips][4]) {
  ForLogits<S>(position, query, p, [&](int32_t tile, int32_t half, int32_t row, int32_t at, float& logit) {
    logit = Lowered(logit, r.slope[tile][half], row - at);
  });
}

// Moves the peaks and turns logits into p.
template <typename S>
EBB_DEVICE void Soften(RowsSoFar<S>& r, float (&p)[S::kTiles][2 * S::kStrips][4]) {
  float factor[S::kTiles][2];
  bool moved = false;
  EBB_UNROLL
  for (int32_t tile = 0; tile < S::kTiles; ++tile) {
    EBB_UNROLL
    for (int32_t half = 0; half < 2; ++half) {
      float peak = r.peak[tile][half];
      EBB_UNROLL
      for (int32_t n = 0; n < 2 * S::kStrips; ++n) {
        peak = LargerNumber(LargerNumber(p[tile][n][2 * half], p[tile][n][2 * half + 1]), peak);
      }
      for (int32_t mask = 2; mask > 0; mask /= 2) peak = LargerNumber(peak, ShuffleXor(peak, mask));
      const float base = peak == MinusInfinity() ? 0.0F : peak * kLog2E;
      factor[tile][half] = Exp2Normal(r.peak[tile][half] * kLog2E - base);  // exactly 1 where the peak stays
      moved |= factor[tile][half] != 1;
      r.peak[tile][half] = peak;
      float weight = r.weight[tile][half] * factor[tile][half];
      EBB_UNROLL
      for (int32_t n = 0; n < 2 * S::kStrips; ++n) {
        EBB_UNROLL
        for (int32_t j = 0; j < 2; ++j) {
          float& x = p[tile][n][2 * half + j];
          x = Exp2Normal(MultiplyAdd(x, kLog2E, -base));
          weight += x;
        }
      }
      r.weight[tile][half] = weight;
    }
  }
  if (!moved) return;  // peaks soon stay
  EBB_UNROLL
  for (int32_t tile = 0; tile < S::kTiles; ++tile) {
    EBB_UNROLL
    for (int32_t n = 0; n < 2 * S::kUnits; ++n) {
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) r.sums[tile][n][i] *= factor[tile][i / 2];
    }
  }
}

// One stage. `query`: of the team's rows.
template <typename S>
EBB_DEVICE void AttendStage(const BlockLane& l, RowsSoFar<S>& r, const Vector16* kv, const int32_t* position,
                            const int32_t* query) {
  const int32_t units = UnitsOf<S::kUnits, S::kWhole>(l);
  float p[S::kTiles][2 * S::kStrips][4];
  const bool differ = MaskColumns<S>(l, r, position, p);
  SyncTeam();
  MultiplyKeys<S::kWhole>(l, r.q, kv, p);
  if (!S::kPlain && l.a->cap > 0) CapLogits<S>(l.a->cap, p);
  if constexpr (S::kLowered) LowerLogits<S>(r, position, query, p);
  if (differ) MaskRows<S>(l, position, query, p);
  SyncTeam();
  Soften<S>(r, p);
  SyncTeam();
  EBB_UNROLL
  for (int32_t s = 0; s < S::kStrips; ++s) {
    uint32_t left[S::kTiles][S::kTerms][4];
    EBB_UNROLL
    for (int32_t tile = 0; tile < S::kTiles; ++tile) {
      EBB_UNROLL
      for (int32_t term = 0; term < S::kTerms; ++term) {
        EBB_UNROLL
        for (int32_t i = 0; i < 4; ++i) {
          float* const pair = p[tile][2 * s + i / 2] + 2 * (i % 2);
          left[tile][term][i] = TakeTerm<S::kTerms>(pair[0], pair[1]);
        }
      }
    }
    const Vector16* const v = kv + (2 * s + 1) * S::kTerms * units * kTeam;
    EBB_UNROLL
    for (int32_t u = 0; u < S::kUnits; ++u) {
      if (u >= units) continue;
      EBB_UNROLL
      for (int32_t of_v = 0; of_v < S::kTerms; ++of_v) {
        const Vector16 two = v[(of_v * units + u) * kTeam + ThreadIndex() % kTeam];
        EBB_UNROLL
        for (int32_t of_p = 0; of_p < S::kTerms - of_v; ++of_p) {
          EBB_UNROLL
          for (int32_t tile = 0; tile < S::kTiles; ++tile) {
            MultiplyTwo(left[tile][of_p], two, r.sums[tile][2 * u], r.sums[tile][2 * u + 1]);
          }
        }
      }
    }
  }
}

struct alignas(8) TwoFloats {
  float first, second;
};

// `first`: row of the team.
template <typename S>
EBB_DEVICE void WritePartials(const BlockLane& l, const RowsSoFar<S>& r, int32_t first, int32_t split) {
  const AttendArgs& a = *l.a;
  const int32_t units = UnitsOf<S::kUnits, S::kWhole>(l);
  const int32_t t = ThreadIndex() % 4;
  EBB_UNROLL
  for (int32_t tile = 0; tile < S::kTiles; ++tile) {
    EBB_UNROLL
    for (int32_t half = 0; half < 2; ++half) {
      const float weight = ReduceTeam(r.weight[tile][half], Plus(), 4);
      const int32_t m = first + kLaidRows * tile + 8 * half + ThreadIndex() % kTeam / 4;
      if (m < l.rows) {
        const int64_t at = StepRow(l, m) * a.splits + split;
        if (t == 0) {
          a.partial_stats[2 * at] = r.peak[tile][half];
          a.partial_stats[2 * at + 1] = weight;
        }
        TwoFloats* const sums = reinterpret_cast<TwoFloats*>(a.partial_sums + at * kUnit * units) + t;
        EBB_UNROLL
        for (int32_t n = 0; n < 2 * S::kUnits; ++n) {
          if (n >= 2 * units) continue;
          sums[4 * n] = {r.sums[tile][n][2 * half], r.sums[tile][n][2 * half + 1]};
        }
      }
      SyncTeam();
    }
  }
}

// The first stage from `strip` on in which something may be seen by who is at positions first .. last; else `end`.
template <typename S>
EBB_DEVICE int32_t NextStage(const BlockLane& l, int32_t strip, int32_t end, int32_t first, int32_t last) {
  for (; strip < end; strip += S::kStrips) {
    for (int32_t s = 0; s < S::kStrips; ++s) {
      if (l.earliest[strip + s] <= last && !IsBehind<S::kPlain>(l, l.latest[strip + s], first)) return strip;
    }
  }
  return end;
}

// Asks for a stage, whose copies are then a group.
template <typename S>
EBB_DEVICE void CopyStage(const BlockLane& l, int32_t strip, Vector16* kv, int32_t* position) {
  const int32_t vectors = 2 * UnitsOf<S::kUnits, S::kWhole>(l) * kTeam;  // of a strip
  const Vector16* const from = reinterpret_cast<const Vector16*>(l.kv) + strip * vectors;
  if constexpr (S::kWhole) {
    EBB_UNROLL
    for (int32_t i = 0; i < S::kVectors; i += kThreads) CopyAhead(kv + i + ThreadIndex(), from + i + ThreadIndex());
  } else {
    for (int32_t i = ThreadIndex(); i < S::kStrips * vectors; i += kThreads) CopyAhead(kv + i, from + i);
  }
  const int32_t* const laid = l.position + strip * kStripSlots;
  if (ThreadIndex() < S::kSlots / 4) CopyAhead(position + 4 * ThreadIndex(), laid + 4 * ThreadIndex());
}

template <typename S>
EBB_KERNEL(kThreads)
AttendTile(BlockArgs args) {
  Shared<S>& shared = *LaunchShared<Shared<S>>();
  const BlockLane l = LaneOf<S::kTerms>(args, BlockZ(), BlockY());
  const int32_t tiles = (args.tokens_max * args.attend.group + S::kRows - 1) / S::kRows;
  const int32_t first = (tiles - 1 - BlockX() % tiles) * S::kRows;
  const int32_t split = BlockX() / tiles;
  const int32_t slots = SlotsOfSplit(l.session->slots, kBlockSplitSlots, split);
  if (first >= l.rows || slots == 0) return;

  const int32_t rows = l.rows - first < S::kRows ? l.rows - first : S::kRows;
  for (int32_t i = ThreadIndex(); i < S::kRows; i += kThreads) {
    shared.query[i] = PositionOf(l, first + (i < rows ? i : rows - 1));
  }
  Barrier();
  const int32_t oldest = shared.query[0];
  const int32_t newest = shared.query[S::kRows - 1];
  const int32_t begin = split * kBlockSplitSlots;
  const int32_t end = begin / kStripSlots + LaidStrips(slots);
  int32_t next = NextStage<S>(l, begin / kStripSlots, end, oldest, newest);  // that nobody asked for yet
  int32_t asked = 0;
  const auto ask = [&] {
    if (next < end) {
      CopyStage<S>(l, next, shared.kv[asked % S::kStages], shared.position[asked % S::kStages]);
      next = NextStage<S>(l, next + S::kStrips, end, oldest, newest);
      ++asked;
    }
    CloseCopies();
  };
  if constexpr (S::kStaged) {
    for (int32_t i = 0; i + 1 < S::kStages; ++i) ask();
  }

  const int32_t team = ThreadIndex() / kTeam;
  // Pairs of teams have rows or not: all threads of a warp meet in each product.
  const bool has_rows = team / 2 * 2 * S::kTeamRows < rows;
  const int32_t* const query = shared.query + team * S::kTeamRows;
  RowsSoFar<S> r;
  r.oldest = query[0];
  r.newest = query[S::kTeamRows - 1];
  EBB_UNROLL
  for (int32_t tile = 0; tile < S::kTiles; ++tile) {
    r.peak[tile][0] = r.peak[tile][1] = MinusInfinity();
    const int32_t first_row = first + team * S::kTeamRows + tile * kLaidRows;
    if (has_rows) ReadQueries<S::kWhole>(l, first_row, r.q[tile]);
    if constexpr (S::kLowered) {
      EBB_UNROLL
      for (int32_t half = 0; half < 2; ++half) {
        r.slope[tile][half] = SlopeOf(l, first_row + 8 * half + ThreadIndex() % kTeam / 4);
      }
    }
  }

  if constexpr (S::kStaged) {
    for (int32_t done = 0; done < asked; ++done) {
      CopiesArrived<S::kStages - 2>();
      Barrier();  // a stage is whole, and the one before it is free
      ask();
      const int32_t stage = done % S::kStages;
      if (has_rows) AttendStage<S>(l, r, shared.kv[stage], shared.position[stage], query);
    }
  } else if (has_rows) {
    const Vector16* const kv = reinterpret_cast<const Vector16*>(l.kv);
    for (; next < end; next = NextStage<S>(l, next + S::kStrips, end, oldest, newest)) {
      AttendStage<S>(l, r, kv + next * 2 * (l.words / 4), l.position + next * kStripSlots, query);
    }
  }
  if (has_rows) WritePartials<S>(l, r, first + team * S::kTeamRows, split);
}

template <typename S>
void LaunchOf(const BlockArgs& args, Stream stream) {
  static_assert(sizeof(Shared<S>) <= kSharedMax);
  const AttendArgs& a = args.attend;
  const int32_t tiles = (args.tokens_max * a.group + S::kRows - 1) / S::kRows;
  const Grid grid = {int64_t{tiles} * a.splits, a.cache.kv_heads, a.cache.session_count};
  Launch(AttendTile<S>, grid, kThreads, args, stream, static_cast<int32_t>(sizeof(Shared<S>)));
}

}  // namespace

void LaunchAttendBlock(const BlockArgs& args, Stream stream) {
  WithShape<Shape>(args.attend, [&](auto shape) { LaunchOf<decltype(shape)>(args, stream); });
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
