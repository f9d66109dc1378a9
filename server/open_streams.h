// Counts the streams that gRPC still has to write, so that a server that stops knows when it may cut its connections.

#ifndef EBB_SERVER_OPEN_STREAMS_H_
#define EBB_SERVER_OPEN_STREAMS_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace ebb {

class OpenStreams {
 public:
  // Any thread.
  void Add() {
    const std::lock_guard lock(mutex_);
    ++count_;
  }
  void Remove() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) none_.notify_all();  // while locked: who waits may destroy this
  }

  // Waits until there are none, at most for `patience`.
  void WaitUntilNone(absl::Duration patience) {
    std::unique_lock lock(mutex_);
    none_.wait_for(lock, absl::ToChronoNanoseconds(patience), [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ebb

#endif  // EBB_SERVER_OPEN_STREAMS_H_
