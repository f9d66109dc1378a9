// What several steps of one session evicted, as if they had been one.

#ifndef EBB_ENGINE_STEPS_SUM_H_
#define EBB_ENGINE_STEPS_SUM_H_

#include <cstdint>
#include <vector>

#include "engine/engine.h"
#include "engine/eviction_census.h"

namespace ebb {

class StepsSum {
 public:
  // What Run wrote to the row of one step.
  void Add(BatchRow& row);

  // The sum of the steps added. `length`: of the session's cache after the last.
  void Write(int32_t length, BatchRow& row);

 private:
  int32_t evicted_ = 0;
  int64_t evicted_slots_ = 0;
  int64_t nan_scores_ = 0;
  int32_t evicting_steps_ = 0;
  Loss loss_ = {};
  EvictionCensus census_ = {};
  std::vector<LaneVictims> victims_ = {};
};

}  // namespace ebb

#endif  // EBB_ENGINE_STEPS_SUM_H_
