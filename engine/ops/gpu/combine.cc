// What experts made of a row, each times its weight, added to the row in ascending order of expert, as on the CPU. Four
// neighbours a thread.
//
//   x     [T][n]          row t    | thread 0: four | thread 1: four | ...   1024 to a block
//   parts [T * used][n]   row place[t][0], place[t][1], ...: the same columns

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;

EBB_KERNEL(kThreads) AddParts(CombineArgs a) {
  const int32_t vectors = a.n / 4;
  const int32_t i = BlockY() * kThreads + ThreadIndex();
  const int64_t row = BlockX();
  WaitForEarlier();
  LetLaterBegin();
  if (i >= vectors) return;
  Vector16* const to = reinterpret_cast<Vector16*>(a.x) + row * vectors + i;
  Vector16 x = *to;
  for (int32_t choice = 0; choice < a.used; ++choice) {
    const int64_t at = row * a.used + choice;
    const float weight = a.weight[at];
    const Vector16 part = reinterpret_cast<const Vector16*>(a.parts)[int64_t{a.place[at]} * vectors + i];
    EBB_UNROLL
    for (int32_t j = 0; j < 4; ++j) {
      x.word[j] = BitsOf(MultiplyAdd(weight, FloatOf(part.word[j]), FloatOf(x.word[j])));
    }
  }
  *to = x;
}

}  // namespace

void LaunchCombine(const CombineArgs& args, Stream stream) {
  LaunchEarly(AddParts, {args.rows, (args.n / 4 + kThreads - 1) / kThreads}, kThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
