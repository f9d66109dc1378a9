// y = x W^T for the few rows of decode and weights of F32 and F16: bound by reading W, once for up to eight rows of x.
// Other weights are exact in BF16: BF16 itself is linear_rows_wide.cc's, and codes are linear_rows_small.cc's.
//
// A team of 32 makes one output; thread i takes columns 16 i .., 512 further on each time, so that a team reads 512
// neighbouring columns at once:
//
//   W row o    | 16 cols of thread 0 | thread 1 | ... | thread 31 | thread 0 | ...
//   x row t    the same columns, from L1: the four teams of a block and all blocks read the same rows
//
// Sums run over a thread's columns in order, then over the team's tree: the same for any number of rows. Block (x, y):
// outputs 4 x .., rows 8 y ..

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/reduce.h"
#include "engine/ops/gpu/weights.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 128;
constexpr int32_t kOutputs = kThreads / kTeam;
constexpr int32_t kRows = 8;

template <Element kType>
EBB_KERNEL(kThreads)
MultiplyRows(LinearArgs a) {
  const int32_t output = BlockX() * kOutputs + ThreadIndex() / kTeam;
  const int32_t lane = ThreadIndex() % kTeam;
  const int32_t first = BlockY() * kRows;
  const int32_t rows = a.rows - first < kRows ? a.rows - first : kRows;
  const float* const x = a.x + int64_t{first} * a.w.cols;
  float sum[kRows] = {};
  if (output < a.w.rows) {
    for (int32_t column = kColumns * lane; column < a.w.cols; column += kColumns * kTeam) {
      float weight[kColumns];
      Weights<kType>::Read(a.w, output, column, weight);
      EBB_UNROLL
      for (int32_t t = 0; t < kRows; ++t) {
        if (t >= rows) continue;
        float in[kColumns];
        KvF32::ReadEight(x + int64_t{t} * a.w.cols + column, in);
        KvF32::ReadEight(x + int64_t{t} * a.w.cols + column + 8, in + 8);
        EBB_UNROLL
        for (int i = 0; i < kColumns; ++i) sum[t] = MultiplyAdd(weight[i], in[i], sum[t]);
      }
    }
  }
  EBB_UNROLL
  for (int32_t t = 0; t < kRows; ++t) {
    if (t >= rows) continue;
    const float total = ReduceTeam(sum[t], Plus());
    if (lane != 0 || output >= a.w.rows) continue;
    float* const y = a.y + (first + t) * a.y_stride + output;
    const float biased = a.bias == nullptr ? total : total + a.bias[output];
    *y = a.add != 0 ? *y + biased : biased;
  }
}

}  // namespace

void LaunchLinearRows(const LinearArgs& args, Stream stream) {
  const Grid grid = {(args.w.rows + kOutputs - 1) / kOutputs, (args.rows + kRows - 1) / kRows};
  switch (args.w.type) {
    case Element::kF32:
      return Launch(MultiplyRows<Element::kF32>, grid, kThreads, args, stream);
    case Element::kF16:
      return Launch(MultiplyRows<Element::kF16>, grid, kThreads, args, stream);
    case Element::kBf16:
      return LaunchLinearRowsWide({.of = {args}, .count = 1}, stream);
    case Element::kQ8:
    case Element::kQ4:
    case Element::kQ4K:
    case Element::kQ5K:
    case Element::kQ6K:
      return LaunchLinearRowsSmall({.of = {args}, .count = 1}, stream);
    case Element::kFp8:
      return;  // no weights
  }
}

void LaunchLinearRowsTogether(const LinearsArgs& args, Stream stream) {
  const Element type = args.of[0].w.type;
  bool is_one_launch = type != Element::kF32 && type != Element::kF16;
  for (int32_t i = 1; i < args.count; ++i) is_one_launch = is_one_launch && args.of[i].w.type == type;
  if (is_one_launch)
    return type == Element::kBf16 ? LaunchLinearRowsWide(args, stream) : LaunchLinearRowsSmall(args, stream);
  for (int32_t i = 0; i < args.count; ++i) LaunchLinearRows(args.of[i], stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
