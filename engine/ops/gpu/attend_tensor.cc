// Paged attention of rows that come alone over their lanes, split by split, all query heads of a KV head at once, on
// tensor cores: of caches whose numbers are exact in BF16: BF16 and bytes. Block (c, h, t): split c (slots 256 c .. 256
// c + 255) of KV head h of row t.
//
// K of the split, then V, goes by in stages of up to 32 slots, copied to a ring in shared memory while others are
// computed. Rows of a stage are 16 bytes longer than they are, so that what a team reads at once lies in all banks.
//
//   stages   K 0 | K 1 | ... | K 7 | V 0 | V 1 | ... | V 7        ring   stage s lies in part s % kRing
//                                  ^ softmax of the split, while V is on its way
//
// What comes in floats, queries and weights, is two BF16 that add up to it but for 2^-17 of it: a product has the first
// terms of eight query heads in rows 0 .. 7 of its left side, the second ones in rows 8 .. 15, and both results lie
// with one thread. Keys that are turned become two terms, too.
//
//   logits   [heads' terms] x [8 slots], a unit of 16 components at a time (rope.h): thread 4 g + t has numbers 2 t and
//            2 t + 1 of both halves of slot g's unit. Those are two pairs, whichever kind, so a rotation never leaves
//            its thread. A team takes eight slots of a stage.
//   sums     [heads' terms] x [8 components], 16 slots at a time. A team takes every fourth unit, of all slots.
//
//   share    first the queries' terms; then a row a head: logits [256] floats; then, in their place, both terms of
//            weights, words of two slots each
//
// The block that comes last of a row and KV head folds the splits and tells the scores (attend_finish.h).
//
// A slot that this row may not see counts for nothing, whatever its bytes are. Of bytes, a sum meets its scale when it
// is complete: a logit that of K, a weight that of V. Sums are over slots in a fixed order within the split, whoever
// else is in the step.

#include <cstdint>

#include "engine/ops/gpu/attend_finish.h"
#include "engine/ops/gpu/attend_split.h"
#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/numbers.h"
#include "engine/ops/gpu/reduce.h"
#include "engine/ops/gpu/rope.h"
#include "engine/ops/gpu/tensor.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 128;
constexpr int32_t kTeams = kThreads / kTeam;
constexpr int32_t kRing = 3;
constexpr int32_t kSlots = 8 * kTeams;             // of a stage
constexpr int32_t kShareStride = kSplitSlots + 8;  // so that heads begin in different banks
constexpr int32_t kSecondTerm = kShareStride / 2;

// Of two numbers that are exact in BF16.
EBB_DEVICE uint32_t PackExact(float low, float high) { return BitsOf(low) >> 16 | (BitsOf(high) & 0xFFFF0000U); }

// What a thread has of a unit: numbers 2 t and 2 t + 1 of its first eight, and of its second eight.
struct Quarter {
  float low[2], high[2];
};
EBB_DEVICE Quarter QuarterOf(uint32_t low, uint32_t high) {
  return {{FloatOf(low << 16), FloatOf(low & 0xFFFF0000U)}, {FloatOf(high << 16), FloatOf(high & 0xFFFF0000U)}};
}
template <typename E>
EBB_DEVICE Quarter ReadBytes(const uint8_t* low, const uint8_t* high) {
  using Type = typename E::Type;
  const uint32_t first = *reinterpret_cast<const uint16_t*>(low);
  const uint32_t second = *reinterpret_cast<const uint16_t*>(high);
  return {{E::Read(static_cast<Type>(first & 0xFFU)), E::Read(static_cast<Type>(first >> 8))},
          {E::Read(static_cast<Type>(second & 0xFFU)), E::Read(static_cast<Type>(second >> 8))}};
}
// Turned, as first and second numbers of its two pairs, by `turns` of these. Pairs of neighbours lie in a half each.
EBB_DEVICE Quarter TurnQuarter(const Quarter& q, bool neighbours, int32_t position, const uint64_t* turns) {
  const float x[2] = {q.low[0], neighbours ? q.high[0] : q.low[1]};
  const float y[2] = {neighbours ? q.low[1] : q.high[0], q.high[1]};
  Quarter turned;
  EBB_UNROLL
  for (int32_t i = 0; i < 2; ++i) {
    const CosSin angle = Turn(position, turns[i]);
    turned.low[i] = MultiplyAdd(-y[i], angle.sin, x[i] * angle.cos);
    turned.high[i] = MultiplyAdd(x[i], angle.sin, y[i] * angle.cos);
  }
  return turned;
}

