// What a lane's scores learn of a step: attention received, from the logits that attention left behind (4 bytes of
// every slot, query head and row, against 4 d of K and V, and still in L2). Block (x, h, i): slots 128 x .. of KV head
// h of session i, a slot a thread: one owner, no atomics. Rows and heads are added in ascending order, or each head to
// a track of its own.
//
//   logits [T, heads, slots] floats   row, query head:  | 128 x | 128 x + 1 | ... |  slot: thread slot % 128
//   stats  [T, heads, 2]              peak, 1 / weight  read by all
//   score  [lanes, tracks, capacity]  track:            | 128 x | 128 x + 1 | ... |  the slot's same thread

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 128;

EBB_KERNEL(kThreads) ObserveSlots(ObserveArgs args) {
  const AttendArgs& a = args.attended;
  const SessionView& session = a.cache.sessions[a.first_session + BlockZ()];
  const int32_t slot = BlockX() * kThreads + ThreadIndex();
  if (!GoesByAttention(session) || slot >= session.slots) return;
  const int64_t heads = int64_t{a.cache.kv_heads} * a.group;
  const int32_t end = session.first_row + session.tokens;
  const int32_t lane = a.layer * a.cache.kv_heads + BlockY();
  const bool is_last = session.rule == ScoreRule::kLast;
  const int32_t each = session.tracks == 1 ? a.group : 1;  // query heads of a track
  for (int32_t track = 0; track < session.tracks; ++track) {
    float received = 0;
    for (int32_t row = is_last ? end - 1 : session.first_row; row < end; ++row) {
      for (int32_t g = track * each; g < (track + 1) * each; ++g) {
        const int64_t head = row * heads + int64_t{BlockY()} * a.group + g;
        const float logit = a.logits[head * a.cache.slots_max + slot];
        received = MultiplyAdd(Exp(logit - a.stats[2 * head]), a.stats[2 * head + 1], received);
      }
    }
    float* const score = TrackOf(session, lane, track) + slot;
    received = received / static_cast<float>(each);
    *score = is_last ? received : *score + received;
  }
}

}  // namespace

void LaunchObserve(const ObserveArgs& args, Stream stream) {
  const CacheArgs& cache = args.attended.cache;
  Launch(ObserveSlots, {(cache.slots_max + kThreads - 1) / kThreads, cache.kv_heads, cache.session_count}, kThreads,
         args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
