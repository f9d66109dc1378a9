// What a lane's scores learn of a prompt's block: a second pass over queries and keys, since a row's weights are known
// only when all its slots were seen. A team keeps the K of 32 slots in registers and meets the rows in order, so that a
// slot's sum has one owner: no atomics, and no logits in memory. Block (x, h, i): slots 128 x .. of KV head h of
// session i. By the last query alone, that token's rows are all there is to meet.
//
//   team w   slots 32 w .. 32 w + 31: K as the left side of products, and sums; of heads past 128 and of three terms 16
//   stage    kTiles tiles of 16 rows of q with their bases and positions (kernels.h, BlockArgs), copied to shared
//            memory while those before are multiplied; all teams read them
//
//   base = log2(e) peak - log2(1 / weight)     of a row, by BaseRows, before
//   sum += 2^(log2(e) K q^T - base)            0 where the row may not see the slot
//
// Thread (g, t) = (i / 4, i % 4) of a team has slots g and g + 8 of each 16, and rows 2 t, 2 t + 1 of each 8: their
// sums stay apart, and where 8 is a multiple of the query heads of a KV head, so do those of heads with tracks of their
// own. Else rows are met once for each track. The t of a slot are added by exchange in the end.

#include <cstdint>

#include "engine/ops/gpu/block.h"
#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
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
  static constexpr int32_t kStrips = kTerms == 1 && kUnits <= 8 ? 2 : 1;  // of a team: as registers allow
  static constexpr int32_t kBlockStrips = kTeams * kStrips;
  static constexpr int32_t kSlots = 2 * kStrips;                                      // of a thread
  static constexpr int32_t kTiles = kTerms == 1 ? 32 / kUnits : kUnits == 4 ? 2 : 1;  // of a stage: up to 24 KB
  static constexpr int32_t kVectors = kTerms * kUnits * kTeam + 2 * kLaidRows / 4;    // of a tile
  static constexpr int32_t kStages = kTerms == 1 || kUnits <= 8 ? 3 : 2;
  static constexpr int32_t kBeside = kTerms == 1 || kUnits == 4 ? 4 : kUnits == 8 ? 3 : 2;  // blocks at once
};

template <typename S>
struct Shared {
  Vector16 q[S::kStages][S::kTiles * S::kVectors];
};

// The slots of a thread, and what they received of its rows.
template <typename S>
struct SlotsSoFar {
  uint32_t k[S::kStrips][S::kTerms][S::kUnits][4] = {};
  int32_t position[S::kSlots];
  float received[S::kSlots][2] = {};
};

// Which rows count.
struct Counted {
  bool some = false;  // else all
  int32_t first = 0;  // row
  int32_t group = 1;
  int32_t track = -1;  // the one query head, or all
};

