// Folds the splits of a query head into its output, in ascending order (kernels.h, AttendArgs). Block (t, j): query
// heads 4 j .. 4 j + 3 of row t, a team each; its thread c takes components 4 c .. 4 c + 3, then 128 further on.
//
//   peak   = largest of the splits' peaks
//   weight = sum over splits of weight_c e^(peak_c - peak)
//   out    = sum over splits of sums_c e^(peak_c - peak) / weight; zeros where the row saw nothing
//
//   partial_sums  [T, heads, splits, d] floats   | split 0 | split 1 | ... |   four neighbours are one vector
//   partial_stats [T, heads, splits, 2]          | peak, weight | ... |        all threads read all of them
//   out           [T, heads, d]
//   stats         [T, heads, 2]                  peak, 1 / weight: thread 0

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 128;
constexpr int32_t kTeams = kThreads / kTeam;

EBB_KERNEL(kThreads) Merge(AttendArgs a) {
  const int32_t d = a.cache.arena.head_dim;
  const int32_t row = a.first_row + BlockX();
  const int32_t heads = a.cache.kv_heads * a.group;
  const int32_t of_row = BlockY() * kTeams + ThreadIndex() / kTeam;
  if (of_row >= heads) return;
  const int64_t head = int64_t{row} * heads + of_row;
  const SessionView& session = a.cache.sessions[a.cache.row_session[row]];
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
  if (ThreadIndex() % kTeam == 0) {
    a.stats[2 * head] = weight > 0 ? peak : 0.0F;
    a.stats[2 * head + 1] = share;
  }
}

}  // namespace

void LaunchAttendMerge(const AttendArgs& args, Stream stream) {
  const int32_t heads = args.cache.kv_heads * args.group;
  Launch(Merge, {args.cache.rows, (heads + kTeams - 1) / kTeams}, kThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
