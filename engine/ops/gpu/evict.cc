// Who leaves a lane, and what that changes: one block a lane, of all layers and sessions at once, after the step. The
// host asked for a number and hears of no slot: it knows how many live by arithmetic.
//
// Block (l, i): lane l of session i. Slots at or below the turn of the `drop`-th leave (select.h).
//
// Compacted positions then close up: position p loses the number of freed ones below p, a running sum over positions.
//
//   token, position [lanes, capacity]   | slot 0 | slot 1 | ... |  slot s: thread s % kThreads; -1, -1: left
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

EBB_KERNEL(kThreads) EvictLane(EvictArgs a) {
  const SessionView& session = a.cache.sessions[BlockY()];
  if (session.drop == 0) return;
  const int64_t first = int64_t{BlockX()} * session.capacity;
  int32_t* const token = session.token + first;
  int32_t* const position = session.position + first;
  const float* const score = (session.keep != nullptr ? session.keep : session.score) + TrackAt(session, BlockX(), 0);
  const Unprotected unprotected = FindUnprotected(session, token);
  const bool by_age = session.rule == ScoreRule::kAge;
  const float sign = session.rule == ScoreRule::kShortKeys ? -1.0F : 1.0F;
  const auto turn = [=](int32_t slot) { return TurnOf(token[slot], by_age ? 0 : sign * score[slot], unprotected); };
  const uint64_t last = Find(session.slots, session.drop, turn);

  int32_t* const freed = session.scratch + first;  // by position, where these are compacted
  const int32_t live = session.live + session.tokens;
  if (session.compacted != 0) {
    for (int32_t i = ThreadIndex(); i < live; i += kThreads) freed[i] = 0;
    Barrier();
  }
  for (int32_t slot = ThreadIndex(); slot < session.slots; slot += kThreads) {
    if (turn(slot) > last) continue;
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
