#include "server/worker.h"

#include "policies/status.h"

namespace ebb {

Worker::Worker(std::unique_ptr<Engine> engine, const DispatcherOptions& options, Metrics& metrics)
    : engine_(std::move(engine)),
      fingerprint_(engine_->fingerprint()),
      gpu_products_(engine_->device_use().value_or(DeviceUse()).products),
      mailbox_(static_cast<size_t>(options.live.queue_max)),
      dispatcher_(*engine_, options, metrics),
      thread_([this] { Loop(); }) {}

Worker::~Worker() {
  mailbox_.Close();
  thread_.join();
}

absl::Status Worker::QueueFull() {
  return Refuse(absl::StatusCode::kUnavailable, "too many messages wait for the worker",
                {.reason = "QUEUE_FULL", .retry = absl::Milliseconds(200)});
}

void Worker::Start(CallId id, CallRequest request, CallOutput& output) {
  request.came = Now();  // the step under way is what it waits for first
  Message message = [id, &output, call = std::move(request)](Dispatcher& dispatcher) mutable {
    dispatcher.Start(id, std::move(call), output);
  };
  if (!mailbox_.Offer(std::move(message))) output.End({.status = QueueFull()}, false);
}

void Worker::Cancel(CallId id) {
  mailbox_.Post([id](Dispatcher& dispatcher) { dispatcher.Cancel(id); });
}

void Worker::ReaderReady(CallId id) {
  mailbox_.Post([id](Dispatcher& dispatcher) { dispatcher.ReaderReady(id); });
}

void Worker::Watch(CallId id, WatchRequest request, EvictionWatcher& watcher) {
  Message message = [id, &watcher, watch = std::move(request)](Dispatcher& dispatcher) {
    dispatcher.Watch(id, watch, watcher);
  };
  if (!mailbox_.Offer(std::move(message))) watcher.End(QueueFull());
}

void Worker::Unwatch(CallId id) {
  mailbox_.Post([id](Dispatcher& dispatcher) { dispatcher.Unwatch(id); });
}

void Worker::SetTenants(std::shared_ptr<const TenantTable> tenants) {
  mailbox_.Post(
      [tenants = std::move(tenants)](Dispatcher& dispatcher) mutable { dispatcher.SetTenants(std::move(tenants)); });
}

void Worker::SetLive(const LiveOptions& live) {
  mailbox_.SetCapacity(static_cast<size_t>(live.queue_max));
  mailbox_.Post([live](Dispatcher& dispatcher) { dispatcher.SetLive(live); });
}

void Worker::Drain(absl::Duration patience) {
  mailbox_.Post([this, until = Now() + patience](Dispatcher& dispatcher) {
    draining_ = true;
    dispatcher.Drain(until);
  });
}

absl::Duration Worker::busy_for() const {
  const int64_t since = busy_since_;
  return since == 0 ? absl::ZeroDuration() : Now() - absl::FromUnixNanos(since);
}

void Worker::Loop() {
  dispatcher_.SetPost([this](Message news) { mailbox_.Post(std::move(news)); });
  std::vector<Message> messages;
  const auto take = [&] {
    busy_since_ = 0;
    // What waited goes before what comes.
    const bool is_open =
        mailbox_.Take(messages, dispatcher_.idle_time(), !dispatcher_.has_work() && !dispatcher_.has_ready());
    busy_since_ = absl::ToUnixNanos(Now());
    return is_open;
  };
  while (take()) {
    dispatcher_.HearJournal();
    for (Message& message : messages) message(dispatcher_);
    messages.clear();  // with what they hold
    dispatcher_.Settle();
    dispatcher_.Swap();
    dispatcher_.Work();
    dispatcher_.Commit();  // answers do not wait for the step
    if (dispatcher_.has_step()) {
      dispatcher_.RunStep();
      dispatcher_.Commit();
    }
    if (draining_ && dispatcher_.idle() && !idle_.HasBeenNotified()) {
      dispatcher_.FlushJournal();
      dispatcher_.EndWatches();
      idle_.Notify();
    }
  }
}

}  // namespace ebb
