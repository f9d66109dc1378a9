// Floats to BF16, for a library that multiplies nothing else: to nearest, ties to even. A thread rounds eight.
//
//   x [n] floats   | 0 .. 7 | 8 .. 15 | ...  256 threads to a block
//   y [n] BF16     | 0 .. 7 | 8 .. 15 | ...

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kEach = 8;

EBB_KERNEL(kThreads) Round(RoundArgs a) {
  const int64_t first = (int64_t{BlockX()} * kThreads + ThreadIndex()) * kEach;
  if (first >= a.n) return;
  float x[kEach];
  KvF32::ReadEight(a.x + first, x);
  Vector16 pairs;
  EBB_UNROLL
  for (int32_t i = 0; i < 4; ++i) pairs.word[i] = ToBf16(x[2 * i]) | static_cast<uint32_t>(ToBf16(x[2 * i + 1])) << 16;
  *reinterpret_cast<Vector16*>(a.y + first) = pairs;
}

}  // namespace

void LaunchRound(const RoundArgs& args, Stream stream) {
  constexpr int64_t kOfBlock = int64_t{kThreads} * kEach;
  Launch(Round, {(args.n + kOfBlock - 1) / kOfBlock}, kThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
