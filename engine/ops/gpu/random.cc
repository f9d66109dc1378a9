// Numbers for benchmarks, the same on every device: number i is a hash of (seed, i), as of splitmix64. A thread makes
// one.
//
//   values [n]   | 0 | 1 | 2 | ...  256 to a block; each in [-scale, scale)

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;

template <typename E>
EBB_KERNEL(kThreads)
FillRandom(RandomArgs a) {
  const int64_t i = int64_t{BlockX()} * kThreads + ThreadIndex();
  if (i >= a.n) return;
  uint64_t hash = a.seed + (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15U;
  hash = (hash ^ hash >> 30) * 0xBF58476D1CE4E5B9U;
  hash = (hash ^ hash >> 27) * 0x94D049BB133111EBU;
  const auto upper = static_cast<int32_t>(static_cast<uint32_t>(hash >> 32));
  static_cast<typename E::Type*>(a.values)[i] =
      E::Convert(static_cast<float>(upper >> 8) * 1.1920928955078125e-7F * a.scale);  // 24 bits, 2^-23
}

}  // namespace

void LaunchRandom(const RandomArgs& args, Stream stream) {
  const Grid grid = {(args.n + kThreads - 1) / kThreads};
  switch (args.type) {
    case Element::kF32:
      return Launch(FillRandom<KvF32>, grid, kThreads, args, stream);
    case Element::kF16:
      return Launch(FillRandom<KvF16>, grid, kThreads, args, stream);
    default:
      return Launch(FillRandom<KvBf16>, grid, kThreads, args, stream);
  }
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
