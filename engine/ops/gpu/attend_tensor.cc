// Paged attention of rows that come alone over their lanes, split by split, all query heads of a KV head at once, on
// tensor cores: of caches whose numbers are exact in BF16: BF16 and bytes. Block (c, h, t): split c (slots 256 c .. 256
// c + 255, the last one up to 16 more) of KV head h of row t.
//
// K of the split, then V, goes by in stages of up to 32 slots, copied to a ring in shared memory while others are
// computed. Rows of a stage are 16 bytes longer than they are, so that what a team reads at once lies in all banks.
//
//   stages   K 0 | K 1 | ... | K 7 | V 0 | V 1 | ... | V 7        ring   stage s lies in part s % 2 or 4
//                                  ^ softmax of the split, while V is on its way
//
// What comes in floats, queries and weights, is two BF16 that add up to it but for 2^-17 of it: a product has the first
// terms of eight query heads in rows 0 .. 7 of its left side, the second ones in rows 8 .. 15, and both results lie
// with one thread. Where keys are turned, queries are two F16 (2^-22) and a key one: within 2^-12 of it (or 2^-25), an
// eighth of what it lost when it was stored as BF16. REQUIRES: turned keys, and queries times the scale, are within
// F16's 65504.
//
//   logits   [heads' terms] x [8 slots], a unit of 16 components at a time (rope.h): thread 4 g + t has numbers 2 t and
//            2 t + 1 of both halves of slot g's unit. Those are two pairs, whichever kind, so a rotation never leaves
//            its thread. A team takes eight slots of a stage.
//   sums     [heads' terms] x [8 components], 16 slots at a time. A team takes every fourth unit, of all slots.
//
//   share    first the queries' terms; then a row a head: logits [272] floats; then, in their place, both terms of
//            weights, words of two slots each
//
// What is shared is so much that eight blocks of heads of 128 numbers fit a multiprocessor of 228 KB: 64 bytes of a
// block are left.
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
constexpr int32_t kSlots = 8 * kTeams;                                             // of a stage
constexpr int32_t kStagedSlots = (kSplitSlotsMax + kSlots - 1) / kSlots * kSlots;  // of all stages
constexpr int32_t kShareStride = kSplitSlotsMax + 4;  // so that heads begin in different banks
constexpr int32_t kSecondTerm = kShareStride / 2;

// What a thread has of a unit: numbers 2 t and 2 t + 1 of its first eight, and of its second eight.
struct Quarter {
  float low[2], high[2];
};
EBB_DEVICE Quarter QuarterOf(uint32_t low, uint32_t high) {
  return {{FloatOf(low << 16), FloatOf(low & 0xFFFF0000U)}, {FloatOf(high << 16), FloatOf(high & 0xFFFF0000U)}};
}
// Two bytes of each, 0 and 1, 4 and 5, in the order of `which` (PickBytes).
EBB_DEVICE uint32_t ReadTwice(const uint8_t* low, const uint8_t* high, uint32_t which) {
  return PickBytes(*reinterpret_cast<const uint16_t*>(low), *reinterpret_cast<const uint16_t*>(high), which);
}

// Which pairs turn together: of heads that turn whole, one kind; else as the rope says; none where slopes lower logits.
enum class Pairs { kAsSaid, kNeighbours, kHalves, kNoneButSlopes };

struct SplitArgs {
  AttendArgs attend;
  int32_t ring;  // 2 or 4
};

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

// Of a stage, the number among those of keys, or of values.
EBB_DEVICE int32_t StageOf(int32_t stage, int32_t key_stages) {
  return stage < key_stages ? stage : stage - key_stages;
}

