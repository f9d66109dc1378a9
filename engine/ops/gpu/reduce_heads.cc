// What the query heads of a KV head together make of a slot (kernels.h, ReduceArgs): policies/rank.cc on the device.
// Block (l, i): lane l of session i; a slot's owner is thread slot % kThreads, in every pass.
//
// Of a union, each track in turn counts whom it would let go, by the rule that decides who leaves; whom all let go is
// wanted by none. Slots are lifted by a sum, so that those who are wanted keep their order.
//
//   from  [lanes, tracks, capacity] floats   track 0  | slot 0 | slot 1 | ...
//                                            track 1  | slot 0 | slot 1 | ...   a slot's thread reads its column
//   keep  [lanes, track 0, capacity]                  | slot 0 | slot 1 | ...   and writes what its heads make of it
//   scratch [lanes, capacity]                by how many tracks the slot was let go

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/reduce.h"
#include "engine/ops/gpu/select.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = kSelectThreads;

// sqrt(a^2 + b^2), without the underflow that float squares have below 1e-19.
EBB_DEVICE float Hypotenuse(float a, float b) {
  return static_cast<float>(Sqrt(static_cast<double>(a) * a + static_cast<double>(b) * b));
}

// The next float towards infinity.
EBB_DEVICE float NextUp(float x) {
  if (x != x || x == Infinity()) return x;
  if (x == 0) return FloatOf(1);
  return FloatOf(x > 0 ? BitsOf(x) + 1 : BitsOf(x) - 1);
}

EBB_KERNEL(kThreads) ReduceLane(ReduceArgs a) {
  const SessionView& session = a.cache.sessions[BlockY()];
  if (session.tracks == 1 || !HasChoice(session)) return;
  const int64_t first = int64_t{BlockX()} * session.capacity;
  const int32_t* const token = session.token + first;
  const int32_t tracks = session.tracks;
  const int64_t at = TrackAt(session, BlockX(), 0);
  const float* const from = (session.modifier == ScoreModifier::kNone ? session.score : session.keep) + at;
  float* const keep = session.keep + at;
  const auto score = [=, capacity = int64_t{session.capacity}](int32_t track, int32_t slot) {
    return from[track * capacity + slot];
  };
  if (session.reduction != HeadReduction::kUnion) {
    const bool squares = session.reduction == HeadReduction::kL2;
    for (int32_t slot = ThreadIndex(); slot < session.slots; slot += kThreads) {
      float all = score(0, slot);
      for (int32_t track = 1; track < tracks; ++track) {
        const float one = score(track, slot);
        if (squares) {
          all = Hypotenuse(one, all);
        } else if (one > all || one != one) {
          all = one;
        }
      }
      keep[slot] = all;
    }
    return;
  }

  int32_t* const let_go = session.scratch + first;  // by how many tracks
  for (int32_t slot = ThreadIndex(); slot < session.slots; slot += kThreads) let_go[slot] = 0;
  const Unprotected unprotected = FindUnprotected(session, token);
  const int32_t leaving = CandidatesOf(session) - session.best;
  for (int32_t track = 0; track < tracks && leaving > 0; ++track) {
    const auto turn = [=](int32_t slot) { return TurnOf(token[slot], score(track, slot), unprotected); };
    const uint64_t last = Find(session.slots, leaving, turn);
    for (int32_t slot = ThreadIndex(); slot < session.slots; slot += kThreads)
      let_go[slot] += turn(slot) <= last ? 1 : 0;
  }

  float ceiling = MinusInfinity();  // of the unwanted
  float floor = Infinity();         // of the wanted
  for (int32_t slot = ThreadIndex(); slot < session.slots; slot += kThreads) {
    if (token[slot] < 0) continue;
    float mean = 0;
    for (int32_t track = 0; track < tracks; ++track) mean += score(track, slot) / static_cast<float>(tracks);
    keep[slot] = mean;
    if (let_go[slot] == tracks && mean > ceiling) ceiling = mean;
    if (let_go[slot] < tracks && mean < floor) floor = mean;
  }
  ceiling = ReduceBlock<kThreads>(ceiling, Largest());
  floor = ReduceBlock<kThreads>(floor, Smallest());
  if (floor > ceiling) return;  // as they are; or nobody is unwanted
  for (int32_t slot = ThreadIndex(); slot < session.slots; slot += kThreads) {
    if (token[slot] < 0 || let_go[slot] == tracks || keep[slot] == Infinity()) continue;
    keep[slot] = NextUp(ceiling + (keep[slot] - floor));
  }
}

}  // namespace

void LaunchReduce(const ReduceArgs& args, Stream stream) {
  Launch(ReduceLane, {args.cache.lanes, args.cache.session_count}, kThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
