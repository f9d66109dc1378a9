// The server's files read again while it runs: each by itself when its time has come, and all of them at SIGHUP and
// when an admin asks (AdminService.ReloadConfig).
//
// Who asks has all of what has changed taken, or nothing: every file is read and checked before the first one counts,
// and one that is bad leaves all as they are. By itself the server takes each file that is good, whatever another is
// like, so that a damaged one does not keep a certificate from being renewed. Files are compared by their content and
// opened by their paths each time, so a ConfigMap's links may be turned to another folder.
//
// One thread does it all, so that neither a signal nor gRPC waits for a disk, and no file needs a lock to be read. It
// waits for a file no longer than kFilePatience, and where the file system then still does not answer no more at all
// until it does: the others are taken meanwhile, and the server can end.

#ifndef EBB_SERVER_RELOAD_H_
#define EBB_SERVER_RELOAD_H_

#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/clock.h"
#include "server/live_file.h"
#include "server/mailbox.h"

namespace ebb {

// What was taken of those that were asked for.
struct Reloaded {
  std::vector<std::string> paths = {};
  std::vector<ConfigChange> keys = {};
};

class Reloader {
 public:
  // Each time that something was read which is not what was read before, or that somebody asked: how it went, and
  // whether any file is bad as it was last read. By the thread.
  using Told = std::function<void(const absl::Status& status, bool any_failing)>;

  Reloader() = default;
  ~Reloader() { Stop(); }
  Reloader(const Reloader&) = delete;
  Reloader& operator=(const Reloader&) = delete;

  // The thread begins.
  void Start(Told told);
  // It ends, after what was asked. Idempotent.
  void Stop();

  // Any thread. `file` is read by the thread, from now on; what it refers to outlives that. Files are taken in the
  // order in which they came. REQUIRES: none but the first refuses to be taken once it was read.
  void Add(LiveFile file);

  // Any thread. Reads all of them now; `answer`, by the thread, gets what was taken: FAILED_PRECONDITION NO_CONFIG_FILE
  // where there are none, or how the first of them that is bad was refused. UNAVAILABLE QUEUE_FULL at once.
  void Ask(absl::AnyInvocable<void(absl::StatusOr<Reloaded>)> answer);

 private:
  using Job = absl::AnyInvocable<void(Reloader&)>;
  static constexpr size_t kJobsMax = 16;

  struct Watched {
    LiveFile file = {};
    absl::Time next = {};      // look
    absl::Status judged = {};  // as it was last read
  };

  void Loop();
  absl::Time NextLook() const;
  void Look(Watched& watched);
  absl::StatusOr<Reloaded> Reload();
  absl::StatusOr<Reloaded> TakeAll();
  void Tell(const absl::Status& status);

  const Clock clock_ = {};
  Told told_ = {};
  std::vector<Watched> files_ = {};  // the thread's
  Mailbox<Job> jobs_{kJobsMax};
  std::thread thread_;
};

}  // namespace ebb

#endif  // EBB_SERVER_RELOAD_H_
