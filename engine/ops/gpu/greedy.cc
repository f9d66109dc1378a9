// The token of the largest logit of each row: the largest candidate (candidate.h). A row is cut into parts, and a block
// finds the largest of one; that which comes last finds the largest of what was found, so that no launch waits for
// another.
//
//   logits [rows][vocab]     | four logits: thread 0 | four: thread 1 | ... | part of 4096 | part | ...
//   parts  [rows][parts]     | the part's largest, as a candidate                          |      |
//   token  [rows]            the largest of those
//
// A thread reads all its logits at once, in ascending order of their tokens: of those that are equal it keeps the
// first.

#include <cstdint>

#include "engine/ops/gpu/candidate.h"
#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kRounds = kGreedyPart / (4 * kThreads);
static_assert(kRounds * 4 * kThreads == kGreedyPart);

struct Choice {
  GreedyArgs args = {};
  int32_t parts = 0;  // of each row
};

// Past the row's end its last logits stand once more. kVectors: a row is whole vectors.
template <bool kVectors>
struct Own {
  const float* logits;
  int32_t vocab;

  EBB_DEVICE int32_t TokenAt(int32_t round, int32_t i) const {
    const int32_t four = BlockY() * kGreedyPart + 4 * (round * kThreads + ThreadIndex());
    if constexpr (kVectors) return (four < vocab ? four : vocab - 4) + i;
    return four + i < vocab ? four + i : vocab - 1;
  }
  EBB_DEVICE Vector16 Read(int32_t round) const {
    Vector16 four;
    if constexpr (kVectors) {
      four = *reinterpret_cast<const Vector16*>(logits + TokenAt(round, 0));
    } else {
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) four.word[i] = BitsOf(logits[TokenAt(round, i)]);
    }
    return four;
  }
};

template <bool kVectors>
EBB_KERNEL(kThreads)
ChooseLargest(Choice choice) {
  EBB_SHARED int32_t is_last;
  const GreedyArgs& a = choice.args;
  const Own<kVectors> own = {a.logits + int64_t{BlockX()} * a.vocab, a.vocab};
  Vector16 logits[kRounds];
  EBB_UNROLL
  for (int32_t j = 0; j < kRounds; ++j) logits[j] = own.Read(j);
  float largest = MinusInfinity();
  int32_t token = own.TokenAt(0, 0);  // where none is larger than that, which no NaN is
  EBB_UNROLL
  for (int32_t j = 0; j < kRounds; ++j) {
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      const float logit = FloatOf(logits[j].word[i]);
      if (!(logit > largest)) continue;
      largest = logit;
      token = own.TokenAt(j, i);
    }
  }
  uint64_t best = CandidateOf(largest, token);
  best = ReduceBlock<kThreads>(best, Largest());

  if (choice.parts > 1) {
    uint64_t* const parts = a.parts + int64_t{BlockX()} * choice.parts;
    if (ThreadIndex() == 0) {
      parts[BlockY()] = best;
      FenceDevice();
      is_last = AddDevice(a.arrived + BlockX(), 1) == choice.parts - 1 ? 1 : 0;
    }
    Barrier();
    if (is_last == 0) return;
    FenceDevice();
    best = 0;
    EBB_ROLLED
    for (int32_t i = ThreadIndex(); i < choice.parts; i += kThreads) best = Largest()(parts[i], best);
    best = ReduceBlock<kThreads>(best, Largest());
    if (ThreadIndex() == 0) a.arrived[BlockX()] = 0;
  }
  if (ThreadIndex() == 0) a.token[BlockX()] = TokenOf(best);
}

}  // namespace

void LaunchGreedy(const GreedyArgs& args, Stream stream) {
  const Choice choice = {.args = args, .parts = GreedyParts(args.vocab)};
  const Grid grid = {args.rows, choice.parts};
  if (args.vocab % 4 == 0) return Launch(ChooseLargest<true>, grid, kThreads, choice, stream);
  Launch(ChooseLargest<false>, grid, kThreads, choice, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
