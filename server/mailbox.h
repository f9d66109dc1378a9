// What many threads leave for one. Requests are bounded: a full mailbox refuses them at once and nobody waits. News
// about requests that are already in (a cancel, a reader that caught up) are few per request and always taken.

#ifndef EBB_SERVER_MAILBOX_H_
#define EBB_SERVER_MAILBOX_H_

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace ebb {

template <typename Item>
class Mailbox {
 public:
  explicit Mailbox(size_t capacity) : capacity_(capacity) {}

  // Any thread. False when `capacity` items wait, or after Close; `item` is then left as it was.
  bool Offer(Item&& item) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    arrived_.notify_one();
    return true;
  }

  // Any thread. Takes `item` however many wait.
  void Post(Item item) {
    {
      const std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
    }
    arrived_.notify_one();
  }

  // Any thread. The reader's next Take, after what is in, returns false.
  void Close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    arrived_.notify_one();
  }

  // The one reader. Replaces `items` by all that is in; waits up to `patience` when there is nothing. False when the
  // mailbox is closed and empty.
  bool Take(std::vector<Item>& items, absl::Duration patience) {
    items.clear();
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return closed_ || !items_.empty(); };
    // An hour at most, since a far-off wait overflows the library's clock; waking for nothing is harmless.
    arrived_.wait_for(lock, absl::ToChronoNanoseconds(std::min(patience, absl::Hours(1))), ready);
    items.swap(items_);
    return !closed_ || !items.empty();
  }

 private:
  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Item> items_;
  bool closed_ = false;
};

}  // namespace ebb

#endif  // EBB_SERVER_MAILBOX_H_
