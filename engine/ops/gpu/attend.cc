// Paged attention of rows that come alone over their lanes, split by split, all query heads of a KV head at once, in
// floats, keys rotated in registers: of caches whose numbers are more than BF16 holds, F32 and F16. Others go to
// attend_tensor.cc. Block (c, h, t): split c (slots 256 c .. 256 c + 255, the last one up to 16 more) of KV head h of
// row t.
//
// K of the split, then V, goes by in stages of up to 64 slots, copied to a ring in shared memory while others are
// computed: what is on its way hides behind no registers.
//
//   stages   K 0 | K 1 | K 2 | K 3 | V 0 | V 1 | V 2 | V 3        ring   stage s lies in part s % kRing
//                                  ^ softmax of the split, while V is on its way
//
//   K   a slot is read by a team of d / 16 threads that have all query heads in their registers (query_heads.h)
//   V   in rows of d / 8 threads, eight components each, as many slots at once as there are threads
//
// The block that comes last of a row and KV head folds the splits and tells the scores (attend_finish.h).
//
// A slot that this row may not see counts for nothing, whatever its bytes are. Sums are over slots in a fixed order
// within the split, whoever else is in the step.

#include <cstdint>

#include "engine/ops/gpu/attend_finish.h"
#include "engine/ops/gpu/attend_split.h"
#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/query_heads.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 128;
constexpr int32_t kStageBytes = 16 << 10;  // at most
constexpr int32_t kRing = kSharedMax < 80 << 10 ? 3 : 4;
constexpr int32_t kPadded = kThreads + 4;  // so that components of a thread lie in different banks

// Slots of a stage, a whole part of a page.
template <typename E>
EBB_DEVICE int32_t StageSlots(int32_t d) {
  int32_t slots = kPageSlots;
  while (slots * d * static_cast<int32_t>(sizeof(typename E::Type)) > kStageBytes) slots /= 2;
  return slots;
}

