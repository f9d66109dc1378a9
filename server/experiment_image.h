// An experiment as the bytes of a file.
//
//   "ebb exp1", CRC-32 u32 little-endian of what follows, ebb.store.v1.KeptExperiment
//
// The parts of it are those that ExportExperiment streams: there is one format, and one way to read it.

#ifndef EBB_SERVER_EXPERIMENT_IMAGE_H_
#define EBB_SERVER_EXPERIMENT_IMAGE_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "ebb/v1/experiment_part.pb.h"
#include "server/experiments/state.h"

namespace ebb {

// Parts are added one after another, then the whole is sealed.
class ExperimentImage {
 public:
  ExperimentImage();
  void Add(const v1::ExperimentPart& part);
  std::string Seal() &&;

 private:
  std::string bytes_;
};

// INVALID_ARGUMENT, whose message says what was found and what was expected: it is no such file, one of another
// version, damaged, or tells of what cannot be (ExperimentParts).
absl::StatusOr<WholeExperiment> ReadExperimentImage(std::string_view bytes);

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENT_IMAGE_H_
