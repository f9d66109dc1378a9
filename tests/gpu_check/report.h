// What a run of the check found, as data, and as the two files it leaves: JSON for programs, Markdown for
// docs/benchmarks.

#ifndef EBB_TESTS_GPU_CHECK_REPORT_H_
#define EBB_TESTS_GPU_CHECK_REPORT_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ebb::gpu_check {

// One test of those that also run in the emulation.
struct Check {
  std::string name = {};
  bool passed = false;
  std::string why = {};  // where it failed
};

enum class Better { kLarger, kSmaller };

// One measurement beside what bounds it.
struct Row {
  std::string what = {};
  std::string measured = {};  // with its unit: "3.9 TB/s"
  std::string against = {};   // what it is a share of: "copy rate 4.3 TB/s"
  double ratio = 0;
  std::optional<double> target = {};  // of the ratio
  Better better = Better::kLarger;

  bool met() const { return !target || (better == Better::kLarger ? ratio >= *target : ratio <= *target); }
};

struct Report {
  std::vector<std::pair<std::string, std::string>> facts = {};  // device, date, commit, ...
  bool is_emulated = false;                                     // no time in it means anything
  std::vector<Check> checks = {};
  std::vector<Row> rows = {};
  std::vector<std::string> missing = {};  // what was not measured, and why

  int failed() const;
};

nlohmann::json ToJson(const Report& report);
std::string ToMarkdown(const Report& report);

}  // namespace ebb::gpu_check

#endif  // EBB_TESTS_GPU_CHECK_REPORT_H_
