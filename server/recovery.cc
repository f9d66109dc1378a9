#include "server/recovery.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <iterator>
#include <new>
#include <string>

#include "policies/status.h"
#include "server/kept_sessions.h"
#include "server/log.h"

namespace ebb {
namespace {

constexpr auto kPause = std::chrono::milliseconds(500);  // before those that found no room are tried again

bool GiveUp(Worker& worker, const SessionName& name) {
  std::promise<bool> heard;
  worker.Ask<bool>(
      [&name](Dispatcher& dispatcher) -> absl::StatusOr<bool> {
        dispatcher.GiveUp(name);
        return true;
      },
      [&heard](const absl::StatusOr<bool>& answer) { heard.set_value(answer.ok()); });
  return heard.get_future().get();
}

}  // namespace

Recovery::~Recovery() { Stop(); }

void Recovery::Start(Worker& worker) {
  thread_ = std::thread([this, &worker] { Loop(worker); });
}

void Recovery::Add(const SessionName& name) {
  {
    const std::lock_guard lock(mutex_);
    added_.push_back(name);
  }
  changed_.notify_all();
}

void Recovery::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool Recovery::stopped() {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

void Recovery::Loop(Worker& worker) {
  std::vector<SessionName> waiting;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      const auto ready = [this] { return stopped_ || !added_.empty(); };
      if (waiting.empty()) {
        changed_.wait(lock, ready);
      } else {
        changed_.wait_for(lock, kPause, ready);
      }
      waiting.insert(waiting.end(), added_.begin(), added_.end());
      added_.clear();
    }
    std::erase_if(waiting, [&](const SessionName& name) { return !stopped() && IsSettled(worker, name); });
    if (stopped()) return;
  }
}

// False where it has to be tried again.
bool Recovery::IsSettled(Worker& worker, const SessionName& name) {
  const absl::Time start = worker.Now();
  const absl::StatusOr<bool> back = BringBack(worker, name);
  const std::string session = HashForLog(name.second);
  if (back.ok() && *back) {
    LogInfo("recovered", {{"tenant", name.first}, {"session", session}, {"ms", worker.Now() - start}},
            "a session that the GPU lost goes on");
    return true;
  }
  if (back.ok()) return GiveUp(worker, name);
  const bool is_hopeless = IsHopeless(back.status(), true);
  if (is_hopeless || std::ranges::find(refused_, name) == refused_.end()) {
    LogError("not_recovered",
             {{"tenant", name.first},
              {"session", session},
              {"reason", GetRefusal(back.status()).reason},
              {"error", ErrorForLog(back.status(), name.second)}},
             is_hopeless ? "its journal is set aside" : "it is tried again");
    refused_.push_back(name);
  }
  if (!is_hopeless || !files_.SetAside(name).ok()) return false;
  metrics_.set_aside.Add();
  return GiveUp(worker, name);
}

absl::StatusOr<bool> Recovery::BringBack(Worker& worker, const SessionName& name) {
  try {
    return BringBackJournal(worker, files_, metrics_, name);
  } catch (const std::bad_alloc&) {
    return Refuse(absl::StatusCode::kUnavailable, "no memory for it", {.reason = "NO_MEMORY"});
  }
}

}  // namespace ebb
