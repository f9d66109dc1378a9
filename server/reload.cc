#include "server/reload.h"

#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "policies/status.h"
#include "server/log.h"

namespace ebb {
namespace {

std::string TextOf(const ConfigChange& change) {
  const auto shown = [](const std::string& value) { return value.empty() ? "\"\"" : value; };
  return absl::StrFormat("%s: %s -> %s", change.path, shown(change.before), shown(change.after));
}

}  // namespace

absl::Status CheckReloadable(const std::vector<ConfigChange>& changes) {
  std::vector<std::string> cold;
  std::string first;
  for (const ConfigChange& change : changes) {
    if (change.key->key.reload()) continue;
    if (cold.empty()) first = change.path;
    cold.push_back(TextOf(change));
  }
  if (cold.empty()) return absl::OkStatus();
  return Refuse(absl::StatusCode::kFailedPrecondition,
                absl::StrFormat("%s: only a restart can change that; nothing was changed", absl::StrJoin(cold, ", ")),
                {.reason = "NEEDS_RESTART", .field = first});
}

absl::Status NoConfigFile() {
  return Refuse(absl::StatusCode::kFailedPrecondition, "the server runs without --config: there is no file to read",
                {.reason = "NO_CONFIG_FILE"});
}

Reloader::Reloader(const CommandLine& line, const std::map<std::string, std::string>& variables,
                   const LoadedConfig& loaded)
    : line_(line),
      variables_(variables),
      every_(line.config_file.empty() ? absl::InfiniteDuration() : ToDuration(loaded.config.server().reload())),
      in_force_(loaded.config),
      seen_(loaded.text) {}

void Reloader::Start(Steps steps) {
  steps_ = std::move(steps);
  thread_ = std::thread([this] { Loop(); });
}

void Reloader::Stop() {
  jobs_.Close();
  if (thread_.joinable()) thread_.join();
}

void Reloader::Ask(absl::AnyInvocable<void(ConfigChangesOr)> answer) {
  auto waiting = std::make_unique<absl::AnyInvocable<void(ConfigChangesOr)>>(std::move(answer));
  auto* const refused = waiting.get();
  Job job = [waiting = std::move(waiting)](Reloader& reloader) mutable { (*waiting)(reloader.Reload()); };
  if (jobs_.Offer(std::move(job))) return;
  (*refused)(Refuse(absl::StatusCode::kUnavailable, "too many calls wait for the configuration",
                    {.reason = "QUEUE_FULL", .retry = absl::Seconds(1)}));
}

void Reloader::Loop() {
  std::vector<Job> jobs;
  absl::Time next = clock_.Now() + every_;
  while (jobs_.Take(jobs, next - clock_.Now())) {
    for (Job& job : jobs) job(*this);
    if (clock_.Now() < next) continue;
    Look();
    next = clock_.Now() + every_;
  }
}

void Reloader::Look() {
  absl::StatusOr<std::string> yaml = ReadConfigFile(line_.config_file);
  if (yaml == seen_) return;
  seen_ = yaml;
  Take(yaml).IgnoreError();  // which is logged
}

ConfigChangesOr Reloader::Reload() {
  if (line_.config_file.empty()) return NoConfigFile();
  seen_ = ReadConfigFile(line_.config_file);
  return Take(seen_);
}

ConfigChangesOr Reloader::Take(const absl::StatusOr<std::string>& yaml) {
  const auto take = [&]() -> ConfigChangesOr {
    EBB_ASSIGN(const std::string text, yaml);
    EBB_ASSIGN(const LoadedConfig loaded, LoadConfigText(line_, variables_, text));
    std::vector<ConfigChange> changes = ConfigChanges(in_force_, loaded.config);
    EBB_TRY(CheckReloadable(changes));
    EBB_TRY(steps_.take(loaded.config));
    in_force_ = loaded.config;
    return changes;
  };
  ConfigChangesOr changes = take();
  steps_.count(changes.status());
  if (!changes.ok()) {
    const std::string reason(changes.status().message());
    LogError("config_not_taken", {{"file", line_.config_file}, {"reason", reason}},
             "the configuration before stays in force");
    return changes;
  }
  std::vector<std::string> texts;
  for (const ConfigChange& change : *changes) texts.push_back(TextOf(change));
  LogInfo("config_taken", {{"file", line_.config_file}, {"changes", texts.size()}}, absl::StrJoin(texts, ", "));
  return changes;
}

}  // namespace ebb
