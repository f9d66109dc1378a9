// The configuration read again while the server runs: when the file of --config has changed, at SIGHUP, and when an
// admin asks (AdminService.ReloadConfig).
//
// All of what has changed is taken, or nothing: a file that the server would not start with, one that asks for a key
// which needs a restart, and one that the server cannot honour leave everything as it is, and say why. The file is
// compared by its content and opened by its path each time, so a ConfigMap's links may be turned to another folder.
//
// One thread does it all, so that neither a signal nor gRPC waits for a disk.

#ifndef EBB_SERVER_RELOAD_H_
#define EBB_SERVER_RELOAD_H_

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/clock.h"
#include "server/config.h"
#include "server/config_keys.h"
#include "server/mailbox.h"

namespace ebb {

using ConfigChangesOr = absl::StatusOr<std::vector<ConfigChange>>;

// OK, or FAILED_PRECONDITION NEEDS_RESTART naming each key that a running server does not take.
absl::Status CheckReloadable(const std::vector<ConfigChange>& changes);

// FAILED_PRECONDITION NO_CONFIG_FILE.
absl::Status NoConfigFile();

class Reloader {
 public:
  struct Steps {
    std::function<absl::Status(const config::v1::Config&)> take = {};  // all of it or, with an error, nothing
    std::function<void(const absl::Status&)> count = {};               // each attempt
  };

  // `line` and `variables` are what `loaded`, which is in force, was made of.
  Reloader(const CommandLine& line, const std::map<std::string, std::string>& variables, const LoadedConfig& loaded);
  ~Reloader() { Stop(); }
  Reloader(const Reloader&) = delete;
  Reloader& operator=(const Reloader&) = delete;

  // The thread begins. What was asked before waits for it.
  void Start(Steps steps);
  // It ends, after what was asked. Idempotent.
  void Stop();

  // REQUIRES: the thread does not run.
  const config::v1::Config& in_force() const { return in_force_; }

  // Any thread. Reads it now; `answer` gets what has changed, by the thread: FAILED_PRECONDITION NO_CONFIG_FILE,
  // NEEDS_RESTART; INVALID_ARGUMENT BAD_CONFIG, BAD_YAML, and what Steps::take says. UNAVAILABLE QUEUE_FULL at once.
  void Ask(absl::AnyInvocable<void(ConfigChangesOr)> answer);

 private:
  using Job = absl::AnyInvocable<void(Reloader&)>;
  static constexpr size_t kJobsMax = 16;

  void Loop();
  // Reloads if the file differs from what was last looked at.
  void Look();
  ConfigChangesOr Reload();
  ConfigChangesOr Take(const absl::StatusOr<std::string>& yaml);

  const CommandLine line_;
  const std::map<std::string, std::string> variables_;
  const absl::Duration every_;
  const Clock clock_ = {};
  config::v1::Config in_force_;
  absl::StatusOr<std::string> seen_;  // of the file, when it was last looked at
  Steps steps_ = {};
  Mailbox<Job> jobs_{kJobsMax};
  std::thread thread_;
};

}  // namespace ebb

#endif  // EBB_SERVER_RELOAD_H_
