// Which model each session belongs to: a tenant's names are its own once, however many models are served.
//
// Any thread.

#ifndef EBB_SERVER_SESSION_NAMES_H_
#define EBB_SERVER_SESSION_NAMES_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"

namespace ebb {

// A session's tenant and id.
using SessionName = std::pair<std::string, std::string>;

// A model from when it begins to load, and no other, ever; 0: none.
using ModelId = int64_t;

class SessionNames {
 public:
  // Whether the model may claim the name.
  bool IsFree(const SessionName& name, ModelId model) const {
    const std::lock_guard lock(mutex_);
    const auto found = owners_.find(name);
    return found == owners_.end() || found->second.IsToCome(model);
  }
  // Whether the name is the model's from now on. One that it has already is no second time its own.
  bool Claim(const SessionName& name, ModelId model) {
    const std::lock_guard lock(mutex_);
    const auto [owner, is_new] = owners_.try_emplace(name, Owner{.model = model});
    if (!is_new && !owner->second.IsToCome(model)) return false;
    owner->second.awaited = Awaited::kNo;
    return true;
  }
  // The model, which is being loaded, will have a session of that name, unless another has one: no other may claim it.
  void Expect(const SessionName& name, ModelId model) { Await(name, model, Awaited::kFromStart); }
  // The same of a model that has lost the session, for which it looks as long as it serves.
  void ExpectBack(const SessionName& name, ModelId model) { Await(name, model, Awaited::kBack); }
  // The model is loaded: what did not come with it will not.
  void ExpectNoMore(ModelId model) {
    const std::lock_guard lock(mutex_);
    std::erase_if(owners_, [model](const auto& entry) {
      return entry.second.model == model && entry.second.awaited == Awaited::kFromStart;
    });
  }
  void Release(const SessionName& name, ModelId model) {
    const std::lock_guard lock(mutex_);
    const auto found = owners_.find(name);
    if (found != owners_.end() && found->second.model == model) owners_.erase(found);
  }
  void ReleaseAll(ModelId model) {
    const std::lock_guard lock(mutex_);
    std::erase_if(owners_, [model](const auto& entry) { return entry.second.model == model; });
  }
  ModelId OwnerOf(const SessionName& name) const {
    const std::lock_guard lock(mutex_);
    const auto found = owners_.find(name);
    return found == owners_.end() ? 0 : found->second.model;
  }

 private:
  enum class Awaited { kNo, kFromStart, kBack };
  struct Owner {
    ModelId model = 0;
    Awaited awaited = Awaited::kNo;

    bool IsToCome(ModelId of) const { return awaited != Awaited::kNo && model == of; }
  };

  void Await(const SessionName& name, ModelId model, Awaited awaited) {
    const std::lock_guard lock(mutex_);
    Owner& owner = owners_.try_emplace(name, Owner{.model = model}).first->second;
    if (owner.model == model) owner.awaited = awaited;
  }

  mutable std::mutex mutex_;
  std::map<SessionName, Owner> owners_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ebb

#endif  // EBB_SERVER_SESSION_NAMES_H_
