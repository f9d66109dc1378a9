// The gate of the feed-forward part, or its curve alone: y = curve(gate) * up, four neighbours a thread.
//
//   SiLU a / (1 + e^-a); GELU in its tanh form a / (1 + e^(-2 c (a + 0.044715 a^3))) with c = sqrt(2 / pi); ReLU
//
//   gate [T, f] floats   | thread 0: four | thread 1: four | ...  1024 to a block, rows one after another
//   up   [T, f]          | thread 0       | thread 1       | ...  or none: ones
//   y    [T, f]          | thread 0       | thread 1       | ...  may be gate or up: an element has one owner

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;

EBB_DEVICE float Bent(Curve curve, float x) {
  if (curve == Curve::kRelu) return x < 0 ? 0 : x;
  const float t = curve == Curve::kSilu ? -x : x * MultiplyAdd(x * x, 0.044715F, 1.0F) * -1.5957691216F;
  return x / (1.0F + Exp(t));
}

EBB_KERNEL(kThreads) Gate(ActivateArgs a) {
  const int64_t i = int64_t{BlockX()} * kThreads + ThreadIndex();
  WaitForEarlier();
  LetLaterBegin();
  if (i >= a.n / 4) return;
  const Vector16 gate = reinterpret_cast<const Vector16*>(a.gate)[i];
  const uint32_t one = BitsOf(1.0F);
  const Vector16 up = a.up != nullptr ? reinterpret_cast<const Vector16*>(a.up)[i] : Vector16{{one, one, one, one}};
  Vector16 y;
  EBB_UNROLL
  for (int32_t j = 0; j < 4; ++j) y.word[j] = BitsOf(Bent(a.curve, FloatOf(gate.word[j])) * FloatOf(up.word[j]));
  reinterpret_cast<Vector16*>(a.y)[i] = y;
}

}  // namespace

void LaunchActivate(const ActivateArgs& args, Stream stream) {
  LaunchEarly(Gate, {(args.n / 4 + kThreads - 1) / kThreads}, kThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
