// Who leaves a lane, and what that changes: one block a lane, of all layers and sessions at once, after the step. The
// host asked for a number and hears of no slot: it knows how many live by arithmetic.
//
// Block (l, i): lane l of session i. Slots at or below the turn of the `drop`-th leave (select.h). Who did is told
// where somebody asked, with whatever else the step yields.
//
// Compacted positions then close up: position p loses the number of freed ones below p, a running sum over positions.
//
//   token, position [lanes, capacity]   | slot 0 | slot 1 | ... |  slot s: thread s % kThreads; -1, -1: left
//   left            [lanes, drop]       tokens, in the order of their slots: where a running sum over slots puts them
//   scratch         [lanes, capacity]   | position 0 .. run - 1 | run .. 2 run - 1 | ... |  a run a thread, for the sum

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/reduce.h"
#include "engine/ops/gpu/select.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = kSelectThreads;

// The tokens that leave, in the order of their slots.
EBB_DEVICE void Tell(const SessionView& session, const Leaving& leaves, int32_t* left) {
  int32_t told = 0;
  for (int32_t begin = 0; begin < session.slots; begin += kThreads) {
    const int32_t slot = begin + ThreadIndex();
    const int32_t one = slot < session.slots && leaves(slot) ? 1 : 0;
    const int32_t before = SumBefore<kThreads>(one);
    if (one != 0) left[told + before] = leaves.token[slot];
    told += ReduceBlock<kThreads>(one, Plus());
  }
}

EBB_KERNEL(kThreads) EvictLane(EvictArgs a) {
  const SessionView& session = a.cache.sessions[BlockY()];
  if (session.drop == 0) return;
  const int64_t first = int64_t{BlockX()} * session.capacity;
  int32_t* const token = session.token + first;
  int32_t* const position = session.position + first;
  const Leaving leaves = WhoLeaves(session, BlockX());
  if (session.left != nullptr) Tell(session, leaves, session.left + int64_t{BlockX()} * session.drop);

  int32_t* const freed = session.scratch + first;  // by position, where these are compacted
  const int32_t live = session.live + session.tokens;
  if (session.compacted != 0) {
    for (int32_t i = ThreadIndex(); i < live; i += kThreads) freed[i] = 0;
    Barrier();
  }
  for (int32_t slot = ThreadIndex(); slot < session.slots; slot += kThreads) {
    if (!leaves(slot)) continue;
    if (session.compacted != 0) freed[position[slot]] = 1;
    token[slot] = -1;
    position[slot] = -1;
  }
  if (session.compacted == 0) return;
  Barrier();

  // freed[p] becomes the number of freed positions up to p.
  const int32_t run = (live + kThreads - 1) / kThreads;
  const int32_t begin = ThreadIndex() * run;
  const int32_t end = begin + run < live ? begin + run : live;
  int32_t count = 0;
  for (int32_t i = begin; i < end; ++i) count += freed[i];
  count = SumBefore<kThreads>(count);
  for (int32_t i = begin; i < end; ++i) {
    count += freed[i];
    freed[i] = count;
  }
  Barrier();
  for (int32_t slot = ThreadIndex(); slot < session.slots; slot += kThreads) {
    if (position[slot] >= 0) position[slot] -= freed[position[slot]];
  }
}

}  // namespace

void LaunchEvict(const EvictArgs& args, Stream stream) {
  Launch(EvictLane, {args.cache.lanes, args.cache.session_count}, kThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