// `tile`: 16 rows from `row` on. Of a slot `mask` is -inf where no row of the stage sees it; where rows differ about
// one of the thread's, each is asked.
template <typename S>
EBB_DEVICE void ObserveTile(const BlockLane& l, SlotsSoFar<S>& s, const Vector16* tile, const float (&mask)[S::kSlots],
                            bool differ, int32_t row, const Counted& counted) {
  const int32_t units = UnitsOf<S::kUnits, S::kWhole>(l);
  const int32_t t = ThreadIndex() % 4;
  float logits[S::kStrips][2][4];
  EBB_UNROLL
  for (int32_t strip = 0; strip < S::kStrips; ++strip) {
    EBB_UNROLL
    for (int32_t i = 0; i < 8; ++i) logits[strip][i / 4][i % 4] = mask[2 * strip + i % 4 / 2];
  }
  SyncTeam();
  EBB_UNROLL
  for (int32_t u = 0; u < S::kUnits; ++u) {
    if (u >= units) continue;
    EBB_UNROLL
    for (int32_t of_q = 0; of_q < S::kTerms; ++of_q) {
      const Vector16 two = tile[(of_q * units + u) * kTeam + ThreadIndex() % kTeam];
      EBB_UNROLL
      for (int32_t of_k = 0; of_k < S::kTerms - of_q; ++of_k) {
        EBB_UNROLL
        for (int32_t strip = 0; strip < S::kStrips; ++strip) {
          MultiplyTwo(s.k[strip][of_k][u], two, logits[strip][0], logits[strip][1]);
        }
      }
    }
  }
  const float* const base = reinterpret_cast<const float*>(tile + S::kTerms * units * kTeam);
  const int32_t* const query = reinterpret_cast<const int32_t*>(base + kLaidRows);
  float less[2][2];
  EBB_UNROLL
  for (int32_t i = 0; i < 4; ++i) less[i / 2][i % 2] = base[8 * (i / 2) + 2 * t + i % 2];
  if (counted.some) {
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t m = row + 8 * (i / 2) + 2 * t + i % 2;
      if (m < counted.first || (counted.track >= 0 && m % counted.group != counted.track)) {
        less[i / 2][i % 2] = Infinity();
      }
    }
  }
  if (!S::kPlain && l.a->cap > 0) {
    EBB_UNROLL
    for (int32_t i = 0; i < S::kStrips * 8; ++i) {
      float& logit = logits[i / 8][i / 4 % 2][i % 4];
      if (logit != MinusInfinity()) logit = Capped(logit, l.a->cap);  // else no row sees the slot
    }
  }
  if constexpr (S::kLowered) {
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t of_tile = 8 * (i / 2) + 2 * t + i % 2;
      const float slope = SlopeOf(l, row + of_tile);
      EBB_UNROLL
      for (int32_t slot = 0; slot < S::kSlots; ++slot) {
        float& logit = logits[slot / 2][i / 2][2 * (slot % 2) + i % 2];
        logit = Lowered(logit, slope, query[of_tile] - s.position[slot]);
      }
    }
  }
  if (differ) {
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t at = query[8 * (i / 2) + 2 * t + i % 2];
      EBB_UNROLL
      for (int32_t slot = 0; slot < S::kSlots; ++slot) {
        float& logit = logits[slot / 2][i / 2][2 * (slot % 2) + i % 2];
        if (s.position[slot] > at || IsBehind<S::kPlain>(l, s.position[slot], at)) logit = MinusInfinity();
      }
    }
  }
  EBB_UNROLL
  for (int32_t i = 0; i < 4; ++i) {
    EBB_UNROLL
    for (int32_t slot = 0; slot < S::kSlots; ++slot) {
      const float logit = logits[slot / 2][i / 2][2 * (slot % 2) + i % 2];
      s.received[slot][i % 2] += Exp2Normal(MultiplyAdd(logit, kLog2E, -less[i / 2][i % 2]));
    }
  }
}

// Into the scores: what the track received, a mean over `each` query heads; of all rows, or of those of one query head.
template <typename S>
EBB_DEVICE void AddToTrack(const BlockLane& l, const SlotsSoFar<S>& s, int32_t strip, int32_t track, bool all) {
  const SessionView& session = *l.session;
  const int32_t t = ThreadIndex() % 4;
  const float each = static_cast<float>(session.tracks == 1 ? l.a->group : 1);
  EBB_UNROLL
  for (int32_t i = 0; i < S::kSlots; ++i) {
    float sum = 0;
    EBB_UNROLL
    for (int32_t j = 0; j < 2; ++j) {
      if (all || (2 * t + j) % l.a->group == track) sum += s.received[i][j];
    }
    SyncTeam();
    sum += ShuffleXor(sum, 1);
    sum += ShuffleXor(sum, 2);
    const int32_t slot = strip * kStripSlots + 8 * i + ThreadIndex() % kTeam / 4;
    if (t != 0 || slot >= session.slots) continue;
    float* const score = TrackOf(session, l.a->layer * l.a->cache.kv_heads + l.head, track) + slot;
    const float mean = sum / each;
    *score = session.rule == ScoreRule::kLast ? mean : *score + mean;
  }
  SyncTeam();
}

