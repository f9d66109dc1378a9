// Seats the step's tokens in the lowest-numbered free slots of a lane. Block (l, i): lane l of session i; each thread
// has a run of neighbouring slots, so that what lies before a thread is what threads before it have.
//
//   token    | 7 -1  3 | -1 -1  5 | 9  8 -1 |      runs of three threads; -1 is free
//   free       1         2          1
//   before     0         1          3              so the second thread seats tokens 1 and 2 of the step

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 128;

EBB_KERNEL(kThreads) PlaceTokens(PlaceArgs a) {
  const SessionView& session = a.cache.sessions[BlockY()];
  const int64_t first = int64_t{BlockX()} * session.capacity;
  int32_t* const token = session.token + first;
  const int32_t run = (session.slots + kThreads - 1) / kThreads;
  const int32_t begin = ThreadIndex() * run;
  const int32_t end = begin + run < session.slots ? begin + run : session.slots;
  int32_t free = 0;
  for (int32_t slot = begin; slot < end; ++slot) free += token[slot] < 0 ? 1 : 0;
  int32_t index = SumBefore<kThreads>(free);
  for (int32_t slot = begin; slot < end && index < session.tokens; ++slot) {
    if (token[slot] >= 0) continue;
    token[slot] = session.first_token + index;
    session.position[first + slot] = (session.compacted != 0 ? session.live : session.first_token) + index;
    for (int32_t track = 0; track < session.tracks; ++track) TrackOf(session, BlockX(), track)[slot] = 0;
    session.placed[int64_t{BlockX()} * session.block_max + index] = slot;
    ++index;
  }
}

}  // namespace

void LaunchPlace(const PlaceArgs& args, Stream stream) {
  Launch(PlaceTokens, {args.cache.lanes, args.cache.session_count}, kThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