// kWhole: heads have kUnits units, and not fewer.
template <typename E, int32_t kUnits, bool kWhole>
EBB_KERNEL(kThreads)
AttendSplit(AttendArgs a) {
  EBB_SHARED Vector16 share_words[kGroupMax * kShareStride / 4];
  EBB_SHARED int32_t at[kSplitSlots];  // positions, -1 where this row sees nothing
  struct alignas(16) TurnsOfThread {
    uint64_t of_pair[2];
  };
  EBB_SHARED TurnsOfThread turns[kUnits][4];  // of the pairs that thread t has of each unit
  EBB_SHARED int32_t pages[kSplitSlots / kPageSlots];
  EBB_SHARED int32_t places[kUnits][2];  // where a unit's halves begin in a row, bytes
  EBB_SHARED float scale_of_k[E::kScaled ? kSplitSlots : 1];
  EBB_SHARED float scale_of_v[E::kScaled ? kSplitSlots : 1];
  float* const share = reinterpret_cast<float*>(share_words);
  uint32_t* const weights = reinterpret_cast<uint32_t*>(share_words);
  static_assert(kUnits * kTeam <= kGroupMax * kShareStride / 4);
  uint8_t* const ring = LaunchShared<uint8_t>();

  const CacheArgs& cache = a.cache;
  const OwnSplit split(a);
  if (split.first >= split.session.slots) return;
  const int32_t d = kWhole ? kUnit * kUnits : cache.arena.head_dim;
  const int32_t units = kWhole ? kUnits : d / kUnit;
  const int32_t thread = ThreadIndex();
  const int32_t team = thread / kTeam;
  const int32_t g = thread % kTeam / 4;
  const int32_t t = thread % 4;

  constexpr auto kBytes = static_cast<int32_t>(sizeof(typename E::Type));
  const int32_t row_bytes = d * kBytes + 16;
  const int32_t part_bytes = kSlots * row_bytes;
  const int32_t vectors = d * kBytes / 16;
  constexpr int32_t kScaleBytes = E::kScaled ? 2 * kPageSlots * 4 : 0;
  const int64_t page_bytes = int64_t{2} * kPageSlots * d * kBytes + kScaleBytes;
  const int32_t key_stages = (split.slots + kSlots - 1) / kSlots;
  // Where a thread's vectors lie, and the next ones, in rows and columns.
  const int32_t own_column = thread % vectors;
  const SharedAt ring_at = AtShared(ring);
  const int32_t own_at = thread / vectors * row_bytes + own_column * 16;
  const int32_t next_rows = kThreads / vectors;
  const int32_t next_columns = kThreads % vectors;
  const auto issue = [&](int32_t stage, int32_t page) {
    const bool is_key = stage < key_stages;
    const int32_t begin = (is_key ? stage : stage - key_stages) * kSlots;
    const int32_t row_in_page = begin % kPageSlots + (is_key ? 0 : kPageSlots);
    const uint8_t* from =
        static_cast<const uint8_t*>(cache.arena.base) + page * page_bytes + (row_in_page * vectors + thread) * 16;
    SharedAt to = ring_at + stage % kRing * part_bytes + own_at;
    const int32_t count = (split.slots - begin < kSlots ? split.slots - begin : kSlots) * vectors;
    int32_t column = own_column;
    EBB_UNROLL
    for (int32_t i = 0; i < kSlots * kUnits * kBytes / kThreads; ++i) {
      if (thread + i * kThreads < count) CopyAhead(to, from);
      from += 16 * kThreads;
      to += next_rows * row_bytes + next_columns * 16;
      if (next_columns == 0) continue;
      column += next_columns;
      if (column < vectors) continue;
      column -= vectors;
      to += 16;  // past what a row is longer
    }
  };
  const int32_t* const page =
      split.session.page + int64_t{split.lane} * split.session.pages_per_lane + split.first / kPageSlots;
  static_assert((kRing - 1) * kSlots <= kPageSlots);
  const int32_t first_page = page[0];
  for (int32_t stage = 0; stage < kRing - 1; ++stage) {
    if (stage < 2 * key_stages) issue(stage, first_page);
    CloseCopies();
  }
  // Rows of a stage that is whole from now on, and the next in the part of the one before, which is read.
  const auto take = [&](int32_t stage) {
    CopiesArrived<kRing - 2>();
    Barrier();
    const int32_t next = stage + kRing - 1;
    if (next < 2 * key_stages) {
      issue(next, pages[(next < key_stages ? next : next - key_stages) * kSlots / kPageSlots]);
    }
    CloseCopies();
    return stage % kRing * part_bytes;
  };

  const int32_t* const position = split.Positions();
  const int32_t query = position[split.OwnSlot()];
  const bool neighbours = a.rope.halves == 0;
  for (int32_t i = thread; i < kSplitSlots; i += kThreads) {
    const int32_t own = i < split.slots ? position[split.first + i] : -1;
    at[i] = own <= query ? own : -1;
    if constexpr (E::kScaled) {
      const SlotScales scales =
          i < split.slots ? RowsOf<E>(cache.arena, split.session, split.lane, split.first + i).Scales() : SlotScales{};
      scale_of_k[i] = scales.k;
      scale_of_v[i] = scales.v;
    }
  }
  if (thread < (split.slots + kPageSlots - 1) / kPageSlots) pages[thread] = page[thread];
  if (thread < kUnits) {
    const UnitPlace place = PlaceOf(a.rope, thread < units ? thread : 0);
    places[thread][0] = place.first * kBytes;
    places[thread][1] = place.second * kBytes;
  }
  for (int32_t i = thread; i < d / 2; i += kThreads) {
    const int32_t of = i % kPairs;
    const int32_t pair = i - of + (neighbours ? of % 2 * 4 + of / 2 : of);
    turns[i / kPairs][of / 2].of_pair[of % 2] = pair < a.rope.rotary_dims / 2 ? a.rope.turns[pair] : 0;
  }
  Barrier();

  // Queries' terms, every fourth unit by a team, then all by each.
  const int64_t first_head = split.FirstHead(a);
  for (int32_t u = team; u < units; u += kTeams) {
    Vector16 terms = {};
    if (g < a.group) {
      const float* const own = a.q + split.row * a.q_stride + (int64_t{split.head} * a.group + g) * d + 2 * t;
      const UnitPlace place = PlaceOf(a.rope, u);
      const float* const low = own + place.first;
      const float* const high = own + place.second;
      Quarter quarter = {{low[0], low[1]}, {high[0], high[1]}};
      if (kUnit * u < a.rope.rotary_dims) quarter = TurnQuarter(quarter, neighbours, query, turns[u][t].of_pair);
      const Terms of_low = TermsOf(a.scale * quarter.low[0], a.scale * quarter.low[1]);
      const Terms of_high = TermsOf(a.scale * quarter.high[0], a.scale * quarter.high[1]);
      terms = {{of_low.first, of_low.second, of_high.first, of_high.second}};
    }
    share_words[u * kTeam + thread % kTeam] = terms;
  }
  Barrier();
  Vector16 q[kUnits];
  EBB_UNROLL
  for (int32_t u = 0; u < kUnits; ++u) {
    if (u < units) q[u] = share_words[u * kTeam + thread % kTeam];
  }

  for (int32_t stage = 0; stage < key_stages; ++stage) {
    const int32_t rows = take(stage);
    const int32_t begin = stage * kSlots + 8 * team;
    const int32_t tile = rows + 8 * team * row_bytes;
    const int32_t own = at[begin + g];
    float c[4] = {};
    SyncTeam();
    const auto multiply = [&](int32_t u, const Quarter& quarter, uint32_t low, uint32_t high) {
      const uint32_t left[4] = {q[u].word[0], q[u].word[1], q[u].word[2], q[u].word[3]};
      if (kUnit * u >= a.rope.rotary_dims) {
        const uint32_t exact[2] = {low, high};
        return MultiplySmallTile(left, exact, c);
      }
      const Quarter turned = TurnQuarter(quarter, neighbours, own, turns[u][t].of_pair);
      const Terms of_low = TermsOf(turned.low[0], turned.low[1]);
      const Terms of_high = TermsOf(turned.high[0], turned.high[1]);
      const uint32_t first_terms[2] = {of_low.first, of_high.first};
      const uint32_t second_terms[2] = {of_low.second, of_high.second};
      MultiplySmallTile(left, first_terms, c);
      MultiplySmallTile(left, second_terms, c);
    };
    EBB_UNROLL
    for (int32_t u = 0; u < kUnits; u += 2) {
      if (u >= units) continue;
      if constexpr (E::kScaled) {
        EBB_UNROLL
        for (int32_t i = u; i < u + 2; ++i) {
          if (i >= units) continue;
          const uint8_t* const from = ring + tile + g * row_bytes + 2 * t;
          const Quarter quarter = ReadBytes<E>(from + places[i][0], from + places[i][1]);
          multiply(i, quarter, PackExact(quarter.low[0], quarter.low[1]), PackExact(quarter.high[0], quarter.high[1]));
        }
      } else {
        uint32_t words[4];
        LoadTiles<false>(
            [&](int32_t m, int32_t r) { return ring_at + tile + r * row_bytes + places[u + m / 2][m % 2]; }, words);
        multiply(u, QuarterOf(words[0], words[1]), words[0], words[1]);
        if (u + 1 < units) multiply(u + 1, QuarterOf(words[2], words[3]), words[2], words[3]);
      }
    }
    if (g >= a.group) continue;
    EBB_UNROLL
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t slot = begin + 2 * t + i;
      const float logit = c[i] + c[2 + i];
      share[g * kShareStride + slot] = E::kScaled ? logit * scale_of_k[slot] : logit;
    }
  }
  Barrier();

  // Softmax of the split, a head a team, two slots a thread at a time.
  const int32_t member = thread % kTeam;
  constexpr int32_t kTwos = kSplitSlots / 2 / kTeam;
  bool hidden = false;  // some slot of the split that this row may not see
  for (int32_t begin = 0; begin < a.group; begin += kTeams) {
    const bool is_head = begin + team < a.group;
    const int32_t own = is_head ? begin + team : a.group - 1;  // all threads of a warp meet
    float peak = MinusInfinity();
    float e[kTwos][2];
    EBB_UNROLL
    for (int32_t i = 0; i < kTwos; ++i) {
      EBB_UNROLL
      for (int32_t j = 0; j < 2; ++j) {
        const int32_t slot = 2 * (member + kTeam * i) + j;
        const bool seen = at[slot] >= 0;
        hidden |= !seen && slot < key_stages * kSlots;
        e[i][j] = seen ? share[own * kShareStride + slot] : MinusInfinity();
        if (a.logits != nullptr && is_head && slot < split.slots) {
          a.logits[(first_head + own) * cache.slots_max + split.first + slot] = e[i][j];
        }
        peak = Larger(e[i][j], peak);
      }
    }
    peak = ReduceTeam(peak, Largest());
    float weight = 0;
    EBB_UNROLL
    for (int32_t i = 0; i < kTwos; ++i) {
      EBB_UNROLL
      for (int32_t j = 0; j < 2; ++j) {
        e[i][j] = e[i][j] == MinusInfinity() ? 0 : Exp(e[i][j] - peak);
        weight += e[i][j];
      }
    }
    weight = ReduceTeam(weight, Plus());
    if (!is_head) continue;
    EBB_UNROLL
    for (int32_t i = 0; i < kTwos; ++i) {
      const int32_t two = member + kTeam * i;
      if constexpr (E::kScaled) {
        EBB_UNROLL
        for (int32_t j = 0; j < 2; ++j) e[i][j] = e[i][j] > 0 ? e[i][j] * scale_of_v[2 * two + j] : 0;
      }
      const Terms terms = TermsOf(e[i][0], e[i][1]);
      weights[own * kShareStride + two] = terms.first;
      weights[own * kShareStride + kSecondTerm + two] = terms.second;
    }
    if (member == 0) {
      float* const stats = a.partial_stats + ((first_head + own) * a.splits + BlockX()) * 2;
      stats[0] = peak;
      stats[1] = weight;
    }
  }
  hidden = ReduceTeam(hidden ? 1 : 0, Largest()) != 0;  // alike for all teams, each of which met every slot
  Barrier();

  constexpr int32_t kOwnUnits = kUnits / kTeams;
  float sum[kOwnUnits][2][4] = {};
  for (int32_t stage = key_stages; stage < 2 * key_stages; ++stage) {
    const int32_t rows = take(stage);
    const int32_t begin = (stage - key_stages) * kSlots;
    if (hidden && !E::kScaled) {  // whatever a hidden slot holds, 0 times it is to be 0; bytes are numbers anyway
      for (int32_t i = thread; i < kSlots * vectors; i += kThreads) {
        const int32_t slot = i / vectors;
        if (at[begin + slot] < 0) *reinterpret_cast<Vector16*>(ring + rows + slot * row_bytes + i % vectors * 16) = {};
      }
      Barrier();
    }
    const int32_t end = split.slots - begin < kSlots ? split.slots - begin : kSlots;
    for (int32_t k = 0; k < end; k += 16) {
      uint32_t weight[4] = {};
      if (g < a.group) {
        const uint32_t* const of_head = weights + g * kShareStride + (begin + k) / 2 + t;
        weight[0] = of_head[0];
        weight[1] = of_head[kSecondTerm];
        weight[2] = of_head[4];
        weight[3] = of_head[kSecondTerm + 4];
      }
      SyncTeam();
      EBB_UNROLL
      for (int32_t own = 0; own < kOwnUnits; ++own) {
        const int32_t unit = team + kTeams * own;
        uint32_t v[4] = {};  // of both products, the first eight slots and the others
        if constexpr (E::kScaled) {
          EBB_UNROLL
          for (int32_t half = 0; half < 2; ++half) {
            if (unit >= units) continue;
            const uint8_t* const from = ring + rows + (k + 8 * half + 2 * t) * row_bytes + kUnit * unit + 2 * g;
            const Quarter quarter = ReadBytes<E>(from, from + row_bytes);
            v[half] = PackExact(quarter.low[0], quarter.high[0]);
            v[2 + half] = PackExact(quarter.low[1], quarter.high[1]);
          }
        } else {
          const int32_t place = unit < units ? 2 * kUnit * unit : 0;  // all threads of a warp meet
          LoadTiles<true>(
              [&](int32_t m, int32_t r) {
                return ring_at + rows + (k + m % 2 * 8 + r) * row_bytes + place + m / 2 * 16;
              },
              v);
        }
        const uint32_t first_eight[2] = {v[0], v[1]};
        const uint32_t other_eight[2] = {v[2], v[3]};
        MultiplySmallTile(weight, first_eight, sum[own][0]);
        MultiplySmallTile(weight, other_eight, sum[own][1]);
      }
    }
  }
  CopiesArrived();
  EBB_UNROLL
  for (int32_t own = 0; own < kOwnUnits; ++own) {
    const int32_t unit = team + kTeams * own;
    if (unit >= units || g >= a.group) continue;
    float* const to = a.partial_sums + ((first_head + g) * a.splits + BlockX()) * d + kUnit * unit;
    EBB_UNROLL
    for (int32_t tile = 0; tile < 2; ++tile) {
      EBB_UNROLL
      for (int32_t i = 0; i < 2; ++i) {
        const int32_t column = E::kScaled ? 4 * t + 2 * i + tile : 8 * tile + 2 * t + i;
        to[column] = sum[own][tile][i] + sum[own][tile][2 + i];
      }
    }
  }
  FinishRow<kThreads>(a, split.session, split.row, split.head);
}