// The first stage of which a row may see what lies at `earliest`.
template <int32_t kRows>
EBB_DEVICE int32_t FirstStage(const BlockLane& l, int32_t stage, int32_t stages, int32_t earliest) {
  int32_t end = stages;
  const auto sees = [&](int32_t at) {
    const int32_t past = (at + 1) * kRows;
    return PositionOf(l, past < l.rows ? past - 1 : l.rows - 1) >= earliest;
  };
  if (stage < end && sees(stage)) return stage;  // most do
  while (stage < end) {
    const int32_t middle = stage + (end - stage) / 2;
    if (sees(middle)) {
      end = middle;
    } else {
      stage = middle + 1;
    }
  }
  return stage;
}

template <typename S>
EBB_KERNEL_BESIDE(kThreads, S::kBeside)
ObserveSlots(BlockArgs args) {
  constexpr int32_t kRows = S::kTiles * kLaidRows;
  Shared<S>& shared = *LaunchShared<Shared<S>>();
  const AttendArgs& a = args.attend;
  const BlockLane l = LaneOf<S::kTerms>(args, BlockZ(), BlockY());
  const SessionView& session = *l.session;
  const int32_t first_strip = BlockX() * S::kBlockStrips;
  if (!GoesByAttention(session) || first_strip * kStripSlots >= session.slots) return;
  const int32_t units = UnitsOf<S::kUnits, S::kWhole>(l);
  const int32_t strips = LaidStrips(session.slots);
  const int32_t strip = first_strip + ThreadIndex() / kTeam * S::kStrips;
  SlotsSoFar<S> s;
  EBB_UNROLL
  for (int32_t i = 0; i < S::kStrips; ++i) {
    const bool is_laid = strip + i < strips;
    const Vector16* const k = reinterpret_cast<const Vector16*>(l.kv + int64_t{strip + i} * 2 * l.words);
    EBB_UNROLL
    for (int32_t half = 0; half < 2; ++half) {
      const int32_t* const position = l.position + (strip + i) * kStripSlots + 8 * half + ThreadIndex() % kTeam / 4;
      s.position[2 * i + half] = is_laid ? *position : INT32_MAX;
    }
    EBB_UNROLL
    for (int32_t term = 0; term < S::kTerms; ++term) {
      EBB_UNROLL
      for (int32_t u = 0; u < S::kUnits; ++u) {
        if (u < units && is_laid) TakeLeft(k[(term * units + u) * kTeam + ThreadIndex() % kTeam], s.k[i][term][u]);
      }
    }
  }
  int32_t earliest = INT32_MAX;
  for (int32_t i = first_strip; i < first_strip + S::kBlockStrips && i < strips; ++i) {
    if (l.earliest[i] < earliest) earliest = l.earliest[i];
  }

  const bool last_alone = session.rule == ScoreRule::kLast;
  const bool apart = session.tracks > 1 && 8 % a.group != 0;
  Counted counted = {.some = last_alone || apart, .first = last_alone ? l.rows - a.group : 0, .group = a.group};
  const int32_t stages = (l.rows + kRows - 1) / kRows;
  const int32_t begin = FirstStage<kRows>(l, counted.first / kRows, stages, earliest);
  const int32_t tile_vectors = l.tile_words / 4;
  const int32_t laid_tiles = (l.rows + kLaidRows - 1) / kLaidRows;
  const auto ask = [&](int32_t stage) {
    if (stage < stages) {
      const int32_t tiles = laid_tiles - stage * S::kTiles < S::kTiles ? laid_tiles - stage * S::kTiles : S::kTiles;
      const Vector16* const from = reinterpret_cast<const Vector16*>(l.q) + int64_t{stage} * S::kTiles * tile_vectors;
      Vector16* const to = shared.q[stage % S::kStages];
      for (int32_t i = ThreadIndex(); i < tiles * tile_vectors; i += kThreads) CopyAhead(to + i, from + i);
    }
    CloseCopies();
  };

  for (int32_t pass = 0; pass < (apart ? session.tracks : 1); ++pass) {
    if (apart) {
      counted.track = pass;
      EBB_UNROLL
      for (int32_t i = 0; i < S::kSlots; ++i) s.received[i][0] = s.received[i][1] = 0;
    }
    for (int32_t i = 0; i + 1 < S::kStages; ++i) ask(begin + i);
    for (int32_t stage = begin; stage < stages; ++stage) {
      CopiesArrived<S::kStages - 2>();
      Barrier();  // a stage is whole, and the one before it is free
      ask(stage + S::kStages - 1);
      const Vector16* const q = shared.q[stage % S::kStages];
      const int32_t tiles = laid_tiles - stage * S::kTiles < S::kTiles ? laid_tiles - stage * S::kTiles : S::kTiles;
      const auto position_of = [&](int32_t tile, int32_t row) {
        const Vector16* const rows = q + tile * tile_vectors + S::kTerms * units * kTeam;
        return reinterpret_cast<const int32_t*>(rows)[kLaidRows + row];
      };
      const int32_t oldest = position_of(0, 0);
      const int32_t newest = position_of(tiles - 1, kLaidRows - 1);
      float mask[S::kSlots];
      bool differ = false;
      EBB_UNROLL
      for (int32_t i = 0; i < S::kSlots; ++i) {
        const bool is_seen = s.position[i] <= newest && !IsBehind<S::kPlain>(l, s.position[i], oldest);
        mask[i] = is_seen ? 0.0F : MinusInfinity();
        differ |= is_seen && (s.position[i] > oldest || IsBehind<S::kPlain>(l, s.position[i], newest));
      }
      for (int32_t tile = 0; tile < tiles; ++tile) {
        ObserveTile<S>(l, s, q + tile * tile_vectors, mask, differ, stage * kRows + tile * kLaidRows, counted);
      }
    }
    Barrier();  // stages are free for the next pass
    if (apart || session.tracks == 1) {
      AddToTrack<S>(l, s, strip, pass, true);
    } else {
      for (int32_t track = 0; track < session.tracks; ++track) AddToTrack<S>(l, s, strip, track, false);
    }
  }
}

