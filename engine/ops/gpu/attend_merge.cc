// Folds the splits of a query head into its output, in ascending order (kernels.h, AttendArgs). Block (t, j): query
// head j of row t; thread c takes components c, c + 128, ...
//
//   peak   = largest of the splits' peaks
//   weight = sum over splits of weight_c e^(peak_c - peak)
//   out    = sum over splits of sums_c e^(peak_c - peak) / weight; zeros where the row saw nothing
//
//   partial_sums  [T, heads, splits, d] floats   | split 0 | split 1 | ... |   thread c reads component c of each
//   partial_stats [T, heads, splits, 2]          | peak, weight | ... |        all threads read all of them
//   out           [T, heads, d]                  component c: thread c
//   stats         [T, heads, 2]                  peak, 1 / weight: thread 0

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 128;

EBB_KERNEL(kThreads) Merge(AttendArgs a) {
  const int32_t d = a.cache.arena.head_dim;
  const int32_t row = a.first_row + BlockX();
  const int64_t head = int64_t{row} * a.cache.kv_heads * a.group + BlockY();
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
  for (int32_t i = ThreadIndex(); i < d; i += kThreads) {
    float sum = 0;
    for (int32_t c = 0; c < splits; ++c) {
      if (stats[2 * c + 1] > 0) {
        sum = MultiplyAdd(a.partial_sums[(head * a.splits + c) * d + i], Exp(stats[2 * c] - peak), sum);
      }
    }
    a.out[head * d + i] = sum * share;
  }
  if (ThreadIndex() == 0) {
    a.stats[2 * head] = weight > 0 ? peak : 0.0F;
    a.stats[2 * head + 1] = share;
  }
}

}  // namespace

void LaunchAttendMerge(const AttendArgs& args, Stream stream) {
  Launch(Merge, {args.cache.rows, int64_t{args.cache.kv_heads} * args.group}, kThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
