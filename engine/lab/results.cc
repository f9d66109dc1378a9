#include "engine/lab/results.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

constexpr std::string_view kHeader = "run,policy,budget,measure,value,low,high,samples";

std::string Line(const std::string& run, const Result& result) {
  return absl::StrFormat("%s,%s,%s,%s,%.9g,%.9g,%.9g,%d\n", run, result.policy, result.budget, result.measure,
                         result.value, result.interval.low, result.interval.high, result.samples);
}

absl::StatusOr<Result> Parse(const std::string& line, const std::string& run, const std::string& where) {
  const std::vector<std::string> cells = absl::StrSplit(line, ',');
  Result result;
  if (cells.size() != 8 || !absl::SimpleAtod(cells[4], &result.value) ||
      !absl::SimpleAtod(cells[5], &result.interval.low) || !absl::SimpleAtod(cells[6], &result.interval.high) ||
      !absl::SimpleAtoi(cells[7], &result.samples)) {
    return absl::DataLossError(absl::StrFormat("%s: not a line of '%s'", where, kHeader));
  }
  if (cells[0] != run) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s is of run %s, and this is run %s: another model, cases file, instruction set, --prompts or "
                        "--seed. Name another file",
                        where, cells[0], run));
  }
  result.policy = cells[1];
  result.budget = cells[2];
  result.measure = cells[3];
  return result;
}

}  // namespace

std::string RunName(const std::vector<std::string>& parts) {
  uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
  for (const std::string& part : parts) {
    for (const char c : part + '\0') hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  }
  return absl::StrFormat("%016x", hash);
}

absl::StatusOr<Results> Results::Open(const std::string& path, const std::string& run) {
  Results results;
  results.path_ = path;
  results.run_ = run;
  if (path.empty()) return results;
  std::string text;
  if (std::ifstream there(path, std::ios::binary); there.is_open()) {
    text.assign(std::istreambuf_iterator<char>(there), {});
  }
  text.resize(text.find_last_of('\n') == std::string::npos ? 0 : text.find_last_of('\n'));
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (!lines.empty() && lines.front() != kHeader) {
    return absl::DataLossError(absl::StrFormat("%s:1: not '%s'", path, kHeader));
  }
  for (size_t i = 1; i < lines.size(); ++i) {
    EBB_ASSIGN(results.results_.emplace_back(), Parse(lines[i], run, absl::StrFormat("%s:%d", path, i + 1)));
  }
  results.file_.open(path, std::ios::binary | std::ios::trunc);
  results.file_ << kHeader << "\n";
  for (const Result& result : results.results_) results.file_ << Line(run, result);
  results.file_.flush();
  if (!results.file_) return absl::UnavailableError(absl::StrFormat("%s: cannot be written", path));
  return results;
}

const Result* Results::Find(const std::string& policy, const std::string& budget, const std::string& measure) const {
  const auto found = std::ranges::find_if(results_, [&](const Result& result) {
    return result.policy == policy && result.budget == budget && result.measure == measure;
  });
  return found == results_.end() ? nullptr : &*found;
}

absl::Status Results::Add(const Result& result) {
  results_.push_back(result);
  if (path_.empty()) return absl::OkStatus();
  file_ << Line(run_, result);
  file_.flush();
  if (!file_) return absl::UnavailableError(absl::StrFormat("%s: cannot be written", path_));
  return absl::OkStatus();
}

}  // namespace ebb::lab
