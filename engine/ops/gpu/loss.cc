// What leaves a lane with those who are evicted (kernels.h, LossArgs): policies/caote.cc, MeasureEviction, on the
// device. Two launches, before Evict frees anybody; block (l, i) of either: lane l of session i. Sessions that do not
// ask cost blocks that return.
//
// ShareLane reads K twice by teams (query_heads.h), for each query head's largest logit and sum, then for what a slot's
// share of the attention is. MeasureLane, which need not know how many query heads there are, reads V twice (values.h),
// for the output of those who stay and for how far it is from those who leave. Nothing of the step's own attention is
// kept for this: few steps are measured, and those that are not pay nothing.
//
//   scratch [lanes, capacity] words   a slot's share, as the bits of a float: the first thread of the slot's team
//   loss    [lanes]                   thread 0

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/query_heads.h"
#include "engine/ops/gpu/reduce.h"
#include "engine/ops/gpu/select.h"
#include "engine/ops/gpu/values.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = kValueThreads;

// Calls use(slot, whether somebody is seen there from `query`, every head's logit), of all slots, by all threads.
template <typename E, int kGroup, typename Use>
EBB_DEVICE void ForLogits(const QueryHeads<kGroup>& queries, const LossArgs& a, const SessionView& session,
                          int32_t lane, int32_t query, const Use& use) {
  const int32_t* const position = session.position + int64_t{lane} * session.capacity;
  for (int32_t begin = 0; begin < session.slots; begin += kThreads / queries.width) {
    const int32_t slot = begin + queries.team;
    const int32_t own = slot < session.slots ? position[slot] : -1;
    const int32_t at = own > query - a.window ? own : -1;
    float logit[kGroup];
    queries.template Multiply<E>(at >= 0, a.cache.arena, session, lane, slot, at, logit);
    EBB_UNROLL
    for (int32_t g = 0; g < kGroup; ++g) {
      logit[g] = Capped(logit[g], a.cap);
      if (a.slopes == nullptr || g >= a.group) continue;
      logit[g] = Lowered(logit[g], a.slopes[lane % a.cache.kv_heads * a.group + g], query - at);
    }
    use(slot, at >= 0, logit);
  }
}

EBB_DEVICE bool IsMeasured(const SessionView& session) { return session.loss != nullptr && session.drop != 0; }

template <typename E, int kGroup>
EBB_KERNEL(kThreads)
ShareLane(LossArgs a) {
  const SessionView& session = a.cache.sessions[BlockY()];
  if (!IsMeasured(session)) return;
  const int32_t lane = BlockX();
  const int32_t d = a.cache.arena.head_dim;
  const int32_t newest = session.placed[int64_t{lane} * session.block_max + session.tokens - 1];
  const int32_t query = session.position[int64_t{lane} * session.capacity + newest];
  const QueryHeads<kGroup> queries(a.rope, a.scale, session.queries + int64_t{lane} * a.group * d, a.group, d, query);

  // Every head's softmax, at first each thread's own part of it.
  float peak[kGroup], weight[kGroup];
  EBB_UNROLL
  for (int32_t g = 0; g < kGroup; ++g) {
    peak[g] = MinusInfinity();
    weight[g] = 0;
  }
  ForLogits<E>(queries, a, session, lane, query, [&](int32_t, bool exists, const float(&logit)[kGroup]) {
    EBB_UNROLL
    for (int32_t g = 0; g < kGroup; ++g) {
      if (!exists || queries.unit != 0 || logit[g] == MinusInfinity()) continue;
      const float higher = Larger(logit[g], peak[g]);
      weight[g] = MultiplyAdd(weight[g], Exp(peak[g] - higher), Exp(logit[g] - higher));
      peak[g] = higher;
    }
  });
  EBB_UNROLL
  for (int32_t g = 0; g < kGroup; ++g) {
    const float highest = ReduceBlock<kThreads>(peak[g], Largest());
    const float all = ReduceBlock<kThreads>(weight[g] * Exp(peak[g] - highest), Plus());
    peak[g] = highest;
    weight[g] = 1 / all;
  }
  int32_t* const share_bits = session.scratch + int64_t{lane} * session.capacity;
  ForLogits<E>(queries, a, session, lane, query, [&](int32_t slot, bool exists, const float(&logit)[kGroup]) {
    float received = 0;
    EBB_UNROLL
    for (int32_t g = 0; g < kGroup; ++g) {
      if (g < a.group) received = MultiplyAdd(Exp(logit[g] - peak[g]), weight[g], received);
    }
    if (queries.unit != 0 || slot >= session.slots) return;
    const float share = exists && received > 0 ? received / static_cast<float>(a.group) : 0.0F;
    share_bits[slot] = static_cast<int32_t>(BitsOf(share));
  });
}

