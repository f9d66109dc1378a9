// Root-mean-square norm. One block a row; thread i takes vectors i, i + 512, ... of four components.
//
//   x, y   [rows][n] float32   row of the block:  | 0-3 | 4-7 | ... | 2044-2047 | 2048-2051 | ... |
//                              thread                0     1               511        0
//   weight [n]                 alike, the same for all rows
//
// A decode step has few rows, and each is waiting for memory, most of all for its weights, which the step's other
// weights have pushed out: so a thread asks at once for all it needs of x and of the weights, up to kHeld vectors, and
// keeps them until the sum of squares is known. What a longer row has beyond is read twice.
//
// The sum goes over teams of 32, then team after team.

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/held_row.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kMany = 8;

EBB_DEVICE float AddSquares(const Vector16& x, float sum) {
  EBB_UNROLL
  for (int32_t i = 0; i < 4; ++i) sum = MultiplyAdd(FloatOf(x.word[i]), FloatOf(x.word[i]), sum);
  return sum;
}

EBB_DEVICE void Write(const Vector16& x, float scale, const Vector16& weight, bool add, Vector16& y) {
  const Vector16 before = add ? y : Vector16{};
  EBB_UNROLL
  for (int32_t i = 0; i < 4; ++i) {
    const float scaled = FloatOf(x.word[i]) * scale * FloatOf(weight.word[i]);
    y.word[i] = BitsOf(add ? FloatOf(before.word[i]) + scaled : scaled);
  }
}

template <int32_t kHeld>
EBB_KERNEL(kNormThreads)
NormRow(RmsNormArgs a) {
  const int32_t vectors = a.n / 4;
  const Vector16* const x = reinterpret_cast<const Vector16*>(a.x + int64_t{BlockX()} * a.n);
  const Vector16* const weight = reinterpret_cast<const Vector16*>(a.weight);
  Vector16* const y = reinterpret_cast<Vector16*>(a.y + int64_t{BlockX()} * a.n);
  Vector16 held[kHeld] = {};
  Vector16 weights[kHeld] = {};
  Hold(weight, vectors, weights);
  WaitForEarlier();
  LetLaterBegin();
  Hold(x, vectors, held);
  float squares = 0;
  EBB_UNROLL
  for (int32_t j = 0; j < kHeld; ++j) squares = AddSquares(held[j], squares);
  for (int32_t i = ThreadIndex() + kHeld * kNormThreads; i < vectors; i += kNormThreads)
    squares = AddSquares(x[i], squares);
  const float mean = ReduceBlock<kNormThreads>(squares, Plus()) / static_cast<float>(a.n);
  const float scale = InverseSqrt(mean + a.eps);
  EBB_UNROLL
  for (int32_t j = 0; j < kHeld; ++j) {
    const int32_t i = ThreadIndex() + j * kNormThreads;
    if (i < vectors) Write(held[j], scale, weights[j], a.add != 0, y[i]);
  }
  for (int32_t i = ThreadIndex() + kHeld * kNormThreads; i < vectors; i += kNormThreads) {
    Write(x[i], scale, weight[i], a.add != 0, y[i]);
  }
}

}  // namespace

void LaunchRmsNorm(const RmsNormArgs& args, Stream stream) {
  if (args.n <= kNormFewNumbers) return LaunchEarly(NormRow<kNormFew>, {args.rows}, kNormThreads, args, stream);
  LaunchEarly(NormRow<kMany>, {args.rows}, kNormThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
