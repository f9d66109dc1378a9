// The one reactor for every server stream: one message on its way at a time, a bounded number waiting behind it.
//
// The worker pushes and closes; gRPC says when a message is gone. When the reader lags, messages that can be one are
// merged, so a slow reader gets fewer and larger ones; when the buffer is full, Push says so, and OnCaughtUp tells when
// it is half empty again.
//
// Lifetime: gRPC owns the reactor and destroys it after OnDone, which comes only after Close has finished the stream.
// So the worker may use it until its Close, and nobody after that.

#ifndef EBB_SERVER_STREAM_REACTOR_H_
#define EBB_SERVER_STREAM_REACTOR_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "server/call.h"

namespace ebb {

template <typename Message>
class StreamReactor : public grpc::ServerWriteReactor<Message> {
 public:
  explicit StreamReactor(size_t capacity) : capacity_(capacity) {}

 protected:
  // The worker's thread. kFull: push no more until OnCaughtUp; what was pushed is kept all the same.
  Reader Push(Message&& message) {
    {
      const std::lock_guard lock(mutex_);
      if (broken_) return Reader::kReady;  // nobody reads any more; OnCancel has said so
      if (writing_) {
        if (waiting_.empty() || !Merge(waiting_.back(), message)) waiting_.push_back(std::move(message));
        if (waiting_.size() < capacity_) return Reader::kReady;
        full_ = true;
        return Reader::kFull;
      }
      writing_ = true;
      current_ = std::move(message);
    }
    Write();
    return Reader::kReady;
  }

  // The worker's thread. False: it is full, or nobody reads any more; only who may lose a message asks.
  bool HasRoom() {
    const std::lock_guard lock(mutex_);
    return !broken_ && (!writing_ || waiting_.size() < capacity_);
  }

  // The worker's thread, once, and its last call. The stream ends with `status` after what waits; with `discard`, after
  // what is on its way.
  void Close(const grpc::Status& status, bool discard) {
    {
      const std::lock_guard lock(mutex_);
      end_ = status;
      full_ = false;
      if (discard) waiting_.clear();
      if (writing_) return;
    }
    this->Finish(status);
  }

  // Any thread: after kFull there is room again.
  virtual void OnCaughtUp() = 0;
  // Any thread, one at a time, in order: the message is handed to gRPC now as the `sequence`-th.
  virtual void OnWrite(Message& message, uint64_t sequence) = 0;
  // Puts `next` into `waiting` if the two can be one; else leaves both as they are and says false.
  virtual bool Merge(Message& waiting, Message& next) = 0;

 private:
  // REQUIRES: writing_ was set by the caller, and current_ is its message.
  void Write() {
    OnWrite(current_, sequence_++);
    this->StartWrite(&current_);
  }

  void OnWriteDone(bool ok) final {
    std::optional<grpc::Status> finish;
    bool write = false;
    bool caught_up = false;
    {
      const std::lock_guard lock(mutex_);
      if (!ok) {
        broken_ = true;
        waiting_.clear();
      }
      if (!waiting_.empty()) {
        current_ = std::move(waiting_.front());
        waiting_.pop_front();
        write = true;
      } else {
        writing_ = false;
        finish = end_;
      }
      if (full_ && waiting_.size() <= capacity_ / 2) {
        full_ = false;
        caught_up = true;
      }
    }
    if (caught_up) OnCaughtUp();
    if (write) Write();
    if (finish) this->Finish(*finish);
  }

  void OnDone() final { delete this; }

  const size_t capacity_;
  std::mutex mutex_;
  std::deque<Message> waiting_ ABSL_GUARDED_BY(mutex_);  // empty unless writing_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool full_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  Message current_ = {};   // of whoever set writing_
  uint64_t sequence_ = 0;  // likewise
};

}  // namespace ebb

#endif  // EBB_SERVER_STREAM_REACTOR_H_
