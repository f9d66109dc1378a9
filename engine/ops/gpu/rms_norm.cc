// Root-mean-square norm. One block a row; thread i takes components i, i + 256, ...
//
//   x, y   [rows][n] float32   row of the block:  | 0 | 1 | ... | 255 | 256 | ... |   component i: thread i % 256
//   weight [n]                 alike, the same for all rows
//
// x is read twice, the second time out of L1; between, the sum of squares goes over teams of 32, then team after team.

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;

EBB_KERNEL(kThreads) NormRow(RmsNormArgs a) {
  const float* const x = a.x + int64_t{BlockX()} * a.n;
  float* const y = a.y + int64_t{BlockX()} * a.n;
  float squares = 0;
  for (int32_t i = ThreadIndex(); i < a.n; i += kThreads) squares = MultiplyAdd(x[i], x[i], squares);
  const float mean = ReduceBlock<kThreads>(squares, Plus()) / static_cast<float>(a.n);
  const float scale = InverseSqrt(mean + a.eps);
  for (int32_t i = ThreadIndex(); i < a.n; i += kThreads) y[i] = x[i] * scale * a.weight[i];
}

}  // namespace

void LaunchRmsNorm(const RmsNormArgs& args, Stream stream) { Launch(NormRow, {args.rows}, kThreads, args, stream); }

}  // namespace ebb::gpu::EBB_GPU_TARGET
