#include "server/experiment_file.h"

#include <cstring>
#include <future>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/convert_experiment.h"
#include "server/experiment_list.h"
#include "server/log.h"
#include "server/small_file.h"
#include "server/start_experiment.h"

namespace ebb {
namespace {

constexpr size_t kBytesMax = 1 << 20;

absl::StatusOr<std::string> ReadText(const std::string& path) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, kBytesMax);
  if (!text.ok()) {
    return Refuse(absl::StatusCode::kNotFound,
                  absl::StrFormat("experiments.file: cannot read %s: %s", path, std::string(text.status().message())),
                  {.reason = "NO_EXPERIMENTS_FILE", .field = "experiments.file"});
  }
  if (text->size() > kBytesMax) {
    return RefuseField("BAD_EXPERIMENTS_FILE", "experiments.file", absl::StrFormat("%s has more than 1 MiB", path));
  }
  return text;
}

// Whether all may be started one after another, which is tried without those that run: it is all of them or none.
absl::Status CheckRoom(const std::vector<ExperimentSpec>& specs, const std::set<std::string>& names,
                       const Experiments& experiments, absl::Time now) {
  Experiments trial;
  for (const ExperimentView& view : experiments.List()) {
    const bool goes = view.configured && !names.contains(view.spec.name);
    if (view.running && !goes) EBB_TRY(trial.Start(view.spec, now).status());
  }
  for (const ExperimentSpec& spec : specs) {
    if (!experiments.Get(spec.name).ok()) EBB_TRY(trial.Start(spec, now).status());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ApplyExperiments(const std::vector<ExperimentSpec>& specs, const Dispatcher& dispatcher,
                              Experiments& experiments, bool at_start) {
  std::set<std::string> names;
  for (const ExperimentSpec& spec : specs) {
    if (!names.insert(spec.name).second) {
      return RefuseField("BAD_EXPERIMENTS_FILE", "experiments.file",
                         absl::StrFormat("experiments/%s is in it twice", spec.name));
    }
    EBB_TRY(CheckArms(dispatcher, spec));
    const auto known = experiments.Get(spec.name);
    if (!known.ok() || (at_start && !known->running) || AreAlike(known->spec, spec)) continue;
    return Refuse(
        absl::StatusCode::kAlreadyExists,
        absl::StrFormat("experiment.name: experiments/%s was started with another spec, and only its ramp may "
                        "change; give the new one another name",
                        spec.name),
        {.reason = "EXPERIMENT_EXISTS", .field = "experiment.name"});
  }
  EBB_TRY(CheckRoom(specs, names, experiments, dispatcher.clock().Now()));
  for (const ExperimentView& view : experiments.List()) {
    if (!view.configured || names.contains(view.spec.name)) continue;
    experiments.Stop(view.spec.name, dispatcher.clock().Now()).IgnoreError();  // it may be forgotten
  }
  for (const ExperimentSpec& spec : specs) {
    const auto known = experiments.Get(spec.name);
    if (!known.ok()) {
      EBB_TRY(StartExperiment(dispatcher, experiments, spec).status());
    } else if (known->running && known->spec.ramp != spec.ramp) {
      experiments.Ramp(spec.name, spec.ramp).IgnoreError();  // an admin may stop it just now
    }
  }
  experiments.SetConfigured(names);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ExperimentFile>> ExperimentFile::Open(const ExperimentFileOptions& options,
                                                                     Worker& worker, Experiments& experiments) {
  std::unique_ptr<ExperimentFile> file(new ExperimentFile(options, worker, experiments));
  EBB_TRY(TakeNow(file->Read()));
  return file;
}

// By its content, as a token file.
absl::StatusOr<FileChange> ExperimentFile::Read() {
  EBB_ASSIGN(std::string text, ReadText(options_.path));
  if (text == text_) return FileChange();
  EBB_ASSIGN(std::vector<ExperimentSpec> specs, ExperimentsFrom(options_.path, text, LimitsOf(worker_.model())));
  return FileChange{.paths = {options_.path},
                    .take = [this, text = std::move(text), specs = std::move(specs)]() mutable {
                      return Take(std::move(text), std::move(specs));
                    }};
}

absl::Status ExperimentFile::Take(std::string text, std::vector<ExperimentSpec> specs) {
  const size_t count = specs.size();
  std::promise<absl::Status> applied;
  worker_.Ask<bool>(
      [this, at_start = !text_, specs = std::move(specs)](Dispatcher& dispatcher) -> absl::StatusOr<bool> {
        EBB_TRY(ApplyExperiments(specs, dispatcher, experiments_, at_start));
        return true;
      },
      [&](const absl::StatusOr<bool>& result) { applied.set_value(result.status()); });
  EBB_TRY(applied.get_future().get());
  text_ = std::move(text);
  LogInfo("experiments_read", {{"file", options_.path}, {"experiments", count}});
  return absl::OkStatus();
}

}  // namespace ebb
