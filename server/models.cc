#include "server/models.h"

#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/log.h"

namespace ebb {
namespace {

constexpr absl::Duration kLoadingRetry = absl::Seconds(1);

// What a refusal is about, and the field that says so.
struct Wanted {
  std::string field = {};
  std::string subject = {};
};

Wanted ByName(const std::string& model) {
  return {.field = "model", .subject = absl::StrFormat("model: the model '%s'", model)};
}

// REQUIRES: not kServing.
absl::Status NotServed(const Wanted& wanted, ModelState state, const std::string& problem = {}) {
  if (state == ModelState::kFailed) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("%s could not be loaded: %s", wanted.subject, problem),
                  {.reason = "MODEL_FAILED", .field = wanted.field});
  }
  if (state == ModelState::kUnloading) {
    return Refuse(absl::StatusCode::kUnavailable, absl::StrFormat("%s is being unloaded", wanted.subject),
                  {.reason = "MODEL_UNLOADING", .field = wanted.field});
  }
  return Refuse(absl::StatusCode::kUnavailable, absl::StrFormat("%s is being loaded", wanted.subject),
                {.reason = "MODEL_LOADING", .field = wanted.field, .retry = kLoadingRetry});
}

}  // namespace

// Of state, problem and model, the registry's mutex guards what others see.
struct Models::Entry {
  Entry(ModelId number, std::string of, ModelSpec what, std::shared_ptr<Entry> earlier)
      : id(number), name(std::move(of)), spec(std::move(what)), before(std::move(earlier)) {}

  const ModelId id;
  const std::string name;
  const ModelSpec spec;
  std::shared_ptr<Entry> before;  // of the same name, which goes first; null: none
  ModelState state = ModelState::kLoading;
  std::string problem = {};
  ModelLease model = {};
  absl::Duration patience = {};  // set before `stop`
  bool stays = false;            // likewise: until Join, for whoever still asks
  absl::Notification known;      // its sessions, by name
  absl::Notification stop;       // it is no longer wanted
  absl::Notification drained;    // no call on it runs
  absl::Notification gone;       // nothing is left of it
  std::thread thread;
};

Models::Models(ServedModel& main, SessionNames& names, Steps steps)
    : main_(main), main_lease_(&main, [](ServedModel*) {}), names_(names), steps_(std::move(steps)), made_(main.id()) {}

Models::~Models() {
  const absl::MutexLock lock(&mutex_);
  EBB_CHECK(wanted_.empty() && leaving_.empty());
}

void Models::Configure(const ModelTable& wanted, absl::Duration patience) {
  std::vector<std::shared_ptr<Entry>> gone;  // whose threads have ended
  std::vector<std::shared_ptr<Entry>> begun;
  {
    const absl::MutexLock lock(&mutex_);
    if (stopped_) return;
    std::erase_if(leaving_, [&](std::shared_ptr<Entry>& entry) {
      if (!entry->gone.HasBeenNotified()) return false;
      gone.push_back(std::move(entry));
      return true;
    });
    for (auto at = wanted_.begin(); at != wanted_.end();) {
      const auto now = wanted.find(at->first);
      if (now != wanted.end() && IsAs(*at->second, now->second)) {
        ++at;
        continue;
      }
      Stop(*at->second, patience);
      leaving_.push_back(std::move(at->second));
      at = wanted_.erase(at);
    }
    for (const auto& [name, spec] : wanted) {
      if (wanted_.contains(name)) continue;
      std::shared_ptr<Entry> before;
      for (const std::shared_ptr<Entry>& other : leaving_) {
        if (other->name == name) before = other;  // the last of them waits for those before it
      }
      auto entry = std::make_shared<Entry>(++made_, name, spec, std::move(before));
      if (entry->before == nullptr) begun.push_back(entry);
      entry->thread = std::thread([this, &of = *entry] { Serve(of); });
      wanted_.emplace(name, std::move(entry));
    }
  }
  for (const std::shared_ptr<Entry>& entry : gone) entry->thread.join();
  for (const std::shared_ptr<Entry>& entry : begun) entry->known.WaitForNotification();
}

