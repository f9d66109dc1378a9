// The thread that owns one engine, its sessions and its scheduler. Others leave it messages in a bounded mailbox and
// get answers through callbacks and call outputs, on the worker's thread or, where sessions are journaled, on the
// journal's; they never wait for it.
//
// The loop: take what came in, close the step that ran and plan the next, run it, and leave the journal what was done.
// So what arrives during a step is known when the next one is planned, and a cancelled call stops within one step. Of
// what takes longer, it takes one at a time, however many ask, and of work on a cache (Undertake) one piece before each
// step, that takes no longer than the step before it took: only the session that is worked on waits for the whole.

#ifndef EBB_SERVER_WORKER_H_
#define EBB_SERVER_WORKER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "engine/engine.h"
#include "server/call.h"
#include "server/clock.h"
#include "server/dispatcher.h"
#include "server/mailbox.h"
#include "server/metrics.h"

namespace ebb {

class Worker {
 public:
  // Starts the thread. `metrics` outlives the worker.
  Worker(std::unique_ptr<Engine> engine, const DispatcherOptions& options, Metrics& metrics);
  // Stops it. REQUIRES: no call is left.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Any thread; these never change.
  const ModelConfig& model() const { return engine_->config(); }
  const Tokenizer& tokenizer() const { return engine_->tokenizer(); }
  int32_t step_tokens_max() const { return engine_->step_tokens_max(); }
  int32_t threads() const { return engine_->threads(); }
  const std::string& fingerprint() const { return fingerprint_; }
  const std::string& gpu_products() const { return gpu_products_; }  // DeviceUse.products; empty: it has none
  ImageLimits image_limits() const { return engine_->image_limits(); }

  // Any thread.
  absl::Time Now() const { return dispatcher_.clock().Now(); }
  // How long it has been at what it does between two looks into the mailbox, a step at most; zero: it waits for work.
  absl::Duration busy_for() const;
  absl::StatusOr<SessionView> Look(const std::string& tenant, const std::string& id) const {
    return dispatcher_.Look(tenant, id);
  }

  // Any thread. Asks a question of the dispatcher between two steps; `answer` gets what `question` returned, when that
  // is written, or why it cannot be, or UNAVAILABLE QUEUE_FULL, at once. Effort::kLong: in time that grows with the
  // cache, such as a copy of it.
  template <typename Answer>
  void Ask(absl::AnyInvocable<absl::StatusOr<Answer>(Dispatcher&)> question,
           absl::AnyInvocable<void(absl::StatusOr<Answer>)> answer, Effort effort = Effort::kShort) {
    // Both sides of a refusal need the answer, and only one gets it.
    auto reply = std::make_unique<decltype(answer)>(std::move(answer));
    auto* const refused = reply.get();
    Message message = Question<Answer>{std::move(question), std::move(reply)};
    if (!mailbox_.Offer(std::move(message), effort)) (*refused)(QueueFull());
  }

  // Any thread. The same for what the dispatcher does in pieces: `order` hands the asker on to it. After all work that
  // was ordered before.
  template <typename Answer>
  void Undertake(absl::AnyInvocable<void(Dispatcher&, Asker<Answer>)> order, Asker<Answer> asker) {
    auto waiting = std::make_unique<Asker<Answer>>(std::move(asker));
    auto* const refused = waiting.get();
    Message message = [order = std::move(order), waiting = std::move(waiting)](Dispatcher& dispatcher) mutable {
      order(dispatcher, std::move(*waiting));
    };
    if (!mailbox_.Offer(std::move(message), Effort::kLong)) refused->answer(QueueFull());
  }

  // Any thread. A number for a call, never 0 and never given again.
  CallId NewCallId() { return ++calls_made_; }
  // Any thread. `output` lives until it gets its End, which it does in any case: on the worker's thread, or, when the
  // mailbox is full, at once.
  void Start(CallId id, CallRequest request, CallOutput& output);
  // Any thread. News about a call; ignored when it is over.
  void Cancel(CallId id);
  void ReaderReady(CallId id);

  // Any thread. As Start and Cancel, of Dispatcher::Watch.
  void Watch(CallId id, WatchRequest request, EvictionWatcher& watcher);
  void Unwatch(CallId id);

  // Any thread. Between two steps; of what is new from then on.
  void SetTenants(std::shared_ptr<const TenantTable> tenants);
  // Likewise, of sessions that are open, too.
  void SetLive(const LiveOptions& live);

  // Any thread. From now on nothing new is taken; calls that run end on their own or after `patience`. Once.
  void Drain(absl::Duration patience);
  // Waits until a drained worker has no call left.
  void WaitUntilIdle() { idle_.WaitForNotification(); }

 private:
  using Message = Dispatcher::Message;

  template <typename Answer>
  struct Question {
    absl::AnyInvocable<absl::StatusOr<Answer>(Dispatcher&)> ask;
    std::unique_ptr<absl::AnyInvocable<void(absl::StatusOr<Answer>)>> reply;

    void operator()(Dispatcher& dispatcher) {
      auto result = ask(dispatcher);
      if (dispatcher.awaits()) return dispatcher.Park(std::move(*this));
      dispatcher.Hold([reply = std::move(reply), result = std::move(result)](const absl::Status& written) mutable {
        (*reply)(written.ok() ? std::move(result) : absl::StatusOr<Answer>(written));
      });
    }
  };

  static absl::Status QueueFull();
  void Loop();

  const std::unique_ptr<Engine> engine_;
  const std::string fingerprint_;
  const std::string gpu_products_;
  Mailbox<Message> mailbox_;
  Dispatcher dispatcher_;  // the thread's alone, but for what may be called from any
  std::atomic<CallId> calls_made_ = 0;
  std::atomic<int64_t> busy_since_ = 0;  // Now, in nanoseconds; 0: the thread waits
  bool draining_ = false;                // the thread's
  absl::Notification idle_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace ebb

#endif  // EBB_SERVER_WORKER_H_
