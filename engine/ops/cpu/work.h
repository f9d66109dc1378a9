// What ops share out: memory that stays, and items over threads.

#ifndef EBB_ENGINE_OPS_CPU_WORK_H_
#define EBB_ENGINE_OPS_CPU_WORK_H_

#include <cstdint>

#include "engine/ops/cpu/packed_matrix.h"
#include "engine/parallel.h"

namespace ebb::cpu {

// Below this many multiply-adds a call is done before a sleeping thread has woken up.
inline constexpr int64_t kWorthSplitting = int64_t{1} << 17;

// Memory that only grows.
class Scratch {
 public:
  float* AtLeast(int64_t floats) {
    if (floats * 4 > memory_.size()) memory_ = AlignedBytes(floats * 4 + floats);
    return reinterpret_cast<float*>(memory_.data());
  }

 private:
  AlignedBytes memory_{0};
};

// work(item, thread) for every item, on all threads if there is enough to do; `cost` multiply-adds per item.
template <typename Work>
void Split(Parallel& parallel, int64_t items, int64_t cost, const Work& work) {
  if (items * cost >= kWorthSplitting) {
    parallel.For(items, work);
  } else {
    for (int64_t item = 0; item < items; ++item) work(item, 0);
  }
}

}  // namespace ebb::cpu

#endif  // EBB_ENGINE_OPS_CPU_WORK_H_
