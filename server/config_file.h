// The file of --config, as a running server reads it again: all of what has changed in it is taken, or nothing. One
// that the server would not start with, and one that asks for a key which needs a restart, are refused.

#ifndef EBB_SERVER_CONFIG_FILE_H_
#define EBB_SERVER_CONFIG_FILE_H_

#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/config.h"
#include "server/live_file.h"

namespace ebb {

class ConfigFile {
 public:
  struct Steps {
    std::function<absl::Status(const config::v1::Config&)> check = {};  // what take would make of it
    std::function<absl::Status(const config::v1::Config&)> take = {};   // REQUIRED: it takes what was checked
  };

  // `line` and `variables` are what `loaded`, which is in force, was made of. REQUIRES: `line` names a file.
  ConfigFile(const CommandLine& line, const std::map<std::string, std::string>& variables, const LoadedConfig& loaded,
             Steps steps);

  // Refers to this. Taken also where nothing has changed: a model that could not be loaded is tried again.
  LiveFile AsLiveFile();

  // Any thread.
  config::v1::Config in_force() const;

 private:
  // INVALID_ARGUMENT BAD_CONFIG, BAD_YAML, and what Steps::check says; FAILED_PRECONDITION NEEDS_RESTART naming each
  // key that a running server does not take.
  absl::StatusOr<FileChange> Read();
  absl::Status Take(LoadedConfig loaded);

  const CommandLine line_;
  const std::map<std::string, std::string> variables_;
  const Steps steps_;
  std::string text_;  // of what is in force
  mutable std::mutex mutex_;
  config::v1::Config in_force_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ebb

#endif  // EBB_SERVER_CONFIG_FILE_H_
