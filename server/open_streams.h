// The streams that gRPC still has to write, so that who waits for them knows when there are none, and can end those of
// clients that stopped reading.

#ifndef EBB_SERVER_OPEN_STREAMS_H_
#define EBB_SERVER_OPEN_STREAMS_H_

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <mutex>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace ebb {

// Any thread.
class OpenStreams {
 public:
  OpenStreams() = default;
  // After the last Remove, whose end gRPC has waited for: taking the lock says so to who cannot see into gRPC.
  ~OpenStreams() { const std::lock_guard lock(mutex_); }
  OpenStreams(const OpenStreams&) = delete;
  OpenStreams& operator=(const OpenStreams&) = delete;

  // `context`, of the stream, lives until Remove.
  void Add(const grpc::CallbackServerContext& context) {
    const std::lock_guard lock(mutex_);
    contexts_.insert(&context);
  }
  void Remove(const grpc::CallbackServerContext& context) {
    const std::lock_guard lock(mutex_);
    contexts_.erase(&context);
    if (contexts_.empty()) none_.notify_all();  // while locked: who waits may destroy this
  }

  // Waits until there are none, at most for `patience`.
  void WaitUntilNone(absl::Duration patience) {
    std::unique_lock lock(mutex_);
    none_.wait_for(lock, absl::ToChronoNanoseconds(patience), [this] { return contexts_.empty(); });
  }

  // Ends them all, read or not. Their Removes come later, from threads of gRPC's.
  void CancelAll() {
    const std::lock_guard lock(mutex_);
    for (const grpc::CallbackServerContext* context : contexts_) context->TryCancel();
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  std::set<const grpc::CallbackServerContext*> contexts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ebb

#endif  // EBB_SERVER_OPEN_STREAMS_H_