// kWhole: heads have kUnits units, and not fewer. Of those alone kPairsAre says that all of it turns, and how.
template <typename E, int32_t kUnits, bool kWhole, Pairs kPairsAre>
EBB_KERNEL_BESIDE(kThreads, kUnits > 8 ? 4 : 8)
AttendSplit(SplitArgs args) {
  const AttendArgs& a = args.attend;
  EBB_SHARED Vector16 share_words[kGroupMax * kShareStride / 4];
  EBB_SHARED int32_t at[kStagedSlots];  // positions, -1 where this row sees nothing
  struct alignas(16) TurnsOfThread {
    uint64_t of_pair[2];
  };
  EBB_SHARED TurnsOfThread turns[kUnits][4];  // of the pairs that thread t has of each unit
  EBB_SHARED int32_t pages[(kSplitSlotsMax + kPageSlots - 1) / kPageSlots];
  EBB_SHARED int32_t places[kUnits][2];  // where a unit's halves begin in a row, bytes
  EBB_SHARED float scale_of_k[E::kScaled ? kSplitSlotsMax : 1];
  EBB_SHARED float scale_of_v[E::kScaled ? kSplitSlotsMax : 1];
  float* const share = reinterpret_cast<float*>(share_words);
  uint32_t* const weights = reinterpret_cast<uint32_t*>(share_words);
  static_assert(kUnits * kTeam <= kGroupMax * kShareStride / 4);
  uint8_t* const ring = LaunchShared<uint8_t>();

  const CacheArgs& cache = a.cache;
  const OwnSplit split(a);
  if (split.slots == 0) return;
  if (IsOutOfSight<kThreads>(a, split)) {
    WaitForEarlier();
    LetLaterBegin();
    LeaveOut<kThreads>(a, split);
    return FinishRow<kThreads>(a, split.session, split.row, split.head);
  }
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
  // To part `part` of the ring, bytes from its beginning.
  const int32_t ring_bytes = args.ring * part_bytes;
  const auto issue = [&](int32_t stage, int32_t part, int32_t page) {
    const bool is_key = stage < key_stages;
    const int32_t begin = StageOf(stage, key_stages) * kSlots;
    const int32_t row_in_page = begin % kPageSlots + (is_key ? 0 : kPageSlots);
    const uint8_t* from =
        static_cast<const uint8_t*>(cache.arena.base) + page * page_bytes + (row_in_page * vectors + thread) * 16;
    SharedAt to = ring_at + part + own_at;
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
  // All that does not depend on the kernel before is asked for while that one ends, and K is as many steps away as it
  // has to be: view, page, K. A team has all pages of the split, a thread each.
  const int32_t* const page =
      NotShared(split.session.page) + int64_t{split.lane} * split.session.pages_per_lane + split.first / kPageSlots;
  const int32_t split_pages = (split.slots + kPageSlots - 1) / kPageSlots;
  const int32_t member = thread % kTeam;
  const int32_t own_page = page[member < split_pages ? member : 0];
  const int32_t* const position = NotShared(split.Positions());
  const int32_t own_slot = split.OwnSlot();
  constexpr int32_t kOwnSlots = (kStagedSlots + kThreads - 1) / kThreads;
  int32_t own_position[kOwnSlots];
  EBB_UNROLL
  for (int32_t i = 0; i < kOwnSlots; ++i) {
    const int32_t slot = thread + i * kThreads;
    own_position[i] = slot < split.slots ? position[split.first + slot] : -1;
  }
  static_assert(kUnits * kPairs <= kThreads);
  uint64_t own_turns = 0;
  if (thread < a.rope.rotary_dims / 2) own_turns = a.rope.turns[thread];
  WaitForEarlier();  // for the step's own K and V, and q
  for (int32_t stage = 0; stage < args.ring - 1; ++stage) {
    if (stage < 2 * key_stages) {
      issue(stage, stage * part_bytes, Shuffle(own_page, StageOf(stage, key_stages) * kSlots / kPageSlots));
    }
    CloseCopies();
  }
  const int32_t query = position[own_slot];  // only now: copies do not wait for where the token sits
  // Rows of a stage that is whole from now on, and the next in the part of the one before, which is read.
  int32_t taken = ring_bytes - part_bytes;
  const auto take = [&](int32_t stage) {
    if (args.ring == 2) {
      CopiesArrived<0>();
    } else {
      CopiesArrived<2>();
    }
    Barrier();
    const int32_t next = stage + args.ring - 1;
    if (next < 2 * key_stages) issue(next, taken, pages[StageOf(next, key_stages) * kSlots / kPageSlots]);
    CloseCopies();
    taken = taken + part_bytes == ring_bytes ? 0 : taken + part_bytes;
    return taken;
  };

  const bool neighbours = kPairsAre == Pairs::kAsSaid ? a.rope.halves == 0 : kPairsAre == Pairs::kNeighbours;
  const auto turns_unit = [&](int32_t u) {
    if constexpr (kPairsAre == Pairs::kNoneButSlopes) return false;
    return kPairsAre != Pairs::kAsSaid || kUnit * u < a.rope.rotary_dims;
  };
  // Where a half of a unit begins in a row, bytes.
  const auto place_of = [&](int32_t u, int32_t half) {
    if constexpr (kPairsAre == Pairs::kNeighbours) return (kUnit * u + kPairs * half) * kBytes;
    if constexpr (kPairsAre == Pairs::kHalves) return (kPairs * u + kUnits * kPairs * half) * kBytes;
    return places[u][half];
  };
  EBB_UNROLL
  for (int32_t n = 0; n < kOwnSlots; ++n) {
    const int32_t i = thread + n * kThreads;
    if (i < kStagedSlots) {
      const bool is_seen = own_position[n] <= query && own_position[n] > query - a.window;
      at[i] = is_seen ? own_position[n] : -1;
    }
    if (E::kScaled && i < kSplitSlotsMax) {
      const SlotScales scales =
          i < split.slots ? RowsOf<E>(cache.arena, split.session, split.lane, split.first + i).Scales() : SlotScales{};
      scale_of_k[i] = scales.k;
      scale_of_v[i] = scales.v;
    }
  }
  if (thread < split_pages) pages[thread] = own_page;
  if (thread < kUnits) {
    const UnitPlace place = PlaceOf(a.rope, thread < units ? thread : 0);
    places[thread][0] = place.first * kBytes;
    places[thread][1] = place.second * kBytes;
  }
  if (thread < d / 2) {  // a pair each, where it belongs
    const int32_t pair = thread % kPairs;
    const int32_t of = neighbours ? pair % 4 * 2 + pair / 4 : pair;
    turns[thread / kPairs][of / 2].of_pair[of % 2] = own_turns;
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
      const bool turn = turns_unit(u);
      if (turn) quarter = TurnQuarter(quarter, neighbours, query, turns[u][t].of_pair);
      const auto terms_of = [&](const float(&two)[2]) {
        const float x = a.scale * two[0];
        const float y = a.scale * two[1];
        return turn ? HalfTermsOf(x, y) : TermsOf(x, y);
      };
      const Terms of_low = terms_of(quarter.low);
      const Terms of_high = terms_of(quarter.high);
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
    const auto multiply = [&](int32_t u, uint32_t low, uint32_t high) {
      const uint32_t left[4] = {q[u].word[0], q[u].word[1], q[u].word[2], q[u].word[3]};
      if (!turns_unit(u)) {
        const uint32_t exact[2] = {low, high};
        return MultiplySmallTile(left, exact, c);
      }
      const Quarter turned = TurnQuarter(QuarterOf(low, high), neighbours, own, turns[u][t].of_pair);
      const uint32_t halves[2] = {PackF16(turned.low[0], turned.low[1]), PackF16(turned.high[0], turned.high[1])};
      MultiplySmallTile<Half::kF16>(left, halves, c);
    };
    EBB_UNROLL
    for (int32_t u = 0; u < kUnits; u += 2) {
      if (u >= units) continue;
      if constexpr (E::kScaled) {
        EBB_UNROLL
        for (int32_t i = u; i < u + 2; ++i) {
          if (i >= units) continue;
          const uint8_t* const from = ring + tile + g * row_bytes + 2 * t;
          const uint32_t bytes = ReadTwice(from + place_of(i, 0), from + place_of(i, 1), 0x5140U);
          multiply(i, E::PairOf(bytes, 0), E::PairOf(bytes, 1));
        }
      } else {
        uint32_t words[4];
        LoadTiles<false>(
            [&](int32_t m, int32_t r) { return ring_at + tile + r * row_bytes + place_of(u + m / 2, m % 2); }, words);
        multiply(u, words[0], words[1]);
        if (u + 1 < units) multiply(u + 1, words[2], words[3]);
      }
    }
    if (g >= a.group || begin >= kSplitSlotsMax) continue;  // past a split, its team having met the others
    EBB_UNROLL
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t slot = begin + 2 * t + i;
      const float logit = c[i] + c[2 + i];
      float& to = share[g * kShareStride + slot];
      to = Capped(E::kScaled ? logit * scale_of_k[slot] : logit, a.cap);
      if constexpr (kPairsAre == Pairs::kNoneButSlopes) {
        to = Lowered(to, a.slopes[split.head * a.group + g], query - at[slot]);
      }
    }
  }
  Barrier();

  // Softmax of the split, a head a team, two slots a thread at a time.
  constexpr int32_t kTwos = (kSplitSlotsMax / 2 + kTeam - 1) / kTeam;
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
        const bool seen = slot < kSplitSlotsMax && at[slot] >= 0;
        hidden |= !seen && slot < key_stages * kSlots;
        e[i][j] = seen ? share[own * kShareStride + slot] : MinusInfinity();
        peak = Larger(e[i][j], peak);
      }
      const int32_t two = 2 * (member + kTeam * i);  // the row has room for four
      if (a.logits != nullptr && is_head && two < split.slots) {
        *reinterpret_cast<Vector8*>(a.logits + (first_head + own) * cache.slots_max + split.first +
                                    two) = {{BitsOf(e[i][0]), BitsOf(e[i][1])}};
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
      if (2 * two >= kSplitSlotsMax) continue;
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
      // Whatever a hidden slot holds, 0 times it is to be 0; bytes are numbers anyway.
      uint32_t seen[2] = {~0U, ~0U};
      if (hidden && !E::kScaled) {
        EBB_UNROLL
        for (int32_t m = 0; m < 2; ++m) {
          const int32_t* const of_two = at + begin + k + 8 * m + 2 * t;
          seen[m] = (of_two[0] >= 0 ? 0xFFFFU : 0U) | (of_two[1] >= 0 ? 0xFFFF0000U : 0U);
        }
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
            const uint32_t bytes = ReadTwice(from, from + row_bytes, 0x5410U);
            v[half] = E::PairOf(bytes, 0);
            v[2 + half] = E::PairOf(bytes, 1);
          }
        } else {
          const int32_t place = unit < units ? 2 * kUnit * unit : 0;  // all threads of a warp meet
          LoadTiles<true>(
              [&](int32_t m, int32_t r) {
                return ring_at + rows + (k + m % 2 * 8 + r) * row_bytes + place + m / 2 * 16;
              },
              v);
        }
        const uint32_t first_eight[2] = {v[0] & seen[0], v[1] & seen[1]};
        const uint32_t other_eight[2] = {v[2] & seen[0], v[3] & seen[1]};
        MultiplySmallTile(weight, first_eight, sum[own][0]);
        MultiplySmallTile(weight, other_eight, sum[own][1]);
      }
    }
  }
  CopiesArrived();
  LetLaterBegin();  // W of the product that comes next is fetched while lanes are folded
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

