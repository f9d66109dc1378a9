// An experiment from its parts (ebb.v1.ExperimentPart): those of a file, or those that a server has streamed. Whoever
// sent them is not trusted: what comes out is whole, its numbers are numbers, and its moments are worked out of its
// units.

#ifndef EBB_SERVER_EXPERIMENT_PARTS_H_
#define EBB_SERVER_EXPERIMENT_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ebb/v1/experiment_part.pb.h"
#include "server/experiments/state.h"

namespace ebb {

class ExperimentParts {
 public:
  // The next one. INVALID_ARGUMENT, with the place in the message: it cannot be what was told.
  absl::Status Take(const v1::ExperimentPart& part);

  // All have come. INVALID_ARGUMENT where units are missing that the head counts. The arms' policies are just told.
  absl::StatusOr<WholeExperiment> Finish();

 private:
  absl::Status TakeHead(const v1::ExperimentHead& head);
  absl::Status TakeUnits(const v1::ExperimentUnits& units);

  std::optional<WholeExperiment> whole_ = {};
  std::vector<std::unordered_set<uint64_t>> keys_ = {};  // of each arm's units that have come
};

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENT_PARTS_H_
