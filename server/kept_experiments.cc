#include "server/kept_experiments.h"

#include <algorithm>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "policies/status.h"
#include "server/convert_experiment.h"
#include "server/experiment_export.h"
#include "server/experiment_folder.h"
#include "server/experiment_image.h"
#include "server/files.h"
#include "server/log.h"
#include "server/redis_experiments.h"
#include "server/start_experiment.h"

namespace ebb {
namespace {

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

absl::StatusOr<std::unique_ptr<KeptExperiments>> KeptExperiments::Open(const std::string& dir, const RedisStore* shared,
                                                                       Experiments& experiments, Worker& worker,
                                                                       const ExperimentFileMetrics& metrics) {
  std::unique_ptr<KeptExperiments> kept;
  if (dir.empty()) {
    if (shared == nullptr) return kept;
    const RedisStoreOptions& options = shared->options();
    auto store =
        std::make_unique<RedisExperiments>(options.redis, options.prefix, shared->keys().server(), options.lease);
    kept.reset(new KeptExperiments(std::move(store), options.lease, experiments, worker, metrics));
    return kept;
  }
  EBB_ASSIGN(auto store, ExperimentFolder::Open(dir));
  kept.reset(new KeptExperiments(std::move(store), absl::InfiniteDuration(), experiments, worker, metrics));
  const auto lefts = kept->store_->Find();
  if (!lefts.ok()) return StoreUnusable(dir, lefts.status());
  for (const Left& left : *lefts) {
    auto whole = kept->Read(left);
    if (!whole.ok()) return StoreUnusable(dir, whole.status());
    if (*whole) kept->found_.push_back(**std::move(whole));
  }
  std::ranges::stable_sort(kept->found_, std::ranges::greater(),
                           [](const WholeExperiment& each) { return each.state.started; });  // the last one first
  return kept;
}

absl::StatusOr<std::optional<WholeExperiment>> KeptExperiments::Read(const Left& left) {
  EBB_ASSIGN(const std::string bytes, store_->Read(left));
  auto whole = ReadExperimentImage(bytes);
  if (whole.ok() && whole->state.spec.name != left.id) {
    whole = absl::InvalidArgumentError(absl::StrCat("it is of experiments/", whole->state.spec.name));
  }
  if (whole.ok()) return *std::move(whole);
  SetAside(left, whole.status());
  return std::nullopt;
}

void KeptExperiments::SetAside(const Left& left, const absl::Status& why) {
  const auto aside = store_->SetAside(left);  // else the next write replaces it, or it is found again
  metrics_.set_aside.Add();
  LogError("experiment_set_aside",
           {{"experiment", left.id},
            {"file", aside.ok() ? *aside : std::string(aside.status().message())},
            {"error", std::string(why.message())}},
           "its results so far are not read, and it is not running");
}

absl::Status KeptExperiments::CheckGoesOn(ExperimentState& state) {
  if (state.model != worker_.model().fingerprint) {
    return absl::FailedPreconditionError(absl::StrCat("its sessions had the model ", state.model, ", and this is ",
                                                      worker_.model().fingerprint, ": they do not compare"));
  }
  return TakeArms(worker_, state.spec);
}

void KeptExperiments::BringBack(bool has_file) {
  const auto restore = [&](WholeExperiment& whole) -> absl::Status {
    if (whole.state.running()) {
      if (whole.state.configured && !has_file) {
        return absl::NotFoundError("experiments.file, which named it, is not set");
      }
      EBB_TRY(CheckGoesOn(whole.state));
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
  TakeLeft(absl::Now());
  thread_.emplace(kLookEvery, [this] {
    TakeLeft(absl::Now());
    WriteChanged(absl::Now(), kWriteEvery);
  });
}

void KeptExperiments::Finish() {
  thread_.reset();
  WriteChanged(absl::Now(), absl::ZeroDuration());
}

// Whoever leaves a place leaves nothing in it that is in memory here: others would have it, too.
void KeptExperiments::TakeLeft(absl::Time now) {
  const bool was_set_back = look_at_ - now > lease_;
  if (lease_ == absl::InfiniteDuration() || (now < look_at_ && !was_set_back)) return;
  look_at_ = now + lease_;
  const auto lefts = store_->Find();
  if (!lefts.ok()) return;  // the journal's thread says so
  std::set<std::string> unfit;
  for (const Left& left : *lefts) {
    const auto is_here = [&](const auto& entry) { return std::ranges::find(entry.second, left) != entry.second.end(); };
    if (std::ranges::any_of(merged_, is_here)) continue;
    auto whole = Read(left);
    const auto taken = whole.ok() && *whole ? taken_.find({left.id, (*whole)->state.started}) : taken_.end();
    if (taken != taken_.end()) {  // Redis came back as it was before that
      merged_[taken->second].push_back(left);
      files_[taken->second] = {.whole = false};
      continue;
    }
    const auto since = left_since_.try_emplace(left.place, now).first;
    const bool is_patient = now - since->second < kPatience * lease_;
    if (!whole.ok() || (*whole && !Take(left, **std::move(whole), is_patient))) unfit.insert(left.place);
  }
  // Another server may have them just now, and leave them, too.
  std::erase_if(left_since_, [&](const auto& entry) { return now - entry.second > 2 * kPatience * lease_; });
  if (!merged_.empty()) WriteChanged(now, kWriteEvery);
  for (const std::string& place : unfit) {
    const auto has_some = [&](const auto& entry) {
      return std::ranges::find(entry.second, place, &Left::place) != entry.second.end();
    };
    if (std::ranges::none_of(merged_, has_some)) store_->Leave(place).IgnoreError();  // else with the next look
  }
}

absl::Status KeptExperiments::Join(WholeExperiment& whole) {
  ExperimentState& state = whole.state;
  const auto known = experiments_.Look(state.spec.name);
  if (!state.running()) {
    return known.ok() ? absl::AlreadyExistsError("there is one of that name here") : Shelve(whole);
  }
  EBB_TRY(CheckGoesOn(state));
  if (known.ok()) {
    if (!AreAlike(known->state.spec, state.spec)) {
      return absl::FailedPreconditionError("it has another spec here, and only the ramp may differ");
    }
    return experiments_.Absorb(whole);
  }
  if (state.configured) return absl::NotFoundError("experiments.file of this server does not name it");
  return experiments_.Restore(whole);
}

absl::Status KeptExperiments::Shelve(const WholeExperiment& whole) {
  if (experiments_.Revisions().size() >= Experiments::kKeptMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this server has ", Experiments::kKeptMax, ", of which none is to be forgotten for it"));
  }
  return experiments_.Restore(whole);
}

bool KeptExperiments::Take(const Left& left, WholeExperiment whole, bool is_patient) {
  const bool ran = whole.state.running();
  std::string id = left.id;
  absl::Status status = Join(whole);
  if (!status.ok()) {
    const bool is_busy = absl::IsUnavailable(status);  // the worker; it has not been asked
    if (is_busy || (ran && is_patient)) return false;
    if (experiments_.Look(id).ok()) id = left.beside;
    whole.state.spec.name = id;
    if (ran) whole.state.stopped = absl::Now();
    const absl::Status shelved = Shelve(whole);
    if (shelved.ok()) {
      LogWarn("experiment_stopped", {{"experiment", left.id}, {"as", id}, {"error", std::string(status.message())}},
              "a server that is gone left it, and it does not go on here; its results stay");
    }
    status = shelved;
  }
  if (!status.ok()) {
    SetAside(left, status);
    return true;
  }
  merged_[id].push_back(left);
  taken_[{left.id, whole.state.started}] = id;
  LogInfo("experiment_brought_back", {{"experiment", id}, {"running", whole.state.running()}});
  return true;
}

ExperimentStore::Lefts KeptExperiments::MergedInto(const std::string& id) const {
  const auto merged = merged_.find(id);
  return merged == merged_.end() ? ExperimentStore::Lefts() : merged->second;
}

// Those that have stopped first: whoever is killed in between must not leave two that run where one took the other's
// place.
void KeptExperiments::WriteChanged(absl::Time now, absl::Duration every) {
  if (store_->HasBeenAway()) {
    for (auto& [_, written] : files_) written = {.whole = false};
  }
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
      if (absl::IsAborted(status)) return BeginAnew(now, status);
      written.whole = false;
      metrics_.failed.Add();
      LogError("experiment_not_kept", {{"experiment", id}, {"error", std::string(status.message())}},
               "it is tried again within a minute");
    }
  }
  const absl::Status removed = RemoveForgotten(revisions);
  if (absl::IsAborted(removed)) BeginAnew(now, removed);
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
  EBB_TRY(store_->Write(id, std::move(image).Seal(), MergedInto(id)));
  merged_.erase(id);
  metrics_.written.Add();
  return absl::OkStatus();
}

// The error of the last that could not be removed, which is tried again.
absl::Status KeptExperiments::RemoveForgotten(const std::map<std::string, Experiments::Revision>& revisions) {
  for (const auto& [id, _] : merged_) files_.try_emplace(id);  // forgotten before it was written
  absl::Status failed;
  std::erase_if(files_, [&](const auto& entry) {
    const std::string& id = entry.first;
    if (revisions.contains(id)) return false;
    const absl::Status removed = store_->Remove(id, MergedInto(id));
    if (!removed.ok()) {
      failed = removed;
      return false;
    }
    merged_.erase(id);
    return true;
  });
  return failed;
}

void KeptExperiments::BeginAnew(absl::Time now, const absl::Status& why) {
  experiments_.BeginAnew(now);
  files_.clear();
  merged_.clear();
  taken_.clear();
  LogWarn(
      "experiments_taken", {{"error", std::string(why.message())}},
      "it took this one for gone and goes on with what was seen here up to the last write; those that ran begin anew");
}

}  // namespace ebb
