// The thread that works on plans (plan_eviction.h), one after another, so that neither the engine nor gRPC's threads
// do: a large plan takes longer than a step, and gRPC has few threads, on which every stream waits.

#ifndef EBB_SERVER_PLANNER_H_
#define EBB_SERVER_PLANNER_H_

#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/mailbox.h"

namespace ebb {

class Planner {
 public:
  using Task = absl::AnyInvocable<void()>;

  Planner() : tasks_(kWaitingMax), thread_([this] { Loop(); }) {}
  // Works on what is in, and stops.
  ~Planner();
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  // Any thread. False when kWaitingMax tasks wait; `task` is then left as it was.
  bool Offer(Task&& task) { return tasks_.Offer(std::move(task)); }

  // UNAVAILABLE QUEUE_FULL with RetryInfo: what a call is answered whose task was not taken.
  static absl::Status QueueFull();

 private:
  // Each holds a request in memory, up to server.plan_size_max. As many again may be in the hands of the thread.
  static constexpr size_t kWaitingMax = 4;

  void Loop();

  Mailbox<Task> tasks_;
  std::thread thread_;  // last: it uses the above
};

}  // namespace ebb

#endif  // EBB_SERVER_PLANNER_H_