// Few blocks on a multiprocessor have to have more under way each. A part of the ring has `part` bytes.
int32_t RingOf(int64_t blocks, int32_t part) {
  constexpr int32_t kOthers = 16 << 10;  // bytes of shared memory beside the ring
  const bool are_few = blocks <= 4 * kMultiprocessors;
  if (are_few && 4 * part + kOthers <= kSharedMax) return 4;
  return 2;
}

template <typename E, int32_t kUnits, bool kWhole, Pairs kPairsAre>
void LaunchPairs(const AttendArgs& args, Stream stream) {
  const int32_t d = args.cache.arena.head_dim;
  const Grid grid = {args.splits, args.cache.kv_heads, args.cache.rows};
  const int32_t part = kSlots * (d * static_cast<int32_t>(sizeof(typename E::Type)) + 16);
  const int32_t ring = RingOf(grid.x * grid.y * grid.z, part);
  LaunchEarly(AttendSplit<E, kUnits, kWhole, kPairsAre>, grid, kThreads, SplitArgs{args, ring}, stream, ring * part);
}
template <typename E, int32_t kUnits>
void LaunchUnits(const AttendArgs& args, Stream stream) {
  const int32_t d = args.cache.arena.head_dim;
  if (args.slopes != nullptr) return LaunchPairs<E, kUnits, false, Pairs::kNoneButSlopes>(args, stream);
  if (d != kUnit * kUnits) return LaunchPairs<E, kUnits, false, Pairs::kAsSaid>(args, stream);
  if (args.rope.rotary_dims != d) return LaunchPairs<E, kUnits, true, Pairs::kAsSaid>(args, stream);
  if (args.rope.halves != 0) return LaunchPairs<E, kUnits, true, Pairs::kHalves>(args, stream);
  LaunchPairs<E, kUnits, true, Pairs::kNeighbours>(args, stream);
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
