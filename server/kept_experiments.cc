#include "server/kept_experiments.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "policies/status.h"
#include "server/convert_experiment.h"
#include "server/experiment_export.h"
#include "server/experiment_image.h"
#include "server/log.h"
#include "server/resource_name.h"
#include "server/start_experiment.h"

namespace ebb {
namespace {

constexpr char kEnding[] = ".experiment";
constexpr char kAside[] = ".damaged";
constexpr char kFolder[] = "experiments";

// REQUIRES: `id` is a resource name.
std::string FileOfExperiment(const std::string& id) { return absl::StrCat(id, kEnding); }

// Whether sessions of this server could be in the arms; then the policies are those that they would have.
absl::Status TakeArms(Worker& worker, ExperimentSpec& spec) {
  EBB_TRY(TakePolicies(spec, LimitsOf(worker.model())));
  std::promise<absl::Status> checked;
  worker.Ask<bool>(
      [&spec](Dispatcher& dispatcher) -> absl::StatusOr<bool> {
        EBB_TRY(CheckArms(dispatcher, spec));
        return true;
      },
      [&](const absl::StatusOr<bool>& result) { checked.set_value(result.status()); });
  return checked.get_future().get();
}

}  // namespace

absl::StatusOr<std::unique_ptr<KeptExperiments>> KeptExperiments::Open(const std::string& dir, Experiments& experiments,
                                                                       const ExperimentFileMetrics& metrics) {
  const OpenFile root(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root.ok()) return StoreUnusable(dir, "opening it", errno);
  auto folder = MakeFolder(root, kFolder);
  if (!folder.ok()) return StoreUnusable(dir, folder.status());
  std::vector<std::string> names;
  if (const int error = ListNames(*folder, names); error != 0) return StoreUnusable(dir, "listing experiments", error);
  for (const std::string& name : names) {
    if (IsBeside(name)) unlinkat(folder->get(), name.c_str(), 0);  // else another time
  }
  std::unique_ptr<KeptExperiments> kept(new KeptExperiments(dir, *std::move(folder), experiments, metrics));
  EBB_ASSIGN(kept->found_, kept->ReadAll(names));
  return kept;
}

absl::StatusOr<WholeExperiment> KeptExperiments::Read(const std::string& id) const {
  EBB_ASSIGN(const std::string bytes, ReadFile(folder_, FileOfExperiment(id)));
  EBB_ASSIGN(WholeExperiment whole, ReadExperimentImage(bytes));
  if (whole.state.spec.name == id) return whole;
  return absl::InvalidArgumentError(absl::StrCat("it is of experiments/", whole.state.spec.name));
}

void KeptExperiments::SetAside(const std::string& id, const absl::Status& why) const {
  const std::string file = FileOfExperiment(id);
  LogError("experiment_set_aside", {{"experiment", id}, {"file", file}, {"error", std::string(why.message())}},
           "its results so far are not read, and it is not running");
  metrics_.set_aside.Add();
  if (renameat(folder_.get(), file.c_str(), folder_.get(), absl::StrCat(file, kAside).c_str()) != 0) {
    StoreFailed("setting aside", file, errno).IgnoreError();  // which logs it; the next write replaces the file
  }
}

// Of these files those that are whole, the last that was started first.
absl::StatusOr<std::vector<WholeExperiment>> KeptExperiments::ReadAll(const std::vector<std::string>& names) const {
  std::vector<WholeExperiment> all;
  for (const std::string& name : names) {
    const std::string id(absl::StripSuffix(name, kEnding));
    if (id == name || !IsResourceName(id)) continue;
    auto whole = Read(id);
    if (whole.ok()) {
      all.push_back(*std::move(whole));
    } else if (absl::IsInvalidArgument(whole.status())) {
      SetAside(id, whole.status());
    } else {
      return StoreUnusable(dir_, whole.status());
    }
  }
  std::ranges::stable_sort(all, std::ranges::greater(), [](const WholeExperiment& each) { return each.state.started; });
  return all;
}

void KeptExperiments::BringBack(Worker& worker, bool has_file) {
  const auto restore = [&](WholeExperiment& whole) -> absl::Status {
    if (whole.state.running()) {
      if (whole.state.configured && !has_file) {
        return absl::NotFoundError("experiments.file, which named it, is not set");
      }
      if (whole.state.model != worker.model().fingerprint) {
        return absl::FailedPreconditionError(absl::StrCat("its sessions had the model ", whole.state.model,
                                                          ", and this is ", worker.model().fingerprint,
                                                          ": they do not compare"));
      }
      EBB_TRY(TakeArms(worker, whole.state.spec));
    }
    return experiments_.Restore(whole);
  };
  for (WholeExperiment& whole : std::exchange(found_, {})) {
    const std::string id = whole.state.spec.name;
    const bool ran = whole.state.running();
    absl::Status status = restore(whole);
    if (!status.ok() && ran) {
      LogWarn("experiment_stopped", {{"experiment", id}, {"error", std::string(status.message())}},
              "it ran when the server before this one ended, and cannot go on; its results stay");
      whole.state.stopped = absl::Now();
      status = experiments_.Restore(whole);
    }
    if (!status.ok()) {
      LogError("experiment_not_brought_back", {{"experiment", id}, {"error", std::string(status.message())}});
      continue;
    }
    LogInfo("experiment_brought_back", {{"experiment", id}, {"running", whole.state.running()}});
    // One that was stopped just now is written by the thread.
    if (ran == whole.state.running()) files_[id] = {.revision = experiments_.Revisions()[id], .at = absl::Now()};
  }
}

void KeptExperiments::Start() {
  thread_.emplace(kLookEvery, [this] { WriteChanged(absl::Now(), kWriteEvery); });
}

void KeptExperiments::Finish() {
  thread_.reset();
  WriteChanged(absl::Now(), absl::ZeroDuration());
}

// Those that have stopped first: whoever is killed in between must not leave two that run where one took the other's
// place.
void KeptExperiments::WriteChanged(absl::Time now, absl::Duration every) {
  const std::map<std::string, Experiments::Revision> revisions = experiments_.Revisions();
  for (const bool running : {false, true}) {
    for (const auto& [id, revision] : revisions) {
      const auto file = files_.find(id);
      if (revision.running != running) continue;
      if (file != files_.end()) {
        const Written& written = file->second;
        const bool same = written.whole && written.revision == revision;
        const bool decided = written.revision.start != revision.start || written.revision.decided != revision.decided;
        const bool is_due = now >= written.at + every || now < written.at;  // or somebody set the clock back
        if (same || (!decided && !is_due)) continue;
      }
      Written& written = files_[id];
      written = {.revision = revision, .at = now};
      const absl::Status status = Write(id, written);
      if (status.ok()) continue;
      written.whole = false;
      metrics_.failed.Add();
      LogError("experiment_not_kept", {{"experiment", id}, {"error", std::string(status.message())}},
               "it is tried again within a minute");
    }
  }
  RemoveForgotten(revisions);
}

absl::Status KeptExperiments::Write(const std::string& id, Written& written) {
  auto parts = ExperimentExport::Of(experiments_, id);
  if (!parts.ok()) return absl::OkStatus();  // it was forgotten meanwhile; its file goes next
  written.revision = parts->revision();
  ExperimentImage image;
  while (true) {
    auto part = parts->Next();
    if (!part.ok()) return absl::OkStatus();  // it has stopped meanwhile, which is written next
    if (!*part) break;
    image.Add(**part);
  }
  EBB_TRY(ReplaceFile(folder_, FileOfExperiment(id), std::move(image).Seal(), true));
  metrics_.written.Add();
  return absl::OkStatus();
}

void KeptExperiments::RemoveForgotten(const std::map<std::string, Experiments::Revision>& revisions) {
  std::erase_if(files_, [&](const auto& entry) {
    if (revisions.contains(entry.first)) return false;
    const std::string file = FileOfExperiment(entry.first);
    if (unlinkat(folder_.get(), file.c_str(), 0) == 0 || errno == ENOENT) return true;
    StoreFailed("removing", file, errno).IgnoreError();
    return false;
  });
}

}  // namespace ebb
