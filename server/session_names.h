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

// A model that is loaded, and no other from then on; 0: none.
using ModelId = int64_t;

class SessionNames {
 public:
  // Whether the name is the model's from now on. One that it has already is no second time its own.
  bool Claim(const SessionName& name, ModelId model) {
    const std::lock_guard lock(mutex_);
    return owners_.emplace(name, model).second;
  }
  void Release(const SessionName& name, ModelId model) {
    const std::lock_guard lock(mutex_);
    const auto found = owners_.find(name);
    if (found != owners_.end() && found->second == model) owners_.erase(found);
  }
  void ReleaseAll(ModelId model) {
    const std::lock_guard lock(mutex_);
    std::erase_if(owners_, [model](const auto& entry) { return entry.second == model; });
  }
  ModelId OwnerOf(const SessionName& name) const {
    const std::lock_guard lock(mutex_);
    const auto found = owners_.find(name);
    return found == owners_.end() ? 0 : found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<SessionName, ModelId> owners_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ebb

#endif  // EBB_SERVER_SESSION_NAMES_H_
