// Folds the splits of a prompt's rows into their outputs (attend_finish.h; rows that come alone are folded where they
// are attended). Block (t, j): query heads 4 j .. 4 j + 3 of row t, a team each.
//
//   partial_sums  [T, heads, splits, d] floats   | split 0 | split 1 | ... |   four neighbours are one vector
//   partial_stats [T, heads, splits, 2]          | peak, weight | ... |        a thread reads every 32nd
//   out           [T, heads, d]
//   stats         [T, heads, 2]                  peak, 1 / weight: thread 0 of the team

#include <cstdint>

#include "engine/ops/gpu/attend_finish.h"
#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 128;
constexpr int32_t kTeams = kThreads / kTeam;

EBB_KERNEL(kThreads) Merge(AttendArgs a) {
  const int32_t row = a.first_row + BlockX();
  const int32_t heads = a.cache.kv_heads * a.group;
  const int32_t own = BlockY() * kTeams + ThreadIndex() / kTeam;
  const int32_t of_row = own < heads ? own : heads - 1;  // all threads of a warp meet
  FoldSplits(a, a.cache.sessions[a.cache.row_session[row]], int64_t{row} * heads + of_row, own < heads);
}

}  // namespace

void LaunchAttendMerge(const AttendArgs& args, Stream stream) {
  const int32_t heads = args.cache.kv_heads * args.group;
  Launch(Merge, {args.cache.rows, (heads + kTeams - 1) / kTeams}, kThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
