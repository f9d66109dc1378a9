// Any bytes as an experiment that was kept, and as what such a file has behind a checksum that fits. One that is taken
// can be told of, goes on, and comes out as it went in.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "engine/snapshot/checksum.h"
#include "policies/check.h"
#include "server/convert_experiment.h"
#include "server/experiment_export.h"
#include "server/experiment_image.h"
#include "tests/fuzz/spec_limits.h"

namespace ebb {
namespace {

std::string Sealed(std::string_view content) {
  const uint32_t crc = Crc32(0, content.data(), content.size());
  std::string bytes = "ebb exp1";
  bytes.append(reinterpret_cast<const char*>(&crc), sizeof crc);
  return bytes.append(content);
}

std::string Written(const Experiments& experiments, const std::string& name) {
  auto parts = ExperimentExport::Of(experiments, name);
  EBB_CHECK(parts.ok());
  ExperimentImage image;
  while (true) {
    const auto part = parts->Next();
    EBB_CHECK(part.ok());
    if (!*part) return std::move(image).Seal();
    image.Add(**part);
  }
}

void CheckImage(std::string_view bytes) {
  auto whole = ReadExperimentImage(bytes);
  if (!whole.ok()) {
    EBB_CHECK(absl::IsInvalidArgument(whole.status()));
    EBB_CHECK(!whole.status().message().empty());
    return;
  }
  const bool runs = TakePolicies(whole->state.spec, FuzzedLimits()).ok();
  if (!runs && whole->state.running()) whole->state.stopped = whole->state.started;
  const std::string name = whole->state.spec.name;
  Experiments experiments, again;
  EBB_CHECK(experiments.Restore(*std::move(whole)).ok());
  EBB_CHECK(ExperimentProto(*experiments.Get(name)).results().arms_size() >= 2);
  const std::string once = Written(experiments, name);
  auto read = ReadExperimentImage(once);
  EBB_CHECK(read.ok());
  if (runs) EBB_CHECK(TakePolicies(read->state.spec, FuzzedLimits()).ok());
  EBB_CHECK(again.Restore(*std::move(read)).ok());
  EBB_CHECK(Written(again, name) == once);
  const auto placed = experiments.Place("acme", "user", "session");
  if (placed && experiments.Enrol(placed->assignment)) {
    Observations fresh;
    fresh.Add(TrialMetric::kScore, 1);
    EBB_CHECK(experiments.Add(placed->assignment, fresh));
    EBB_CHECK(experiments.Get(name).ok());
  }
}

}  // namespace
}  // namespace ebb

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  ebb::CheckImage(bytes);
  ebb::CheckImage(ebb::Sealed(bytes));
  return 0;
}
