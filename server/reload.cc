#include "server/reload.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "policies/status.h"
#include "server/log.h"

namespace ebb {
namespace {

void LogRefusal(const std::string& path, const absl::Status& status) {
  const std::string reason(status.message());
  LogError("config_not_taken", {{"file", path}, {"reason", reason}}, "what was read before stays in force");
}

}  // namespace

void Reloader::Start(Told told) {
  told_ = std::move(told);
  thread_ = std::thread([this] { Loop(); });
}

void Reloader::Stop() {
  jobs_.Close();
  if (thread_.joinable()) thread_.join();
}

void Reloader::Add(LiveFile file) {
  jobs_.Post([file = std::move(file)](Reloader& reloader) mutable {
    const absl::Time next = reloader.clock_.Now() + file.every;
    reloader.files_.push_back({.file = std::move(file), .next = next});
  });
}

void Reloader::Ask(absl::AnyInvocable<void(absl::StatusOr<Reloaded>)> answer) {
  auto waiting = std::make_unique<absl::AnyInvocable<void(absl::StatusOr<Reloaded>)>>(std::move(answer));
  auto* const refused = waiting.get();
  Job job = [waiting = std::move(waiting)](Reloader& reloader) mutable { (*waiting)(reloader.Reload()); };
  if (jobs_.Offer(std::move(job))) return;
  (*refused)(Refuse(absl::StatusCode::kUnavailable, "too many calls wait for the configuration",
                    {.reason = "QUEUE_FULL", .retry = absl::Seconds(1)}));
}

void Reloader::Loop() {
  std::vector<Job> jobs;
  while (jobs_.Take(jobs, NextLook() - clock_.Now())) {
    for (Job& job : jobs) job(*this);
    // One file, so that whoever wants the thread waits for no more than that.
    const auto due = std::ranges::min_element(files_, {}, &Watched::next);
    if (due == files_.end() || clock_.Now() < due->next) continue;
    Look(*due);
    due->next = clock_.Now() + due->file.every;
  }
}

absl::Time Reloader::NextLook() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Watched& watched : files_) next = std::min(next, watched.next);
  return next;
}

void Reloader::Look(Watched& watched) {
  absl::StatusOr<FileChange> change = watched.file.read();
  absl::Status status = change.status();
  const bool is_new = change.ok() && !change->paths.empty();
  if (is_new) status = TakeNow(std::move(change));
  // It is as good or as bad as it was; what is refused when it is taken is read as new at each look.
  if (status == watched.judged && (!is_new || !status.ok())) return;
  if (!status.ok() && status != watched.judged) LogRefusal(watched.file.path, status);
  watched.judged = status;
  Tell(status);
}

absl::StatusOr<Reloaded> Reloader::Reload() {
  if (files_.empty()) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  "the server runs without --config, tokens, certificates and experiments: there is no file to read",
                  {.reason = "NO_CONFIG_FILE"});
  }
  absl::StatusOr<Reloaded> reloaded = TakeAll();
  for (const Watched& watched : files_) {
    if (!watched.judged.ok()) LogRefusal(watched.file.path, watched.judged);
  }
  Tell(reloaded.status());
  return reloaded;
}

absl::StatusOr<Reloaded> Reloader::TakeAll() {
  std::vector<FileChange> changes;
  absl::Status bad;
  for (Watched& watched : files_) {
    absl::StatusOr<FileChange> change = watched.file.read();
    watched.judged = change.status();
    bad.Update(change.status());
    if (change.ok()) changes.push_back(*std::move(change));
  }
  EBB_TRY(bad);
  Reloaded all;
  for (size_t i = 0; i < files_.size(); ++i) {
    FileChange& change = changes[i];
    std::move(change.paths.begin(), change.paths.end(), std::back_inserter(all.paths));
    std::move(change.keys.begin(), change.keys.end(), std::back_inserter(all.keys));
    files_[i].judged = TakeNow(std::move(change));
    EBB_TRY(files_[i].judged);
  }
  return all;
}

void Reloader::Tell(const absl::Status& status) {
  told_(status, std::ranges::any_of(files_, [](const Watched& watched) { return !watched.judged.ok(); }));
}

}  // namespace ebb
