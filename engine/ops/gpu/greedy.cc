// The token of the largest logit, one block a row. A candidate packs (logit, -index) into 64 bits whose largest is the
// first of the largest logits, in any order of comparison.
//
//   63                     32 31                      0
//   | logit, in the order of | 2^32 - 1 - index        |      NaN ranks as minus infinity
//   | floats as integers     |                         |

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;

EBB_DEVICE uint64_t CandidateOf(float logit, int32_t index) {
  const uint32_t bits = BitsOf(logit != logit ? MinusInfinity() : logit + 0.0F);
  const uint64_t rank = bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
  return rank << 32 | (0xFFFFFFFFU - static_cast<uint32_t>(index));
}

EBB_KERNEL(kThreads) ChooseLargest(GreedyArgs a) {
  const float* const logits = a.logits + int64_t{BlockX()} * a.vocab;
  uint64_t best = 0;
  for (int32_t i = ThreadIndex(); i < a.vocab; i += kThreads) best = Largest()(CandidateOf(logits[i], i), best);
  best = ReduceBlock<kThreads>(best, Largest());
  if (ThreadIndex() == 0) a.token[BlockX()] = static_cast<int32_t>(0xFFFFFFFFU - static_cast<uint32_t>(best));
}

}  // namespace

void LaunchGreedy(const GreedyArgs& args, Stream stream) { Launch(ChooseLargest, {args.rows}, kThreads, args, stream); }

}  // namespace ebb::gpu::EBB_GPU_TARGET
