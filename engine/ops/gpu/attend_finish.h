// What is done with a row and KV head when all splits have been attended: their sums folded into the output, in
// ascending order, and the attention that each slot received added to its score. The block that comes last does it, so
// that no launch waits for another; it finds what others wrote in L2.

#ifndef EBB_ENGINE_OPS_GPU_ATTEND_FINISH_H_
#define EBB_ENGINE_OPS_GPU_ATTEND_FINISH_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/numbers.h"

namespace ebb::gpu::EBB_GPU_TARGET {

// Folds the splits of query head `head` of [T * H * G], by a team, whose thread c takes components 4 c .. 4 c + 3, then
// 128 further on:
//
//   peak   = largest of the splits' peaks
//   weight = sum over splits of weight_c e^(peak_c - peak)
//   out    = sum over splits of sums_c e^(peak_c - peak) / weight; zeros where the row saw nothing
//
// Returns what it leaves in stats: peak, 1 / weight.
struct HeadStats {
  float peak, share;
};
EBB_DEVICE HeadStats FoldSplits(const AttendArgs& a, const SessionView& session, int64_t head) {
  const int32_t d = a.cache.arena.head_dim;
  const int32_t splits = (session.slots + a.split_slots - 1) / a.split_slots;
  const float* const stats = a.partial_stats + head * a.splits * 2;
  float peak = MinusInfinity();
  for (int32_t c = 0; c < splits; ++c) peak = Larger(stats[2 * c], peak);
  float weight = 0;
  for (int32_t c = 0; c < splits; ++c) {
    if (stats[2 * c + 1] > 0) weight = MultiplyAdd(stats[2 * c + 1], Exp(stats[2 * c] - peak), weight);
  }
  const float share = weight > 0 ? 1.0F / weight : 0.0F;
  const Vector16* const sums = reinterpret_cast<const Vector16*>(a.partial_sums + head * a.splits * d);
  for (int32_t i = ThreadIndex() % kTeam; i < d / 4; i += kTeam) {
    float sum[4] = {};
    for (int32_t c = 0; c < splits; ++c) {
      const Vector16 four = sums[c * (d / 4) + i];  // read whether it counts or not, so that many are under way
      const bool counts = stats[2 * c + 1] > 0;
      const float factor = Exp(stats[2 * c] - peak);
      EBB_UNROLL
      for (int32_t j = 0; j < 4; ++j) sum[j] = counts ? MultiplyAdd(FloatOf(four.word[j]), factor, sum[j]) : sum[j];
    }
    Vector16 out;
    EBB_UNROLL
    for (int32_t j = 0; j < 4; ++j) out.word[j] = BitsOf(sum[j] * share);
    reinterpret_cast<Vector16*>(a.out + head * d)[i] = out;
  }
  const HeadStats left = {weight > 0 ? peak : 0.0F, share};
  if (ThreadIndex() % kTeam == 0) {
    a.stats[2 * head] = left.peak;
    a.stats[2 * head + 1] = left.share;
  }
  return left;
}

// The scores of a lane, from the logits of its session's one row: four neighbouring slots a thread, heads in ascending
// order, or each head to a track of its own. A slot has one owner: no atomics.
template <int32_t kThreads>
EBB_DEVICE void ObserveLane(const AttendArgs& a, const SessionView& session, int64_t first_head, int32_t lane,
                            const HeadStats* of_head) {
  const int32_t each = session.tracks == 1 ? a.group : 1;  // query heads of a track
  for (int32_t track = 0; track < session.tracks; ++track) {
    float* const score = TrackOf(session, lane, track);
    for (int32_t slot = 4 * ThreadIndex(); slot < session.slots; slot += 4 * kThreads) {
      float received[4] = {};
      for (int32_t g = track * each; g < (track + 1) * each; ++g) {
        const Vector16 logits =
            *reinterpret_cast<const Vector16*>(a.logits + (first_head + g) * a.cache.slots_max + slot);
        EBB_UNROLL
        for (int32_t i = 0; i < 4; ++i) {
          received[i] = MultiplyAdd(Exp(FloatOf(logits.word[i]) - of_head[g].peak), of_head[g].share, received[i]);
        }
      }
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        if (slot + i >= session.slots) continue;
        const float mean = received[i] / static_cast<float>(each);
        score[slot + i] = session.rule == ScoreRule::kLast ? mean : score[slot + i] + mean;
      }
    }
  }
}

// By all threads of a block that has attended one split of `row`. REQUIRES: the session brings no other row.
template <int32_t kThreads>
EBB_DEVICE void FinishRow(const AttendArgs& a, const SessionView& session, int32_t row, int32_t head) {
  EBB_SHARED int32_t is_last;
  EBB_SHARED HeadStats of_head[kGroupMax];
  int32_t* const arrived = a.arrived + int64_t{row} * a.cache.kv_heads + head;
  const int32_t splits = (session.slots + a.split_slots - 1) / a.split_slots;
  FenceDevice();
  Barrier();
  if (ThreadIndex() == 0) is_last = AddDevice(arrived, 1) == splits - 1 ? 1 : 0;
  Barrier();
  if (is_last == 0) return;
  FenceDevice();
  if (ThreadIndex() == 0) *arrived = 0;  // for the next launch
  const int64_t first_head = (int64_t{row} * a.cache.kv_heads + head) * a.group;
  for (int32_t g = ThreadIndex() / kTeam; g < a.group; g += kThreads / kTeam) {
    const HeadStats stats = FoldSplits(a, session, first_head + g);
    if (ThreadIndex() % kTeam == 0) of_head[g] = stats;
  }
  if (a.logits == nullptr || !GoesByAttention(session)) return;
  Barrier();
  ObserveLane<kThreads>(a, session, first_head, a.layer * a.cache.kv_heads + head, of_head);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_ATTEND_FINISH_H_
