#include "server/models.h"

#include <array>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/log.h"

namespace ebb {
namespace {

constexpr absl::Duration kLoadingRetry = absl::Seconds(1);

}  // namespace

const char* NameOf(ModelState state) {
  constexpr std::array<const char*, kModelStates> kNames = {"loading", "serving", "unloading", "failed"};
  return kNames[static_cast<size_t>(state)];
}

// Of state, problem and model, the registry's mutex guards what others see.
struct Models::Entry {
  Entry(std::string of, ModelSpec what, std::shared_ptr<Entry> earlier)
      : name(std::move(of)), spec(std::move(what)), before(std::move(earlier)) {}

  const std::string name;
  const ModelSpec spec;
  std::shared_ptr<Entry> before;  // of the same name, which goes first; null: none
  ModelState state = ModelState::kLoading;
  std::string problem = {};
  ModelLease model = {};
  absl::Duration patience = {};  // set before `stop`
  absl::Notification stop;       // it is no longer wanted
  absl::Notification drained;    // no call on it runs
  absl::Notification gone;       // nothing is left of it
  std::thread thread;
};

Models::Models(ServedModel& main, SessionNames& names, Steps steps)
    : main_(main), main_lease_(&main, [](ServedModel*) {}), names_(names), steps_(std::move(steps)) {}

Models::~Models() {
  const absl::MutexLock lock(&mutex_);
  EBB_CHECK(wanted_.empty() && leaving_.empty());
}

void Models::Configure(const ModelTable& wanted, absl::Duration patience) {
  std::vector<std::shared_ptr<Entry>> gone;  // whose threads have ended
  {
    const absl::MutexLock lock(&mutex_);
    if (stopped_) return;
    for (auto at = wanted_.begin(); at != wanted_.end();) {
      const auto now = wanted.find(at->first);
      const bool failed = at->second->state == ModelState::kFailed;  // what was wrong may have been put right
      if (now != wanted.end() && now->second == at->second->spec && !failed) {
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
      auto entry = std::make_shared<Entry>(name, spec, std::move(before));
      entry->thread = std::thread([this, &of = *entry] { Serve(of); });
      wanted_.emplace(name, std::move(entry));
    }
    std::erase_if(leaving_, [&](std::shared_ptr<Entry>& entry) {
      if (!entry->gone.HasBeenNotified()) return false;
      gone.push_back(std::move(entry));
      return true;
    });
  }
  for (const std::shared_ptr<Entry>& entry : gone) entry->thread.join();
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
  SetState(entry, ModelState::kLoading);
  absl::StatusOr<std::unique_ptr<ServedModel>> opened = steps_.open(entry.name, entry.spec);
  if (opened.ok()) {
    ServedModel& model = **opened;
    absl::Notification returned;  // every lease
    {
      const absl::MutexLock lock(&mutex_);
      entry.model = ModelLease(&model, [&returned](ServedModel*) { returned.Notify(); });
    }
    SetState(entry, ModelState::kServing);
    LogInfo("model_loaded", {{"model", entry.name}, {"path", entry.spec.path}}, "it takes calls");
    entry.stop.WaitForNotification();
    SetState(entry, ModelState::kUnloading);
    model.worker().Drain(entry.patience);
    model.worker().WaitUntilIdle();
    entry.drained.Notify();
    {
      ModelLease last;  // given back when the lock is
      const absl::MutexLock lock(&mutex_);
      last.swap(entry.model);
    }
    returned.WaitForNotification();
    model.Keep();
    names_.ReleaseAll(model.id());
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
  entry.gone.Notify();
}

absl::StatusOr<ModelLease> Models::Find(const std::string& name) const {
  if (name.empty() || name == main_.name()) return main_lease_;
  const absl::MutexLock lock(&mutex_);
  const auto found = wanted_.find(name);
  if (found == wanted_.end()) return NotWanted(name);
  const Entry& entry = *found->second;
  if (entry.state == ModelState::kServing) return entry.model;
  if (entry.state == ModelState::kFailed) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("model: the model '%s' could not be loaded: %s", name, entry.problem),
                  {.reason = "MODEL_FAILED", .field = "model"});
  }
  return Refuse(absl::StatusCode::kUnavailable, absl::StrFormat("model: the model '%s' is being loaded", name),
                {.reason = "MODEL_LOADING", .field = "model", .retry = kLoadingRetry});
}

absl::Status Models::NotWanted(const std::string& name) const {
  for (const std::shared_ptr<Entry>& entry : leaving_) {
    if (entry->name != name || entry->gone.HasBeenNotified()) continue;
    return Refuse(absl::StatusCode::kUnavailable, absl::StrFormat("model: the model '%s' is being unloaded", name),
                  {.reason = "MODEL_UNLOADING", .field = "model"});
  }
  std::string known = absl::StrFormat("'%s'", main_.name());
  for (const auto& [other, entry] : wanted_) known += absl::StrFormat(", '%s'", other);
  return Refuse(absl::StatusCode::kNotFound,
                absl::StrFormat("model: there is no model '%s'; this server has %s", name, known),
                {.reason = "UNKNOWN_MODEL", .field = "model"});
}

ModelLease Models::Of(const std::string& tenant, const std::string& session) const {
  const ModelId id = names_.OwnerOf({tenant, session});
  if (id != 0 && id != main_.id()) {
    for (ModelLease& model : Loaded()) {
      if (model->id() == id) return std::move(model);
    }
  }
  return main_lease_;
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
  for (auto& [name, entry] : wanted_) {
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
  std::vector<std::shared_ptr<Entry>> leaving;
  {
    const absl::MutexLock lock(&mutex_);
    leaving.swap(leaving_);
  }
  for (const std::shared_ptr<Entry>& entry : leaving) entry->thread.join();
}

}  // namespace ebb
