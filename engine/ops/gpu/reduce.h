// Sums, maxima and the like over the threads of a team or a block. Every one has a fixed order: within a team of 32 a
// tree over thread numbers, then team after team. So it is the same on warps of 32 and of 64.

#ifndef EBB_ENGINE_OPS_GPU_REDUCE_H_
#define EBB_ENGINE_OPS_GPU_REDUCE_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"

namespace ebb::gpu::EBB_GPU_TARGET {

struct Plus {
  template <typename T>
  EBB_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
struct Largest {
  template <typename T>
  EBB_DEVICE T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};
struct Smallest {
  template <typename T>
  EBB_DEVICE T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};

// How wide the team is of which so many threads have work: the power of two at or above.
EBB_DEVICE int32_t TeamFor(int32_t threads) {
  int32_t width = 1;
  while (width < threads) width *= 2;
  return width;
}

// Of the `width` neighbours of a team, a power of two up to 32; every one of them gets the result.
template <typename T, typename Combine>
EBB_DEVICE T ReduceTeam(T value, Combine combine, int32_t width = kTeam) {
  for (int32_t mask = width / 2; mask > 0; mask /= 2) value = combine(value, ShuffleXor(value, mask));
  return value;
}

// Of all threads of a block of kThreads; every one gets the result.
template <int32_t kThreads, typename T, typename Combine>
EBB_DEVICE T ReduceBlock(T value, Combine combine) {
  EBB_SHARED T of_team[kThreads / kTeam];
  value = ReduceTeam(value, combine);
  if (ThreadIndex() % kTeam == 0) of_team[ThreadIndex() / kTeam] = value;
  Barrier();
  T all = of_team[0];
  for (int32_t i = 1; i < kThreads / kTeam; ++i) all = combine(all, of_team[i]);
  Barrier();  // of_team is free again
  return all;
}

// The sum of the values of the threads before this one.
template <int32_t kThreads>
EBB_DEVICE int32_t SumBefore(int32_t value) {
  EBB_SHARED int32_t sums[kThreads];
  const int32_t thread = ThreadIndex();
  sums[thread] = value;
  Barrier();
  for (int32_t step = 1; step < kThreads; step *= 2) {
    const int32_t before = thread >= step ? sums[thread - step] : 0;
    Barrier();
    sums[thread] += before;
    Barrier();
  }
  const int32_t until = sums[thread];
  Barrier();  // sums is free again
  return until - value;
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_REDUCE_H_