// Writes the bases of the rows into the tiles of q; past the last row it is infinite.
template <int32_t kTerms>
EBB_KERNEL(kThreads)
BaseRows(BlockArgs args) {
  const BlockLane l = LaneOf<kTerms>(args, BlockZ(), BlockY());
  const int32_t m = BlockX() * kThreads + ThreadIndex();
  if (!GoesByAttention(*l.session) || m >= (l.rows + kLaidRows - 1) / kLaidRows * kLaidRows) return;
  float base = Infinity();
  if (m < l.rows) {
    const float* const stats = l.a->stats + 2 * StepRow(l, m);
    base = stats[0] * kLog2E - Log2(stats[1]);
  }
  uint32_t* const tile = LaidQueries(args, BlockZ(), BlockY(), l.tile_words) + int64_t{m / kLaidRows} * l.tile_words;
  tile[l.words + m % kLaidRows] = BitsOf(base);
}

template <typename S>
void LaunchOf(const BlockArgs& args, Stream stream) {
  static_assert(sizeof(Shared<S>) <= kSharedMax);
  const CacheArgs& cache = args.attend.cache;
  const int32_t rows = (args.tokens_max * args.attend.group + kLaidRows - 1) / kLaidRows * kLaidRows;
  Launch(BaseRows<S::kTerms>, {(rows + kThreads - 1) / kThreads, cache.kv_heads, cache.session_count}, kThreads, args,
         stream);
  Launch(ObserveSlots<S>, {(args.strips + S::kBlockStrips - 1) / S::kBlockStrips, cache.kv_heads, cache.session_count},
         kThreads, args, stream, static_cast<int32_t>(sizeof(Shared<S>)));
}

}  // namespace

void LaunchObserveBlock(const BlockArgs& args, Stream stream) {
  WithShape<Shape>(args.attend, [&](auto shape) { LaunchOf<decltype(shape)>(args, stream); });
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
