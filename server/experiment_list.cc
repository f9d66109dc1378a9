#include "server/experiment_list.h"

#include <google/protobuf/util/json_util.h>

#include <utility>

#include "absl/strings/str_format.h"
#include "ebb/config/v1/experiments.pb.h"
#include "policies/status.h"
#include "server/convert_experiment.h"

namespace ebb {

absl::StatusOr<std::vector<ExperimentSpec>> ExperimentsFrom(const std::string& path, const std::string& text,
                                                            const SpecLimits& limits) {
  config::v1::ExperimentList list;
  const auto parsed = google::protobuf::util::JsonStringToMessage(text, &list);
  if (!parsed.ok()) {
    return RefuseField("BAD_EXPERIMENTS_FILE", "experiments.file",
                       absl::StrFormat("%s is not JSON of experiments: %s", path, parsed.message().ToString()));
  }
  std::vector<ExperimentSpec> specs;
  for (int i = 0; i < list.experiments_size(); ++i) {
    auto spec = ExperimentFrom(list.experiments(i), limits);
    if (!spec.ok()) {
      return RefuseField(
          "BAD_EXPERIMENTS_FILE", "experiments.file",
          absl::StrFormat("%s, the experiment at index %d: %s", path, i, std::string(spec.status().message())));
    }
    specs.push_back(*std::move(spec));
  }
  return specs;
}

}  // namespace ebb
