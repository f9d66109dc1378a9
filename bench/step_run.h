// Steps that write a token in each of some sessions, timed beside the ceilings: what `decode` and `batch` are.

#ifndef EBB_BENCH_STEP_RUN_H_
#define EBB_BENCH_STEP_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/model_run.h"
#include "command_line/command_line.h"

namespace ebb::bench {

struct StepOptions {
  ModelOptions model = {};
  std::vector<int32_t> sessions = {1};
  int32_t steps = 8;                 // of which a round takes the median
  std::string compare = {};          // another policy, unbounded or with the same budget; empty: none
  std::vector<int32_t> depths = {};  // tokens so far, at which the two are compared; empty: 1, 4 and 16 times `slots`
};

// MODEL, --policy, --slots, --steps, --compare and --depths.
void AddStepOptions(Command command, StepOptions& options);

// A row for each number of sessions, or with `compare` for each and each depth, and one for the mean over the depths.
absl::Status RunSteps(const cli::Shell& shell, const std::string& verb, const Common& common,
                      const StepOptions& options);

// The mean of what is known at some depths, straight lines between them. REQUIRES: as many values as depths, at least
// one; depths ascend.
double MeanOverDepths(const std::vector<int32_t>& depths, const std::vector<double>& values);

}  // namespace ebb::bench

#endif  // EBB_BENCH_STEP_RUN_H_
