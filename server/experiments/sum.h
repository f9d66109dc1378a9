// What several servers have seen of one experiment, added up as if one server had seen it all.
//
// A unit that several have seen is one unit, with what it has shown to each: sums of sums are the sums, and all else
// follows from a unit's sums (state.h). What does not add up is what a server remembers of its past: the sample ratio
// is that of now (sample_ratio.h).

#ifndef EBB_SERVER_EXPERIMENTS_SUM_H_
#define EBB_SERVER_EXPERIMENTS_SUM_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/experiments/state.h"

namespace ebb {

class ExperimentSum {
 public:
  // FAILED_PRECONDITION, without a reason and naming `server`: the experiment has stopped there, and its units are
  // gone; its sessions had another model; it is the same start as that of another server, which has two names or lent
  // it its folder; or one of its units is in another arm at another server. REQUIRES: of one spec with those before it,
  // but for the ramp, of which the largest counts.
  absl::Status Add(const std::string& server, const WholeExperiment& seen);

  // Of all that were added: begun with the first. REQUIRES: one at least.
  WholeExperiment Total() &&;

 private:
  struct Place {
    size_t arm = 0;
    size_t index = 0;   // among the arm's units
    size_t server = 0;  // that had it first
  };

  std::vector<std::string> servers_ = {};
  std::map<absl::Time, std::string> starts_ = {};  // whose each is
  std::optional<ExperimentState> state_ = {};      // of which ratio and moments are not yet worked out
  std::vector<std::vector<UnitSums>> units_ = {};
  std::unordered_map<uint64_t, Place> places_ = {};
};

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENTS_SUM_H_
