// make_experiment_corpus FOLDER: writes the committed corpus of experiment_image_fuzz again: one that begins, one that
// runs, one that has stopped, and what such files have behind their checksums.

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "policies/check.h"
#include "server/convert_experiment.h"
#include "server/experiment_export.h"
#include "server/experiment_image.h"
#include "tests/fuzz/spec_limits.h"

namespace ebb {
namespace {

constexpr size_t kImageHead = 12;  // in front of what the checksum is of

ExperimentSpec SpecOf(const std::string& name) {
  v1::ExperimentSpec proto;
  proto.set_name(name);
  proto.set_tenant("acme");
  for (const char* arm : {"a", "b"}) {
    v1::ExperimentArm& made = *proto.add_arms();
    made.set_name(arm);
    made.mutable_policy()->mutable_streaming();
    made.mutable_policy()->mutable_trigger()->set_budget(24);
  }
  return *ExperimentFrom(proto, FuzzedLimits());
}

void Write(const Experiments& experiments, const std::string& name, const std::string& path) {
  auto parts = ExperimentExport::Of(experiments, name);
  EBB_CHECK(parts.ok());
  ExperimentImage image;
  for (auto part = parts->Next(); part.ok() && *part; part = parts->Next()) image.Add(**part);
  const std::string bytes = std::move(image).Seal();
  std::ofstream whole(path, std::ios::binary), content(path + "_content", std::ios::binary);
  whole << bytes;
  content << bytes.substr(kImageHead);
  EBB_CHECK(whole.flush().good() && content.flush().good());
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_experiment_corpus FOLDER\n");
    return 2;
  }
  using ebb::TrialMetric;
  const std::string folder = argv[1];
  ebb::Experiments experiments;
  EBB_CHECK(experiments.Start(ebb::SpecOf("e"), absl::UnixEpoch() + absl::Hours(1)).ok());
  ebb::Write(experiments, "e", folder + "/begins");
  for (int i = 0; i < 6; ++i) {
    const auto placed = experiments.Place("acme", absl::StrCat("user-", i), "session");
    EBB_CHECK(experiments.Enrol(placed->assignment));
    ebb::Observations fresh;
    fresh.Add(TrialMetric::kScore, 0.25 * i);
    fresh.Add(TrialMetric::kReservedBytes, 1e9 * i, 2);
    EBB_CHECK(experiments.Add(placed->assignment, fresh));
  }
  ebb::Write(experiments, "e", folder + "/runs");
  EBB_CHECK(experiments.Stop("e", absl::UnixEpoch() + absl::Hours(2)).ok());
  ebb::Write(experiments, "e", folder + "/stopped");
  return 0;
}