template <typename E>
EBB_KERNEL(kThreads)
MeasureLane(LossArgs a) {
  EBB_SHARED float stays[kHeadDimMax];  // X'
  EBB_SHARED float moved[kHeadDimMax];  // X - X'
  const SessionView& session = a.cache.sessions[BlockY()];
  if (!IsMeasured(session)) return;
  const int32_t lane = BlockX();
  const int32_t d = a.cache.arena.head_dim;
  const int32_t* const share_bits = session.scratch + int64_t{lane} * session.capacity;
  const auto share = [=](int32_t slot) { return FloatOf(static_cast<uint32_t>(share_bits[slot])); };
  const Leaving leaves = WhoLeaves<kThreads>(session, lane);
  double mass = 0;
  double kept = 0;
  for (int32_t slot = ThreadIndex(); slot < session.slots; slot += kThreads)
    (leaves(slot) ? mass : kept) += share(slot);
  mass = ReduceBlock<kThreads>(mass, Plus());
  kept = ReduceBlock<kThreads>(kept, Plus());

  const ValueLane<E> values = {&a.cache, &session, lane, d / 8};
  const auto of_stayers = [=](int32_t slot) {
    return leaves(slot) || !(kept > 0) ? 0.0F : static_cast<float>(share(slot) / kept);
  };
  const auto of_leavers = [=](int32_t slot) {
    return leaves(slot) ? static_cast<float>(share(slot) / (kept + mass)) : 0.0F;
  };
  Average(values, of_stayers, stays);
  AddDifferences(values, of_leavers, stays, moved);
  double error = 0;
  double output = 0;
  for (int32_t c = ThreadIndex(); c < d; c += kThreads) {
    const double x = static_cast<double>(stays[c]) + moved[c];
    error += static_cast<double>(moved[c]) * moved[c];
    output += x * x;
  }
  error = ReduceBlock<kThreads>(error, Plus());
  output = ReduceBlock<kThreads>(output, Plus());
  if (ThreadIndex() == 0) session.loss[lane] = {mass, kept > 0 ? Sqrt(error) : 0.0, Sqrt(output)};
}

template <typename E>
void LaunchShares(const LossArgs& args, const Grid& grid, Stream stream) {
  if (args.group == 1) return Launch(ShareLane<E, 1>, grid, kThreads, args, stream);
  if (args.group == 2) return Launch(ShareLane<E, 2>, grid, kThreads, args, stream);
  if (args.group <= 4) return Launch(ShareLane<E, 4>, grid, kThreads, args, stream);
  Launch(ShareLane<E, kGroupMax>, grid, kThreads, args, stream);
}
template <typename E>
void LaunchOf(const LossArgs& args, Stream stream) {
  const Grid grid = {args.cache.lanes, args.cache.session_count};
  LaunchShares<E>(args, grid, stream);
  Launch(MeasureLane<E>, grid, kThreads, args, stream);
}

}  // namespace

void LaunchLoss(const LossArgs& args, Stream stream) {
  WithElement(args.cache.arena.type, [&](auto element) { LaunchOf<decltype(element)>(args, stream); });
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
