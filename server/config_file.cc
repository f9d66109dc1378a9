#include "server/config_file.h"

#include <utility>
#include <vector>

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

}  // namespace

ConfigFile::ConfigFile(const CommandLine& line, const std::map<std::string, std::string>& variables,
                       const LoadedConfig& loaded, Steps steps)
    : line_(line), variables_(variables), steps_(std::move(steps)), text_(loaded.text), in_force_(loaded.config) {}

LiveFile ConfigFile::AsLiveFile() {
  return {
      .path = line_.config_file, .every = ToDuration(in_force().server().reload()), .read = [this] { return Read(); }};
}

config::v1::Config ConfigFile::in_force() const {
  const std::lock_guard lock(mutex_);
  return in_force_;
}

absl::StatusOr<FileChange> ConfigFile::Read() {
  EBB_ASSIGN(const std::string text, ReadConfigFile(line_.config_file));
  EBB_ASSIGN(LoadedConfig loaded, LoadConfigText(line_, variables_, text));
  FileChange change = {.keys = ConfigChanges(in_force(), loaded.config)};
  if (text != text_) change.paths = {line_.config_file};
  EBB_TRY(CheckReloadable(change.keys));
  EBB_TRY(steps_.check(loaded.config));
  change.take = [this, loaded = std::move(loaded)]() mutable { return Take(std::move(loaded)); };
  return change;
}

absl::Status ConfigFile::Take(LoadedConfig loaded) {
  EBB_TRY(steps_.take(loaded.config));
  std::vector<std::string> texts;
  for (const ConfigChange& change : ConfigChanges(in_force(), loaded.config)) texts.push_back(TextOf(change));
  LogInfo("config_taken", {{"file", line_.config_file}, {"changes", texts.size()}}, absl::StrJoin(texts, ", "));
  text_ = std::move(loaded.text);
  const std::lock_guard lock(mutex_);
  in_force_ = std::move(loaded.config);
  return absl::OkStatus();
}

}  // namespace ebb