bool Models::Leaves(const std::string& name, const ModelSpec& spec) const {
  const absl::MutexLock lock(&mutex_);
  const auto found = wanted_.find(name);
  return found != wanted_.end() && IsAs(*found->second, spec);
}

bool Models::IsAs(const Entry& entry, const ModelSpec& spec) {
  return entry.spec == spec && entry.state != ModelState::kFailed;  // what was wrong may have been put right
}

void Models::Stop(Entry& entry, absl::Duration patience) {
  entry.patience = patience;
  entry.stop.Notify();
}

void Models::SetState(Entry& entry, ModelState state, const std::string& problem) {
  {
    const absl::MutexLock lock(&mutex_);
    entry.state = state;
    entry.problem = problem;
  }
  steps_.changed(entry.name, state);
}

void Models::Serve(Entry& entry) {
  if (entry.before != nullptr) entry.before->gone.WaitForNotification();
  entry.before.reset();
  if (entry.stop.HasBeenNotified()) {  // while it waited: nothing of it is needed any more
    for (absl::Notification* const end : {&entry.known, &entry.drained, &entry.gone}) end->Notify();
    return;
  }
  SetState(entry, ModelState::kLoading);
  absl::StatusOr<std::unique_ptr<ServedModel>> opened = Open(entry);
  if (opened.ok()) {
    names_.ExpectNoMore(entry.id);
    Call(entry, **opened);
    (*opened)->Keep();
    opened->reset();
    LogInfo("model_unloaded", {{"model", entry.name}});
  } else {
    const std::string problem(opened.status().message());
    LogError("model_failed",
             {{"model", entry.name}, {"reason", GetRefusal(opened.status()).reason}, {"error", problem}},
             "it is not served; correct its configuration");
    SetState(entry, ModelState::kFailed, problem);
    entry.drained.Notify();
    entry.stop.WaitForNotification();
  }
  names_.ReleaseAll(entry.id);
  entry.gone.Notify();
}

absl::StatusOr<std::unique_ptr<ServedModel>> Models::Open(Entry& entry) {
  const absl::StatusOr<std::vector<SessionName>> kept = steps_.sessions(entry.name, entry.spec);
  if (kept.ok()) {
    for (const SessionName& name : *kept) names_.Expect(name, entry.id);
  }
  entry.known.Notify();
  EBB_TRY(kept.status());
  return steps_.open(entry.name, entry.spec, entry.id);
}

// Lets whoever wants call it, until it is no longer wanted and nobody does.
void Models::Call(Entry& entry, ServedModel& model) {
  absl::Notification returned;  // every lease
  {
    const absl::MutexLock lock(&mutex_);
    entry.model = ModelLease(&model, [&returned](ServedModel*) { returned.Notify(); });
  }
  steps_.joined();
  SetState(entry, ModelState::kServing);
  LogInfo("model_loaded", {{"model", entry.name}, {"path", entry.spec.path}}, "it takes calls");
  entry.stop.WaitForNotification();
  SetState(entry, ModelState::kUnloading);
  model.worker().Drain(entry.patience);
  model.worker().WaitUntilIdle();
  entry.drained.Notify();
  if (entry.stays) leave_.WaitForNotification();
  {
    ModelLease last;  // given back when the lock is
    const absl::MutexLock lock(&mutex_);
    last.swap(entry.model);
  }
  if (returned.WaitForNotificationWithTimeout(kFlush)) return;
  model.streams().CancelAll();  // their clients have stopped reading
  returned.WaitForNotification();
}

absl::StatusOr<ModelLease> Models::Find(const std::string& name) const {
  if (name.empty() || name == main_.name()) return main_lease_;
  const absl::MutexLock lock(&mutex_);
  const auto found = wanted_.find(name);
  if (found == wanted_.end()) return NotWanted(name);
  const Entry& entry = *found->second;
  if (entry.state == ModelState::kServing) return entry.model;
  return NotServed(ByName(name), entry.state, entry.problem);
}

