// A thread that does the same again and again, and ends with its owner.

#ifndef EBB_SERVER_REPEATER_H_
#define EBB_SERVER_REPEATER_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/time/time.h"

namespace ebb {

class Repeater {
 public:
  // `task` is called by the thread alone, first after `every`. REQUIRES: every > 0.
  Repeater(absl::Duration every, std::function<void()> task)
      : thread_([this, every, task = std::move(task)] {
          std::unique_lock lock(mutex_);
          while (!stop_.wait_for(lock, absl::ToChronoNanoseconds(every), [this] { return stopping_; })) {
            lock.unlock();
            task();
            lock.lock();
          }
        }) {}

  // Waits for a call that runs.
  ~Repeater() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    stop_.notify_all();
    thread_.join();
  }
  Repeater(const Repeater&) = delete;
  Repeater& operator=(const Repeater&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;  // under mutex_
  std::thread thread_;     // last: it uses what stands above
};

}  // namespace ebb

#endif  // EBB_SERVER_REPEATER_H_
