// The token of the largest logit, one block a row: the largest candidate (candidate.h).
//
//   logits [rows, vocab] floats   row x:  | 0 | 1 | ... |  logit i: thread i % 256
//   token  [rows]                 row x:  thread 0

#include <cstdint>

#include "engine/ops/gpu/candidate.h"
#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;

EBB_KERNEL(kThreads) ChooseLargest(GreedyArgs a) {
  const float* const logits = a.logits + int64_t{BlockX()} * a.vocab;
  uint64_t best = 0;
  for (int32_t i = ThreadIndex(); i < a.vocab; i += kThreads) best = Largest()(CandidateOf(logits[i], i), best);
  best = ReduceBlock<kThreads>(best, Largest());
  if (ThreadIndex() == 0) a.token[BlockX()] = TokenOf(best);
}

}  // namespace

void LaunchGreedy(const GreedyArgs& args, Stream stream) { Launch(ChooseLargest, {args.rows}, kThreads, args, stream); }

}  // namespace ebb::gpu::EBB_GPU_TARGET
