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

// The sum of a thread's value and of those before it in its team.
EBB_DEVICE int32_t SumUpTo(int32_t value) {
  const int32_t lane = ThreadIndex() % kTeam;
  for (int32_t step = 1; step < kTeam; step *= 2) {
    const int32_t before = Shuffle(value, lane >= step ? lane - step : lane);
    value += lane >= step ? before : 0;
  }
  return value;
}

// Of the values of the threads before this one, and of all threads of a block of kThreads.
struct Sums {
  int32_t before, all;
};
template <int32_t kThreads>
EBB_DEVICE Sums SumBlock(int32_t value) {
  constexpr int32_t kTeams = kThreads / kTeam;
  static_assert(kTeams <= kTeam);
  EBB_SHARED int32_t of_team[kTeams];
  const int32_t team = ThreadIndex() / kTeam;
  const int32_t lane = ThreadIndex() % kTeam;
  const int32_t until = SumUpTo(value);
  if (lane == kTeam - 1) of_team[team] = until;
  Barrier();
  Sums sums = {until - value, 0};
  if constexpr (kTeams <= 4) {
    EBB_UNROLL
    for (int32_t i = 0; i < kTeams; ++i) {
      sums.before += i < team ? of_team[i] : 0;
      sums.all += of_team[i];
    }
  } else {
    const int32_t teams = SumUpTo(lane < kTeams ? of_team[lane] : 0);
    const int32_t before = Shuffle(teams, team > 0 ? team - 1 : 0);
    sums.before += team > 0 ? before : 0;
    sums.all = Shuffle(teams, kTeams - 1);
  }
  Barrier();  // of_team is free again
  return sums;
}
template <int32_t kThreads>
EBB_DEVICE int32_t SumBefore(int32_t value) {
  return SumBlock<kThreads>(value).before;
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_REDUCE_H_
