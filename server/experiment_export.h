// An experiment of this server in parts (ebb.v1.ExperimentPart), one after the other while it goes on: nobody who
// assigns or counts units waits for more than one part's copy.

#ifndef EBB_SERVER_EXPERIMENT_EXPORT_H_
#define EBB_SERVER_EXPERIMENT_EXPORT_H_

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "ebb/v1/experiment_part.pb.h"
#include "server/experiments/experiments.h"

namespace ebb {

class ExperimentExport {
 public:
  static constexpr size_t kUnitsOfPart = 1000;

  // As it is now. `experiments` outlives it. NOT_FOUND UNKNOWN_EXPERIMENT.
  static absl::StatusOr<ExperimentExport> Of(const Experiments& experiments, const std::string& name);

  // What it tells of, but for what units have shown meanwhile.
  const Experiments::Revision& revision() const { return copy_.revision; }

  // Empty: all have been told. FAILED_PRECONDITION EXPERIMENT_STOPPED or NOT_FOUND UNKNOWN_EXPERIMENT where its units
  // have gone meanwhile.
  absl::StatusOr<std::optional<v1::ExperimentPart>> Next();

 private:
  ExperimentExport(const Experiments& experiments, Experiments::Copy copy)
      : experiments_(&experiments), copy_(std::move(copy)) {}

  const Experiments* experiments_;
  Experiments::Copy copy_;
  bool begun_ = false;
  size_t arm_ = 0;   // of the next units
  size_t unit_ = 0;  // of the arm
};

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENT_EXPORT_H_