template <typename E, int32_t kUnits>
void LaunchUnits(const AttendArgs& args, Stream stream) {
  const int32_t d = args.cache.arena.head_dim;
  const Grid grid = {args.splits, args.cache.kv_heads, args.cache.rows};
  const int32_t ring = kRing * kSlots * (d * static_cast<int32_t>(sizeof(typename E::Type)) + 16);
  if (d == kUnit * kUnits) return Launch(AttendSplit<E, kUnits, true>, grid, kThreads, args, stream, ring);
  Launch(AttendSplit<E, kUnits, false>, grid, kThreads, args, stream, ring);
}
template <typename E>
void LaunchOf(const AttendArgs& args, Stream stream) {
  const int32_t d = args.cache.arena.head_dim;
  if (d <= 64) return LaunchUnits<E, 4>(args, stream);
  if (d <= 128) return LaunchUnits<E, 8>(args, stream);
  LaunchUnits<E, 16>(args, stream);
}

}  // namespace

void LaunchAttendTensor(const AttendArgs& args, Stream stream) {
  if (args.cache.arena.type == Element::kQ8) return LaunchOf<KvInt8>(args, stream);
  if (args.cache.arena.type == Element::kFp8) return LaunchOf<KvFp8>(args, stream);
  LaunchOf<KvBf16>(args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
