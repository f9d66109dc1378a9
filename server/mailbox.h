// What many threads leave for one. Requests are bounded: a full mailbox refuses them at once and nobody waits. News
// about requests that are already in (a cancel, a reader that caught up) are few per request and always taken. Requests
// that keep the reader long come out one at a time, so that it can see to other work between two of them, and are
// counted by themselves, so that a crowd of them closes the door to no one else.

#ifndef EBB_SERVER_MAILBOX_H_
#define EBB_SERVER_MAILBOX_H_

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace ebb {

enum class Effort { kShort, kLong };  // of the reader, for an item

template <typename Item>
class Mailbox {
 public:
  explicit Mailbox(size_t capacity) : capacity_(capacity) {}

  // Any thread. What is in stays.
  void SetCapacity(size_t capacity) {
    const std::lock_guard lock(mutex_);
    capacity_ = capacity;
  }

  // Any thread. False when `capacity` items of the same effort wait, or after Close; `item` is then left as it was.
  bool Offer(Item&& item, Effort effort = Effort::kShort) {
    {
      const std::lock_guard lock(mutex_);
      const bool takes_long = effort == Effort::kLong;
      if (closed_ || (takes_long ? long_items_.size() : items_.size()) >= capacity_) return false;
      if (takes_long) {
        long_items_.push_back(std::move(item));
      } else {
        items_.push_back(std::move(item));
      }
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

  // The one reader. Replaces `items` by all that is in, of what takes long by the oldest alone, which then is the last
  // of them, or with `takes_long` false by none; waits up to `patience` when there is nothing. False when the mailbox
  // is closed and empty.
  bool Take(std::vector<Item>& items, absl::Duration patience, bool takes_long = true) {
    items.clear();
    std::unique_lock lock(mutex_);
    const auto ready = [this, takes_long] {
      return closed_ || !items_.empty() || (takes_long && !long_items_.empty());
    };
    // An hour at most, since a far-off wait overflows the library's clock; waking for nothing is harmless.
    arrived_.wait_for(lock, absl::ToChronoNanoseconds(std::min(patience, absl::Hours(1))), ready);
    items.swap(items_);
    if (takes_long && !long_items_.empty()) {
      items.push_back(std::move(long_items_.front()));
      long_items_.pop_front();
    }
    return !closed_ || !items.empty() || !long_items_.empty();
  }

 private:
  std::mutex mutex_;
  size_t capacity_;
  std::condition_variable arrived_;
  std::vector<Item> items_;
  std::deque<Item> long_items_;
  bool closed_ = false;
};

}  // namespace ebb

#endif  // EBB_SERVER_MAILBOX_H_
