// Layer norm, with a bias. One block a row; who has what, and why it is held, is as in rms_norm.cc, but that a row is
// summed twice: for its mean, then for the squares of what each number differs from it.

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/held_row.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kMany = 4;

EBB_DEVICE float AddNumbers(const Vector16& x, float sum) {
  EBB_UNROLL
  for (int32_t i = 0; i < 4; ++i) sum += FloatOf(x.word[i]);
  return sum;
}

EBB_DEVICE float AddSquares(const Vector16& x, float mean, float sum) {
  EBB_UNROLL
  for (int32_t i = 0; i < 4; ++i) {
    const float from_mean = FloatOf(x.word[i]) - mean;
    sum = MultiplyAdd(from_mean, from_mean, sum);
  }
  return sum;
}

EBB_DEVICE Vector16 Normed(const Vector16& x, float mean, float scale, const Vector16& weight, const Vector16& bias) {
  Vector16 y;
  EBB_UNROLL
  for (int32_t i = 0; i < 4; ++i) {
    const float scaled = (FloatOf(x.word[i]) - mean) * scale;
    y.word[i] = BitsOf(MultiplyAdd(scaled, FloatOf(weight.word[i]), FloatOf(bias.word[i])));
  }
  return y;
}

template <int32_t kHeld>
EBB_KERNEL(kNormThreads)
NormRow(LayerNormArgs a) {
  const int32_t vectors = a.n / 4;
  const Vector16* const x = reinterpret_cast<const Vector16*>(a.x + int64_t{BlockX()} * a.n);
  const Vector16* const weight = reinterpret_cast<const Vector16*>(a.weight);
  const Vector16* const bias = reinterpret_cast<const Vector16*>(a.bias);
  Vector16* const y = reinterpret_cast<Vector16*>(a.y + int64_t{BlockX()} * a.n);
  Vector16 held[kHeld] = {};
  Vector16 weights[kHeld] = {};
  Vector16 biases[kHeld] = {};
  Hold(weight, vectors, weights);
  Hold(bias, vectors, biases);
  WaitForEarlier();
  LetLaterBegin();
  Hold(x, vectors, held);
  const int32_t rest = ThreadIndex() + kHeld * kNormThreads;  // the first that is not held
  float sum = 0;
  EBB_UNROLL
  for (int32_t j = 0; j < kHeld; ++j) sum = AddNumbers(held[j], sum);
  for (int32_t i = rest; i < vectors; i += kNormThreads) sum = AddNumbers(x[i], sum);
  const float mean = ReduceBlock<kNormThreads>(sum, Plus()) / static_cast<float>(a.n);
  float squares = 0;
  EBB_UNROLL
  for (int32_t j = 0; j < kHeld; ++j) {  // what lies past the row is no number of it
    if (ThreadIndex() + j * kNormThreads < vectors) squares = AddSquares(held[j], mean, squares);
  }
  for (int32_t i = rest; i < vectors; i += kNormThreads) squares = AddSquares(x[i], mean, squares);
  const float variance = ReduceBlock<kNormThreads>(squares, Plus()) / static_cast<float>(a.n);
  const float scale = InverseSqrt(variance + a.eps);
  EBB_UNROLL
  for (int32_t j = 0; j < kHeld; ++j) {
    const int32_t i = ThreadIndex() + j * kNormThreads;
    if (i < vectors) y[i] = Normed(held[j], mean, scale, weights[j], biases[j]);
  }
  for (int32_t i = rest; i < vectors; i += kNormThreads) y[i] = Normed(x[i], mean, scale, weight[i], bias[i]);
}

}  // namespace

void LaunchLayerNorm(const LayerNormArgs& args, Stream stream) {
  if (args.n <= kNormFewNumbers) return LaunchEarly(NormRow<kNormFew>, {args.rows}, kNormThreads, args, stream);
  LaunchEarly(NormRow<kMany>, {args.rows}, kNormThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
