// Paged attention of one query row over one split of a lane, all query heads of the KV head at once, keys rotated in
// registers while they are read. Block (c, h, t): split c (slots 128 c .. 128 c + 127) of KV head h of row t.
//
// Keys are read by teams, a slot each, that have all query heads in their registers (query_heads.h).
//
// Then each query head has its logits of the split in shared memory: its largest, e^(logit - largest) and their sum
// are a team of 32's; and V is read in rows of d / 8 threads, eight components each, as many slots at once as there are
// threads. A slot that this row may not see is never read: its bytes may be anything.
//
// Of bytes, a sum meets its scale when it is complete: a logit that of K, a weight that of V.
// Sums are over slots in a fixed order within the split, whoever else is in the step.

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/query_heads.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 128;

template <typename E, int kGroup>
EBB_KERNEL(kThreads)
AttendSplit(AttendArgs a) {
  EBB_SHARED float share[kGroup][kSplitSlots];  // logits, then weights
  EBB_SHARED int32_t seen[kSplitSlots];
  EBB_SHARED float sums[kThreads][8];

  const CacheArgs& cache = a.cache;
  const int32_t row = a.first_row + BlockZ();
  const int32_t head = BlockY();
  const SessionView& session = cache.sessions[cache.row_session[row]];
  const int32_t first = BlockX() * kSplitSlots;
  if (first >= session.slots) return;
  const int32_t slots = session.slots - first < kSplitSlots ? session.slots - first : kSplitSlots;
  const int32_t lane = a.layer * cache.kv_heads + head;
  const int32_t d = cache.arena.head_dim;
  const int32_t thread = ThreadIndex();
  const int32_t* const position = session.position + int64_t{lane} * session.capacity;
  const int32_t query = position[session.placed[int64_t{lane} * session.block_max + row - session.first_row]];

  const QueryHeads<kGroup> queries(a.rope, a.scale, a.q + row * a.q_stride + int64_t{head} * a.group * d, a.group, d,
                                   query);
  for (int32_t i = queries.team; i < kSplitSlots; i += kThreads / queries.width) {
    const int32_t at = i < slots ? position[first + i] : -1;
    const bool visible = at >= 0 && at <= query;
    float logit[kGroup];
    queries.template Multiply<E>(visible, cache.arena, session, lane, first + i, at, logit);
    EBB_UNROLL
    for (int32_t g = 0; g < kGroup; ++g) {
      if (queries.unit == 0) share[g][i] = visible ? logit[g] : MinusInfinity();
    }
    if (queries.unit == 0) seen[i] = visible ? 1 : 0;
  }
  Barrier();

  const int64_t heads = int64_t{cache.kv_heads} * a.group;
  const int64_t first_head = row * heads + int64_t{head} * a.group;
  if (a.logits != nullptr && thread < slots) {
    for (int32_t g = 0; g < a.group; ++g) {
      a.logits[(first_head + g) * cache.slots_max + first + thread] = share[g][thread];
    }
  }
  Barrier();

  // Softmax of the split, a head a team.
  const int32_t member = thread % kTeam;
  for (int32_t begin = 0; begin < kGroup; begin += kThreads / kTeam) {
    const int32_t own = begin + thread / kTeam;
    const int32_t g = own < kGroup ? own : kGroup - 1;  // all threads of a warp meet
    float peak = MinusInfinity();
    for (int32_t i = member; i < kSplitSlots; i += kTeam) peak = Larger(share[g][i], peak);
    peak = ReduceTeam(peak, Largest());
    float weight = 0;
    float e[kSplitSlots / kTeam] = {};
    EBB_UNROLL
    for (int32_t i = 0; i < kSplitSlots / kTeam; ++i) {
      const float logit = share[g][member + kTeam * i];
      e[i] = seen[member + kTeam * i] != 0 ? Exp(logit - peak) : 0;
      weight += e[i];
    }
    weight = ReduceTeam(weight, Plus());
    if (own >= kGroup) continue;
    EBB_UNROLL
    for (int32_t i = 0; i < kSplitSlots / kTeam; ++i) share[g][member + kTeam * i] = e[i];
    if (member == 0 && g < a.group) {
      float* const stats = a.partial_stats + ((first_head + g) * a.splits + BlockX()) * 2;
      stats[0] = peak;
      stats[1] = weight;
    }
  }
  Barrier();

  // Values: eight components a thread, as many slots at once as there are threads for.
  const int32_t chunks = d / 8;
  const int32_t stripes = kThreads / chunks;
  const int32_t chunk = thread % chunks;
  const int32_t stripe = thread / chunks;
  float sum[kGroup][8] = {};
  if (stripe < stripes) {
    for (int32_t i = stripe; i < slots; i += stripes) {
      if (seen[i] == 0) continue;
      float value[8];
      const SlotRows<E> rows = RowsOf<E>(cache.arena, session, lane, first + i);
      E::ReadEight(rows.v + 8 * chunk, value);
      const float scale = rows.Scales().v;
      EBB_UNROLL
      for (int32_t g = 0; g < kGroup; ++g) {
        const float weight = share[g][i] * scale;
        EBB_UNROLL
        for (int32_t c = 0; c < 8; ++c) sum[g][c] = MultiplyAdd(weight, value[c], sum[g][c]);
      }
    }
  }
  EBB_UNROLL
  for (int32_t g = 0; g < kGroup; ++g) {
    if (g >= a.group) continue;
    EBB_UNROLL
    for (int32_t c = 0; c < 8; ++c) sums[thread][c] = sum[g][c];
    Barrier();
    float* const out = a.partial_sums + ((first_head + g) * a.splits + BlockX()) * d;
    for (int32_t c = thread; c < d; c += kThreads) {
      float total = 0;
      for (int32_t s = 0; s < stripes; ++s) total += sums[s * chunks + c / 8][c % 8];
      out[c] = total;
    }
    Barrier();
  }
}

template <typename E>
void LaunchOf(const AttendArgs& args, Stream stream) {
  const Grid grid = {args.splits, args.cache.kv_heads, args.cache.rows};
  if (args.group == 1) return Launch(AttendSplit<E, 1>, grid, kThreads, args, stream);
  if (args.group == 2) return Launch(AttendSplit<E, 2>, grid, kThreads, args, stream);
  if (args.group <= 4) return Launch(AttendSplit<E, 4>, grid, kThreads, args, stream);
  Launch(AttendSplit<E, kGroupMax>, grid, kThreads, args, stream);
}

}  // namespace

void LaunchAttend(const AttendArgs& args, Stream stream) {
  WithElement(args.cache.arena.type, [&](auto element) { LaunchOf<decltype(element)>(args, stream); });
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
