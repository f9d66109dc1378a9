// The cap on a model's logits: x = cap * tanh(x / cap), a number a thread, 256 to a block.
//
//   x [rows, vocab] floats, one row behind another   | block 0: 256 | block 1: 256 | ...

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;

EBB_KERNEL(kThreads) CapNumbers(CapArgs a) {
  const int64_t i = int64_t{BlockX()} * kThreads + ThreadIndex();
  if (i < a.n) a.x[i] = Capped(a.x[i], a.cap);
}

}  // namespace

void LaunchCap(const CapArgs& args, Stream stream) {
  Launch(CapNumbers, {(args.n + kThreads - 1) / kThreads}, kThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
