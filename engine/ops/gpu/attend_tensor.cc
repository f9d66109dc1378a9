// Paged attention of one query row over one split of a lane, all query heads of the KV head at once, on tensor cores,
// of caches whose numbers are exact in BF16: BF16 and bytes. Block (c, h, t): split c (slots 256 c .. 256 c + 255) of
// KV head h of row t.
//
// K of the split, then V, goes by in stages of up to 64 slots, copied to a ring in shared memory while others are
// computed. Rows of a stage are 16 bytes longer than they are, so that what a team reads at once lies in all banks.
//
//   stages   K 0 | K 1 | K 2 | K 3 | V 0 | V 1 | V 2 | V 3        ring   stage s lies in part s % kRing
//                                  ^ softmax of the split, while V is on its way
//
// What comes in floats, queries and weights, is two BF16 that add up to it but for 2^-17 of it: a product has the first
// terms of eight query heads in rows 0 .. 7 of its left side, the second ones in rows 8 .. 15, and both results lie
// with one thread. Keys that are turned become two terms, too.
//
//   logits   [heads' terms] x [8 slots], a unit of 16 components at a time (rope.h): thread 4 g + t has pairs 2 t and
//            2 t + 1 of slot g's unit, so a rotation never leaves its thread. A team takes eight slots, then others.
//   sums     [heads' terms] x [16 components], 16 slots at a time: thread 4 g + t has components 2 g and 2 g + 1 of
//            slots 2 t, 2 t + 1, 2 t + 8, 2 t + 9, of which it makes two products of eight columns, and ends up with
//            components 4 t .. 4 t + 3 of head g. A team takes every fourth unit, of all slots.
//
//   share    a row a head: logits [256] floats; then, in their place, both terms of weights, words of two slots each
//
// A slot that this row may not see counts for nothing, whatever its bytes are. Of bytes, a sum meets its scale when it
// is complete: a logit that of K, a weight that of V. Sums are over slots in a fixed order within the split, whoever
// else is in the step.

#include <cstdint>

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
constexpr int32_t kStageBytes = kStageSlots * (128 * 2 + 16);  // at most
constexpr int32_t kShareStride = kSplitSlots + 8;              // so that heads begin in different banks
constexpr int32_t kSecondTerm = kShareStride / 2;

template <typename E>
EBB_DEVICE constexpr int32_t RowBytes(int32_t d) {
  return d * static_cast<int32_t>(sizeof(typename E::Type)) + 16;
}
// Slots of a stage, a whole part of a page.
template <typename E>
EBB_DEVICE int32_t StageSlotsOf(int32_t d) {
  int32_t slots = kStageSlots;
  while (slots * RowBytes<E>(d) > kStageBytes) slots /= 2;
  return slots;
}

struct Two {
  float first, second;
};
// Two neighbours, as they are stored.
EBB_DEVICE Two ReadTwo(const uint16_t* from) {
  const uint32_t word = *reinterpret_cast<const uint32_t*>(from);
  return {FloatOf(word << 16), FloatOf(word & 0xFFFF0000U)};
}
EBB_DEVICE Two ReadTwo(const int8_t* from) {
  const uint32_t both = *reinterpret_cast<const uint16_t*>(from);
  return {static_cast<float>(static_cast<int8_t>(both & 0xFFU)), static_cast<float>(static_cast<int8_t>(both >> 8))};
}
// Of two numbers that are exact in BF16.
EBB_DEVICE uint32_t PackExact(float low, float high) { return BitsOf(low) >> 16 | (BitsOf(high) & 0xFFFF0000U); }

// Two numbers as two words of two BF16: each rounded, and what that left.
struct Terms {
  uint32_t first, second;
};
EBB_DEVICE Terms TermsOf(float low, float high) {
  const uint32_t first = PackBf16(low, high);
  return {first, PackBf16(low - FloatOf(first << 16), high - FloatOf(first & 0xFFFF0000U))};
}

