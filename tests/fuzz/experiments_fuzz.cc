// Any bytes as the file of experiments. A refusal names the file, and the experiment that is wrong; one that is taken
// starts, places whoever comes in one of its arms, and is told as it was taken.

#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/convert_experiment.h"
#include "server/experiment_list.h"
#include "tests/fuzz/spec_limits.h"

namespace ebb {
namespace {

constexpr int kUsers = 8;

// By itself: it may not run beside others of the file.
void CheckExperiment(const ExperimentSpec& spec) {
  Experiments experiments;
  const auto started = experiments.Start(spec, absl::UnixEpoch());
  EBB_CHECK(started.ok());
  EBB_CHECK(!experiments.Start(spec, absl::UnixEpoch()).ok());
  const v1::ExperimentSpec told = ExperimentProto(*started).spec();
  const auto again = ExperimentFrom(told, FuzzedLimits());
  EBB_CHECK(again.ok());
  EBB_CHECK(google::protobuf::util::MessageDifferencer::Equals(
      ExperimentProto({.spec = *again, .arms = started->arms}).spec(), told));
  for (int user = 0; user < kUsers; ++user) {
    const auto placed = experiments.Place(spec.tenant, absl::StrCat("user", user), "session");
    if (!placed) continue;
    EBB_CHECK(placed->assignment.arm < spec.arms.size());
    EBB_CHECK(placed->assignment.arm_name == spec.arms[placed->assignment.arm].name);
    EBB_CHECK(experiments.Enrol(placed->assignment));
  }
  EBB_CHECK(spec.ramp > 0 || experiments.Get(spec.name)->arms.front().units == 0);
  EBB_CHECK(experiments.Stop(spec.name, absl::UnixEpoch() + absl::Hours(1)).ok());
}

void CheckFile(const std::string& text) {
  const auto specs = ExperimentsFrom("fuzz.json", text, FuzzedLimits());
  if (specs.ok()) {
    for (const ExperimentSpec& spec : *specs) CheckExperiment(spec);
    return;
  }
  const Refusal refusal = GetRefusal(specs.status());
  EBB_CHECK(refusal.reason == "BAD_EXPERIMENTS_FILE");
  EBB_CHECK(refusal.field == "experiments.file");
  EBB_CHECK(absl::StartsWith(specs.status().message(), "experiments.file: fuzz.json"));
}

}  // namespace
}  // namespace ebb

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ebb::CheckFile({reinterpret_cast<const char*>(data), size});
  return 0;
}
