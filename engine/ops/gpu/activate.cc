// The gate of the feed-forward part: y = curve(gate) * up, one element a thread.
//
//   SiLU a / (1 + e^-a); GELU in its tanh form a / (1 + e^(-2 c (a + 0.044715 a^3))) with c = sqrt(2 / pi)
//
//   gate [T, f] floats   | thread 0 | 1 | 2 | ...  256 to a block, rows one after another
//   up   [T, f]          | thread 0 | 1 | 2 | ...
//   y    [T, f]          | thread 0 | 1 | 2 | ...  may be gate itself: an element has one owner

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;

EBB_KERNEL(kThreads) Gate(ActivateArgs a) {
  const int64_t i = int64_t{BlockX()} * kThreads + ThreadIndex();
  if (i >= a.n) return;
  const float x = a.gate[i];
  const float t = a.curve == Curve::kSilu ? -x : x * MultiplyAdd(x * x, 0.044715F, 1.0F) * -1.5957691216F;
  a.y[i] = x / (1.0F + Exp(t)) * a.up[i];
}

}  // namespace

void LaunchActivate(const ActivateArgs& args, Stream stream) {
  Launch(Gate, {(args.n + kThreads - 1) / kThreads}, kThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