// Pairs 2 t and 2 t + 1 of a unit.
struct TwoPairs {
  float x[2], y[2];
};
template <typename T, typename Read>
EBB_DEVICE TwoPairs ReadPairs(const T* head, const RopeArgs& rope, int32_t unit, int32_t t, const Read& read) {
  const UnitPlace place = PlaceOf(rope, unit);
  const Two low = read(head + (place.neighbours ? kUnit * unit + 4 * t : place.first + 2 * t));
  const Two high = read(head + (place.neighbours ? kUnit * unit + 4 * t + 2 : place.second + 2 * t));
  if (place.neighbours) return {{low.first, high.first}, {low.second, high.second}};
  return {{low.first, low.second}, {high.first, high.second}};
}
EBB_DEVICE void TurnPairs(TwoPairs& pairs, int32_t position, const uint64_t* turns) {
  EBB_UNROLL
  for (int32_t i = 0; i < 2; ++i) {
    const CosSin turned = Turn(position, turns[i]);
    const float x = pairs.x[i];
    const float y = pairs.y[i];
    pairs.x[i] = MultiplyAdd(-y, turned.sin, x * turned.cos);
    pairs.y[i] = MultiplyAdd(x, turned.sin, y * turned.cos);
  }
}

template <typename E, int32_t kUnits>
EBB_KERNEL(kThreads)
AttendSplit(AttendArgs a) {
  using Type = typename E::Type;
  EBB_SHARED float share[kGroupMax * kShareStride];
  EBB_SHARED int32_t at[kSplitSlots];  // positions, -1 where this row sees nothing
  EBB_SHARED uint64_t turns[kHeadDimMax / 2];
  EBB_SHARED float scale_of_k[E::kScaled ? kSplitSlots : 1];
  EBB_SHARED float scale_of_v[E::kScaled ? kSplitSlots : 1];
  uint32_t* const weights = reinterpret_cast<uint32_t*>(share);
  uint8_t* const ring = LaunchShared<uint8_t>();

  const CacheArgs& cache = a.cache;
  const int32_t row = a.first_row + BlockZ();
  const int32_t head = BlockY();
  const SessionView& session = cache.sessions[cache.row_session[row]];
  const int32_t first = BlockX() * kSplitSlots;
  if (first >= session.slots) return;
  const int32_t slots = session.slots - first < kSplitSlots ? session.slots - first : kSplitSlots;
  const int32_t lane = a.layer * cache.kv_heads + head;
  const int32_t d = cache.arena.head_dim;
  const int32_t units = d / kUnit;
  const int32_t thread = ThreadIndex();
  const int32_t team = thread / kTeam;
  const int32_t g = thread % kTeam / 4;
  const int32_t t = thread % 4;

  const int32_t stage_slots = StageSlotsOf<E>(d);
  const int32_t row_bytes = RowBytes<E>(d);
  const int32_t part_bytes = stage_slots * row_bytes;
  const int32_t vectors = (row_bytes - 16) / 16;
  const int32_t key_stages = (slots + stage_slots - 1) / stage_slots;
  const auto issue = [&](int32_t stage) {
    if (stage < 2 * key_stages) {
      const bool is_key = stage < key_stages;
      const int32_t begin = (is_key ? stage : stage - key_stages) * stage_slots;
      const SlotRows<E> rows = RowsOf<E>(cache.arena, session, lane, first + begin);
      const uint8_t* const from = reinterpret_cast<const uint8_t*>(is_key ? rows.k : rows.v);
      const int32_t count = (slots - begin < stage_slots ? slots - begin : stage_slots) * vectors;
      uint8_t* const to = ring + stage % kRing * part_bytes;
      for (int32_t i = thread; i < count; i += kThreads) {
        CopyAhead(to + i / vectors * row_bytes + i % vectors * 16, from + 16 * i);
      }
    }
    CloseCopies();
  };
  for (int32_t stage = 0; stage < kRing - 1; ++stage) issue(stage);
  // Rows of a stage that is whole from now on, and the next in the part of the one before, which is read.
  const auto take = [&](int32_t stage) {
    CopiesArrived<kRing - 2>();
    Barrier();
    issue(stage + kRing - 1);
    return ring + stage % kRing * part_bytes;
  };

  const int32_t* const position = session.position + int64_t{lane} * session.capacity;
  const int32_t query = position[session.placed[int64_t{lane} * session.block_max + row - session.first_row]];
  for (int32_t i = thread; i < kSplitSlots; i += kThreads) {
    const int32_t own = i < slots ? position[first + i] : -1;
    at[i] = own <= query ? own : -1;
    if constexpr (E::kScaled) {
      const SlotScales scales = i < slots ? RowsOf<E>(cache.arena, session, lane, first + i).Scales() : SlotScales{};
      scale_of_k[i] = scales.k;
      scale_of_v[i] = scales.v;
    }
  }
  for (int32_t i = thread; i < d / 2; i += kThreads) turns[i] = i < a.rope.rotary_dims / 2 ? a.rope.turns[i] : 0;
  Barrier();

  const int64_t heads = int64_t{cache.kv_heads} * a.group;
  const int64_t first_head = row * heads + int64_t{head} * a.group;
  uint32_t q[kUnits][4] = {};
  EBB_UNROLL
  for (int32_t u = 0; u < kUnits; ++u) {
    if (u >= units || g >= a.group) continue;
    const float* const own = a.q + row * a.q_stride + (int64_t{head} * a.group + g) * d;
    TwoPairs pairs = ReadPairs(own, a.rope, u, t, [](const float* from) { return Two{from[0], from[1]}; });
    TurnPairs(pairs, query, turns + kPairs * u + 2 * t);
    const Terms x = TermsOf(a.scale * pairs.x[0], a.scale * pairs.x[1]);
    const Terms y = TermsOf(a.scale * pairs.y[0], a.scale * pairs.y[1]);
    q[u][0] = x.first;
    q[u][1] = x.second;
    q[u][2] = y.first;
    q[u][3] = y.second;
  }

  for (int32_t stage = 0; stage < key_stages; ++stage) {
    const uint8_t* const rows = take(stage);
    for (int32_t tile = team; 8 * tile < stage_slots; tile += kTeams) {
      const int32_t begin = stage * stage_slots + 8 * tile;
      const Type* const k = reinterpret_cast<const Type*>(rows + (8 * tile + g) * row_bytes);
      const int32_t own = at[begin + g];
      float c[4] = {};
      SyncTeam();
      EBB_UNROLL
      for (int32_t u = 0; u < kUnits; ++u) {
        if (u >= units) continue;
        TwoPairs pairs = ReadPairs(k, a.rope, u, t, [](const Type* from) { return ReadTwo(from); });
        if (2 * kPairs * u >= a.rope.rotary_dims) {
          const uint32_t exact[2] = {PackExact(pairs.x[0], pairs.x[1]), PackExact(pairs.y[0], pairs.y[1])};
          MultiplySmallTile(q[u], exact, c);
          continue;
        }
        TurnPairs(pairs, own, turns + kPairs * u + 2 * t);
        const Terms x = TermsOf(pairs.x[0], pairs.x[1]);
        const Terms y = TermsOf(pairs.y[0], pairs.y[1]);
        const uint32_t low[2] = {x.first, y.first};
        const uint32_t high[2] = {x.second, y.second};
        MultiplySmallTile(q[u], low, c);
        MultiplySmallTile(q[u], high, c);
      }
      if (g >= a.group) continue;
      EBB_UNROLL
      for (int32_t i = 0; i < 2; ++i) {
        const int32_t slot = begin + 2 * t + i;
        const float logit = c[i] + c[2 + i];
        share[g * kShareStride + slot] = E::kScaled ? logit * scale_of_k[slot] : logit;
      }
    }
  }
  Barrier();

  // Softmax of the split, a head a team, two slots a thread at a time.
  const int32_t member = thread % kTeam;
  constexpr int32_t kTwos = kSplitSlots / 2 / kTeam;
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
        e[i][j] = at[slot] >= 0 ? share[own * kShareStride + slot] : MinusInfinity();
        if (a.logits != nullptr && is_head && slot < slots) {
          a.logits[(first_head + own) * cache.slots_max + first + slot] = e[i][j];
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
        e[i][j] = at[2 * (member + kTeam * i) + j] >= 0 ? Exp(e[i][j] - peak) : 0;
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
  Barrier();

  constexpr int32_t kOwnUnits = kUnits / kTeams;
  float sum[kOwnUnits][2][4] = {};  // of even components, and of odd ones
  for (int32_t stage = key_stages; stage < 2 * key_stages; ++stage) {
    const uint8_t* const rows = take(stage);
    const int32_t begin = (stage - key_stages) * stage_slots;
    const int32_t end = slots - begin < stage_slots ? slots - begin : stage_slots;
    for (int32_t k = 0; k < end; k += 16) {
      uint32_t weight[4] = {};
      if (g < a.group) {
        const uint32_t* const of_head = weights + g * kShareStride + (begin + k) / 2 + t;
        weight[0] = of_head[0];
        weight[1] = of_head[kSecondTerm];
        weight[2] = of_head[4];
        weight[3] = of_head[kSecondTerm + 4];
      }
      const int32_t slot[4] = {k + 2 * t, k + 2 * t + 1, k + 2 * t + 8, k + 2 * t + 9};
      bool seen[4];
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) seen[i] = at[begin + slot[i]] >= 0;
      EBB_UNROLL
      for (int32_t own = 0; own < kOwnUnits; ++own) {
        const int32_t unit = team + kTeams * own;
        Two v[4] = {};
        EBB_UNROLL
        for (int32_t i = 0; i < 4; ++i) {
          if (unit >= units || !seen[i]) continue;
          v[i] = ReadTwo(reinterpret_cast<const Type*>(rows + slot[i] * row_bytes) + kUnit * unit + 2 * g);
        }
        const uint32_t even[2] = {PackExact(v[0].first, v[1].first), PackExact(v[2].first, v[3].first)};
        const uint32_t odd[2] = {PackExact(v[0].second, v[1].second), PackExact(v[2].second, v[3].second)};
        SyncTeam();
        MultiplySmallTile(weight, even, sum[own][0]);
        MultiplySmallTile(weight, odd, sum[own][1]);
      }
    }
  }
  CopiesArrived();
  if (g >= a.group) return;
  EBB_UNROLL
  for (int32_t own = 0; own < kOwnUnits; ++own) {
    const int32_t unit = team + kTeams * own;
    if (unit >= units) continue;
    float* const to = a.partial_sums + ((first_head + g) * a.splits + BlockX()) * d + kUnit * unit + 4 * t;
    EBB_UNROLL
    for (int32_t i = 0; i < 2; ++i) {
      to[2 * i] = sum[own][0][i] + sum[own][0][2 + i];
      to[2 * i + 1] = sum[own][1][i] + sum[own][1][2 + i];
    }
  }
}

template <typename E, int32_t kUnits>
void LaunchUnits(const AttendArgs& args, Stream stream) {
  const int32_t row_bytes = args.cache.arena.head_dim * static_cast<int32_t>(sizeof(typename E::Type)) + 16;
  const int32_t stage = row_bytes * kStageSlots;
  const Grid grid = {args.splits, args.cache.kv_heads, args.cache.rows};
  Launch(AttendSplit<E, kUnits>, grid, kThreads, args, stream, kRing * (stage < kStageBytes ? stage : kStageBytes));
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
  LaunchOf<KvBf16>(args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
