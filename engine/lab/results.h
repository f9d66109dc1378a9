// Measured numbers in a CSV file that a later run goes on from.
//
//   run,policy,budget,measure,value,low,high,samples
//   b3f1c6a2d09e7754,h2o,128,stream,0.02,0.00353,0.105,50
//
// A line is added as soon as it is measured. `run` says what else decides the numbers, so that two runs never mix.

#ifndef EBB_ENGINE_LAB_RESULTS_H_
#define EBB_ENGINE_LAB_RESULTS_H_

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/lab/statistics.h"

namespace ebb::lab {

struct Result {
  std::string policy = {};
  std::string budget = {};  // "128", or "-"
  std::string measure = {};
  double value = 0;
  Interval interval = {};  // 95 %
  int64_t samples = 0;     // prompts or windows

  bool operator==(const Result&) const = default;
};

// 16 hexadecimal digits, by the parts and their order.
std::string RunName(const std::vector<std::string>& parts);

class Results {
 public:
  // Goes on with the file where there is one; an empty path keeps nothing. A line that an interruption cut is measured
  // again. DATA_LOSS naming the line when it is no such file, FAILED_PRECONDITION when it is of another run,
  // UNAVAILABLE when it cannot be written.
  static absl::StatusOr<Results> Open(const std::string& path, const std::string& run);

  // Null where it was not measured yet.
  const Result* Find(const std::string& policy, const std::string& budget, const std::string& measure) const;

  absl::Status Add(const Result& result);

  const std::vector<Result>& all() const { return results_; }

 private:
  std::string path_ = {};
  std::string run_ = {};
  std::ofstream file_ = {};
  std::vector<Result> results_ = {};
};

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_RESULTS_H_