absl::Status Models::NotWanted(const std::string& name) const {
  for (const std::shared_ptr<Entry>& entry : leaving_) {
    if (entry->name != name || entry->gone.HasBeenNotified()) continue;
    return NotServed(ByName(name), ModelState::kUnloading);
  }
  std::string known = absl::StrFormat("'%s'", main_.name());
  for (const auto& [other, entry] : wanted_) known += absl::StrFormat(", '%s'", other);
  return Refuse(absl::StatusCode::kNotFound,
                absl::StrFormat("model: there is no model '%s'; this server has %s", name, known),
                {.reason = "UNKNOWN_MODEL", .field = "model"});
}

absl::StatusOr<ModelLease> Models::Of(const std::string& tenant, const std::string& session) const {
  const ModelId id = names_.OwnerOf({tenant, session});
  if (id == 0 || id == main_.id()) return main_lease_;
  const absl::MutexLock lock(&mutex_);
  const auto lease = [&](const Entry& entry, ModelState state) -> absl::StatusOr<ModelLease> {
    if (entry.model != nullptr) return entry.model;
    return NotServed({.subject = absl::StrFormat("sessions/%s: its model '%s'", session, entry.name)}, state,
                     entry.problem);
  };
  for (const auto& [name, entry] : wanted_) {
    if (entry->id == id) return lease(*entry, entry->state);
  }
  for (const std::shared_ptr<Entry>& entry : leaving_) {
    if (entry->id == id) return lease(*entry, ModelState::kUnloading);
  }
  return main_lease_;  // it is gone by now, and the session with it
}

std::vector<ModelView> Models::List() const {
  std::vector<ModelView> list = {{.name = main_.name(), .model = main_lease_}};
  const absl::MutexLock lock(&mutex_);
  const auto add = [&list](const Entry& entry, ModelState state) {
    list.push_back(
        {.name = entry.name, .state = state, .path = entry.spec.path, .problem = entry.problem, .model = entry.model});
  };
  for (const auto& [name, entry] : wanted_) add(*entry, entry->state);
  for (const std::shared_ptr<Entry>& entry : leaving_) {
    const bool again = wanted_.contains(entry->name);  // which says more
    if (!again && !entry->gone.HasBeenNotified()) add(*entry, ModelState::kUnloading);
  }
  return list;
}

std::vector<ModelLease> Models::Loaded() const {
  std::vector<ModelLease> loaded = {main_lease_};
  const absl::MutexLock lock(&mutex_);
  for (const auto& [name, entry] : wanted_) {
    if (entry->model != nullptr) loaded.push_back(entry->model);
  }
  for (const std::shared_ptr<Entry>& entry : leaving_) {
    if (entry->model != nullptr) loaded.push_back(entry->model);
  }
  return loaded;
}

void Models::StopAll(absl::Duration patience) {
  const absl::MutexLock lock(&mutex_);
  stopped_ = true;
  for (const std::shared_ptr<Entry>& entry : leaving_) {
    if (entry->model != nullptr) entry->model->worker().Drain(patience);  // it may have been given longer
  }
  for (auto& [name, entry] : wanted_) {
    entry->stays = true;
    Stop(*entry, patience);
    leaving_.push_back(std::move(entry));
  }
  wanted_.clear();
}

void Models::WaitUntilDrained() {
  std::vector<std::shared_ptr<Entry>> called;  // one that is still being loaded has no calls
  {
    const absl::MutexLock lock(&mutex_);
    for (const std::shared_ptr<Entry>& entry : leaving_) {
      if (entry->model != nullptr) called.push_back(entry);
    }
  }
  for (const std::shared_ptr<Entry>& entry : called) entry->drained.WaitForNotification();
}

void Models::Join() {
  if (!leave_.HasBeenNotified()) leave_.Notify();
  std::vector<std::shared_ptr<Entry>> leaving;
  {
    const absl::MutexLock lock(&mutex_);
    leaving.swap(leaving_);
  }
  for (const std::shared_ptr<Entry>& entry : leaving) entry->thread.join();
}

}  // namespace ebb
