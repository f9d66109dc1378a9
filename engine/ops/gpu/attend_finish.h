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
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {

// Folds the splits of query head `head` of [T * H * G], by a team, whose thread c takes components 4 c .. 4 c + 3, then
// 128 further on:
//
//   peak   = largest of the splits' peaks
//   weight = sum over splits of weight_c e^(peak_c - peak)
//   out    = sum over splits of sums_c e^(peak_c - peak) / weight; zeros where the row saw nothing
//
// Each thread has the factors of every 32nd split; one that saw nothing is left out, one with what is no number is
// not. Returns what it leaves in stats: peak, 1 / weight. `writes`: alike
// for the team; others meet it and leave nothing.
struct HeadStats {
  float peak, share;
};
EBB_DEVICE HeadStats FoldSplits(const AttendArgs& a, const SessionView& session, int64_t head, bool writes) {
  const int32_t d = a.cache.arena.head_dim;
  const int32_t splits = SplitsOf(session.slots, a.split_slots);
  const int32_t member = ThreadIndex() % kTeam;
  const float* const stats = a.partial_stats + head * a.splits * 2;
  float peak = MinusInfinity();
  for (int32_t c = member; c < splits; c += kTeam) peak = Larger(stats[2 * c], peak);
  peak = ReduceTeam(peak, Largest());
  float weight = 0;
  for (int32_t c = member; c < splits; c += kTeam) {
    if (stats[2 * c + 1] != 0) weight = MultiplyAdd(stats[2 * c + 1], Exp(stats[2 * c] - peak), weight);
  }
  weight = ReduceTeam(weight, Plus());
  const float share = weight > 0 ? 1.0F / weight : 0.0F;
  const Vector16* const sums = reinterpret_cast<const Vector16*>(a.partial_sums + head * a.splits * d);
  for (int32_t first = 0; first < d / 4; first += kTeam) {
    const int32_t i = first + member < d / 4 ? first + member : 0;
    float sum[4] = {};
    for (int32_t begin = 0; begin < splits; begin += kTeam) {
      const int32_t own = begin + member;
      const float factor = own < splits && stats[2 * own + 1] != 0 ? Exp(stats[2 * own] - peak) : 0;
      const int32_t count = splits - begin < kTeam ? splits - begin : kTeam;
      constexpr int32_t kTogether = 8;  // under way at once
      for (int32_t c = 0; c < count; c += kTogether) {
        Vector16 some[kTogether];
        EBB_UNROLL
        for (int32_t k = 0; k < kTogether; ++k) some[k] = sums[(begin + (c + k < count ? c + k : c)) * (d / 4) + i];
        EBB_UNROLL
        for (int32_t k = 0; k < kTogether; ++k) {
          const float times = Shuffle(factor, c + k < count ? c + k : c);
          EBB_UNROLL
          for (int32_t j = 0; j < 4; ++j) {
            if (c + k < count && times != 0) sum[j] = MultiplyAdd(FloatOf(some[k].word[j]), times, sum[j]);
          }
        }
      }
    }
    Vector16 out;
    EBB_UNROLL
    for (int32_t j = 0; j < 4; ++j) out.word[j] = BitsOf(sum[j] * share);
    if (writes && first + member < d / 4) reinterpret_cast<Vector16*>(a.out + head * d)[i] = out;
  }
  const HeadStats left = {weight > 0 ? peak : 0.0F, share};
  if (writes && member == 0) {
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
  constexpr int32_t kTogether = 4;                         // heads whose logits are under way at once
  const int32_t each = session.tracks == 1 ? a.group : 1;  // query heads of a track
  const bool adds = session.rule != ScoreRule::kLast;
  for (int32_t track = 0; track < session.tracks; ++track) {
    float* const score = TrackOf(session, lane, track);
    for (int32_t slot = 4 * ThreadIndex(); slot < session.slots; slot += 4 * kThreads) {
      float before[4], received[4] = {};
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) before[i] = adds && slot + i < session.slots ? score[slot + i] : 0;
      for (int32_t begin = 0; begin < each; begin += kTogether) {
        Vector16 logits[kTogether];
        EBB_UNROLL
        for (int32_t k = 0; k < kTogether; ++k) {
          const int32_t g = track * each + (begin + k < each ? begin + k : begin);
          logits[k] = *reinterpret_cast<const Vector16*>(a.logits + (first_head + g) * a.cache.slots_max + slot);
        }
        EBB_UNROLL
        for (int32_t k = 0; k < kTogether; ++k) {
          if (begin + k >= each) continue;
          const HeadStats head = of_head[track * each + begin + k];
          EBB_UNROLL
          for (int32_t i = 0; i < 4; ++i) {
            received[i] = MultiplyAdd(Exp(FloatOf(logits[k].word[i]) - head.peak), head.share, received[i]);
          }
        }
      }
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        if (slot + i < session.slots) score[slot + i] = before[i] + received[i] / static_cast<float>(each);
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
  const int32_t splits = SplitsOf(session.slots, a.split_slots);
  FenceBlock();
  Barrier();
  if (ThreadIndex() == 0) {  // for all of its block, by the barriers around
    FenceDevice();
    is_last = AddDevice(arrived, 1) == splits - 1 ? 1 : 0;
    FenceDevice();
  }
  Barrier();
  if (is_last == 0) return;
  if (ThreadIndex() == 0) *arrived = 0;  // for the next launch
  const int64_t first_head = (int64_t{row} * a.cache.kv_heads + head) * a.group;
  for (int32_t begin = 0; begin < a.group; begin += kThreads / kTeam) {
    const int32_t own = begin + ThreadIndex() / kTeam;
    const int32_t g = own < a.group ? own : a.group - 1;  // all threads of a warp meet
    const HeadStats stats = FoldSplits(a, session, first_head + g, own < a.group);
    if (own < a.group && ThreadIndex() % kTeam == 0) of_head[g] = stats;
  }
  if (a.logits == nullptr || !GoesByAttention(session)) return;
  Barrier();
  ObserveLane<kThreads>(a, session, first_head, a.layer * a.cache.kv_heads + head, of_head);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_ATTEND_FINISH_H_
