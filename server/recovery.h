// Sessions that a device took with it when it failed come back from their journals while the server runs, one after
// another, as they do at a start.
//
// One that finds no room is tried again until it does, and calls on it are told meanwhile that it is on its way
// (SESSION_RECOVERING). One that can never be opened is set aside, as at a start, and its name is free.

#ifndef EBB_SERVER_RECOVERY_H_
#define EBB_SERVER_RECOVERY_H_

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/metrics.h"
#include "server/session_files.h"
#include "server/worker.h"

namespace ebb {

class Recovery {
 public:
  // Both outlive it.
  Recovery(const SessionFiles& files, const JournalMetrics& metrics) : files_(files), metrics_(metrics) {}
  ~Recovery();  // Stop

  // Once.
  void Start(Worker& worker);
  // Any thread. DispatcherOptions::recover.
  void Add(const SessionName& name);
  // Brings back no more, and waits for the one that is on its way. What did not come back is in its journal. REQUIRES:
  // the worker is there.
  void Stop();

 private:
  void Loop(Worker& worker);
  bool IsSettled(Worker& worker, const SessionName& name);
  absl::StatusOr<bool> BringBack(Worker& worker, const SessionName& name);
  bool stopped();

  const SessionFiles& files_;
  const JournalMetrics& metrics_;
  std::vector<SessionName> refused_;  // the thread's: of those that wait, who was refused before

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<SessionName> added_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ebb

#endif  // EBB_SERVER_RECOVERY_H_