// kLowers: by slopes, which most models do without.
template <typename E, int kGroup, bool kLowers>
EBB_KERNEL(kThreads)
AttendSplit(AttendArgs a) {
  struct alignas(kGroup % 4 == 0 ? 16 : 4) OfHeads {
    float of[kGroup];
  };
  EBB_SHARED OfHeads share[kSplitSlotsMax];  // logits, then weights
  EBB_SHARED int32_t at[kSplitSlotsMax];     // positions, -1 where this row sees nothing
  Vector16* const ring = LaunchShared<Vector16>();
  float* const sums = LaunchShared<float>();  // when the ring is read

  const CacheArgs& cache = a.cache;
  const OwnSplit split(a);
  if (split.slots == 0) return;
  if (IsOutOfSight<kThreads>(a, split)) {
    LeaveOut<kThreads>(a, split);
    return FinishRow<kThreads>(a, split.session, split.row, split.head);
  }
  const int32_t d = cache.arena.head_dim;
  const int32_t thread = ThreadIndex();

  const int32_t stage_slots = StageSlots<E>(d);
  const int32_t row_vectors = d * static_cast<int32_t>(sizeof(typename E::Type)) / 16;
  const int32_t part_vectors = stage_slots * row_vectors;
  const int32_t key_stages = (split.slots + stage_slots - 1) / stage_slots;
  const auto issue = [&](int32_t stage) {
    const bool is_key = stage < key_stages;
    const int32_t begin = (is_key ? stage : stage - key_stages) * stage_slots;
    if (stage < 2 * key_stages) {
      const SlotRows<E> rows = RowsOf<E>(cache.arena, split.session, split.lane, split.first + begin);
      const Vector16* const from = reinterpret_cast<const Vector16*>(is_key ? rows.k : rows.v);
      const int32_t vectors = (split.slots - begin < stage_slots ? split.slots - begin : stage_slots) * row_vectors;
      Vector16* const to = ring + stage % kRing * part_vectors;
      for (int32_t i = thread; i < vectors; i += kThreads) CopyAhead(to + i, from + i);
    }
    CloseCopies();
  };
  for (int32_t stage = 0; stage < kRing - 1; ++stage) issue(stage);

  const int32_t* const position = split.Positions();
  const int32_t query = position[split.OwnSlot()];
  for (int32_t i = thread; i < kSplitSlotsMax; i += kThreads) {
    const int32_t own = i < split.slots ? position[split.first + i] : -1;
    at[i] = own <= query && own > query - a.window ? own : -1;
  }
  const QueryHeads<kGroup> queries(a.rope, a.scale, a.q + split.row * a.q_stride + int64_t{split.head} * a.group * d,
                                   a.group, d, query);

  const int64_t first_head = split.FirstHead(a);
  // Rows of a stage that is whole from now on, and the next in the part of the one before, which is read.
  const auto take = [&](int32_t stage) {
    CopiesArrived<kRing - 2>();
    Barrier();
    issue(stage + kRing - 1);
    return reinterpret_cast<const typename E::Type*>(ring + stage % kRing * part_vectors);
  };
  for (int32_t stage = 0; stage < key_stages; ++stage) {
    const typename E::Type* const rows = take(stage);
    const int32_t begin = stage * stage_slots;
    for (int32_t i = queries.team; i < stage_slots; i += kThreads / queries.width) {
      const int32_t slot = begin + i;
      const bool is_slot = slot < split.slots;  // of the last stage not all are
      const int32_t own_at = is_slot ? at[slot] : -1;
      float dot[kGroup] = {};
      if (own_at >= 0 && queries.has_unit) queries.template AddUnit<E>(rows + i * d, own_at, dot);
      const auto own = queries.ShareSums(dot);
      EBB_UNROLL
      for (int32_t g = 0; g < kGroup; ++g) {
        if (g >= own.count || !is_slot) continue;
        float& logit = share[slot].of[own.first + g];
        logit = own_at >= 0 ? Capped(dot[g], a.cap) : MinusInfinity();
        if constexpr (kLowers) {
          if (own.first + g >= a.group) continue;
          logit = Lowered(logit, a.slopes[split.head * a.group + own.first + g], query - own_at);
        }
      }
    }
  }
  Barrier();
  if (a.logits != nullptr) {
    for (int32_t g = 0; g < a.group; ++g) {
      for (int32_t i = thread; i < split.slots; i += kThreads) {
        a.logits[(first_head + g) * cache.slots_max + split.first + i] = share[i].of[g];
      }
    }
    Barrier();
  }
  // Softmax of the split, a head a team.
  const int32_t member = thread % kTeam;
  constexpr int32_t kOwnSlots = (kSplitSlotsMax + kTeam - 1) / kTeam;
  for (int32_t begin = 0; begin < kGroup; begin += kThreads / kTeam) {
    const int32_t own = begin + thread / kTeam;
    const int32_t g = own < kGroup ? own : kGroup - 1;  // all threads of a warp meet
    float peak = MinusInfinity();
    float e[kOwnSlots];
    EBB_UNROLL
    for (int32_t i = 0; i < kOwnSlots; ++i) {
      const int32_t slot = member + kTeam * i;
      e[i] = slot < split.slots ? share[slot].of[g] : MinusInfinity();
      peak = Larger(e[i], peak);
    }
    peak = ReduceTeam(peak, Largest());
    float weight = 0;
    EBB_UNROLL
    for (int32_t i = 0; i < kOwnSlots; ++i) {
      const int32_t slot = member + kTeam * i;
      e[i] = slot < split.slots && at[slot] >= 0 ? Exp(e[i] - peak) : 0;
      weight += e[i];
    }
    weight = ReduceTeam(weight, Plus());
    if (own >= kGroup) continue;
    EBB_UNROLL
    for (int32_t i = 0; i < kOwnSlots; ++i) {
      const int32_t slot = member + kTeam * i;
      if (slot < split.slots) share[slot].of[g] = e[i];
    }
    if (member == 0 && g < a.group) {
      float* const stats = a.partial_stats + ((first_head + g) * a.splits + BlockX()) * 2;
      stats[0] = peak;
      stats[1] = weight;
    }
  }
  Barrier();

  const int32_t chunks = d / 8;
  const int32_t stripes = kThreads / chunks;
  const int32_t chunk = thread % chunks;
  const int32_t stripe = thread / chunks;
  float sum[kGroup][8] = {};
  for (int32_t stage = key_stages; stage < 2 * key_stages; ++stage) {
    const typename E::Type* const rows = take(stage);
    const int32_t begin = (stage - key_stages) * stage_slots;
    const int32_t end = split.slots - begin < stage_slots ? split.slots - begin : stage_slots;
    for (int32_t i = stripe < stripes ? stripe : end; i < end; i += stripes) {
      if (at[begin + i] < 0) continue;
      float value[8];
      E::ReadEight(rows + i * d + 8 * chunk, value);
      const OfHeads weight = share[begin + i];
      EBB_UNROLL
      for (int32_t g = 0; g < kGroup; ++g) {
        EBB_UNROLL
        for (int32_t c = 0; c < 8; ++c) sum[g][c] = MultiplyAdd(weight.of[g], value[c], sum[g][c]);
      }
    }
  }

  CopiesArrived();
  Barrier();
  EBB_UNROLL
  for (int32_t g = 0; g < kGroup; ++g) {
    EBB_UNROLL
    for (int32_t c = 0; c < 8; ++c) sums[(g * 8 + c) * kPadded + thread] = sum[g][c];
  }
  Barrier();
  for (int32_t i = thread; i < a.group * d; i += kThreads) {
    const int32_t g = i / d;
    const int32_t c = i % d;
    float total = 0;
    for (int32_t s = 0; s < stripes; ++s) total += sums[(g * 8 + c % 8) * kPadded + s * chunks + c / 8];
    a.partial_sums[((first_head + g) * a.splits + BlockX()) * d + c] = total;
  }
  FinishRow<kThreads>(a, split.session, split.row, split.head);
}

template <typename E, int kGroup>
void LaunchGroup(const AttendArgs& args, Stream stream) {
  const int32_t d = args.cache.arena.head_dim;
  const int32_t stage = d * static_cast<int32_t>(sizeof(typename E::Type)) * kPageSlots;
  const int32_t ring = kRing * (stage < kStageBytes ? stage : kStageBytes);
  const int32_t sums = kGroup * 8 * kPadded * static_cast<int32_t>(sizeof(float));
  const Grid grid = {args.splits, args.cache.kv_heads, args.cache.rows};
  const auto kernel = args.slopes != nullptr ? AttendSplit<E, kGroup, true> : AttendSplit<E, kGroup, false>;
  Launch(kernel, grid, kThreads, args, stream, ring > sums ? ring : sums);
}

template <typename E>
void LaunchOf(const AttendArgs& args, Stream stream) {
  if (args.group == 1) return LaunchGroup<E, 1>(args, stream);
  if (args.group == 2) return LaunchGroup<E, 2>(args, stream);
  if (args.group <= 4) return LaunchGroup<E, 4>(args, stream);
  LaunchGroup<E, kGroupMax>(args, stream);
}

}  // namespace

void LaunchAttend(const AttendArgs& args, Stream stream) {
  if (LaidTerms(args.cache.arena.type) == 1) return LaunchAttendTensor(args, stream);
  if (args.cache.arena.type == Element::kF16) return LaunchOf<KvF16>(args, stream);
  LaunchOf<KvF32>(args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
