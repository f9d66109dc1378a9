// The models of a server, by name: the one that it starts with, which is there as long as it is, and those that its
// configuration names beside it, which come and go while it runs.
//
// Each of the latter has a thread of its own, which loads it, waits until it is no longer wanted, lets its calls
// finish, and gives all of it back. So neither a model that is loaded nor one that leaves keeps anybody waiting.
// Whoever calls a model holds a lease of it; the model stays until the last is given back.
//
// Any thread.

#ifndef EBB_SERVER_MODELS_H_
#define EBB_SERVER_MODELS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/served_model.h"

namespace ebb {

enum class ModelState { kLoading, kServing, kUnloading, kFailed };
inline constexpr int kModelStates = 4;

// "loading", and so on.
const char* NameOf(ModelState state);

// Whoever has it may call the model. Not to be held beyond the call.
using ModelLease = std::shared_ptr<ServedModel>;

struct ModelView {
  std::string name = {};
  ModelState state = ModelState::kServing;
  std::string path = {};
  std::string problem = {};  // of one that failed
  ModelLease model = {};     // null unless it is loaded
};

class Models {
 public:
  struct Steps {
    // Loads it, with the sessions that it had; by a thread of the model's.
    std::function<absl::StatusOr<std::unique_ptr<ServedModel>>(const std::string& name, const ModelSpec& spec)> open;
    // A model's state is another, to be said to whoever watches; by the model's thread.
    std::function<void(const std::string& name, ModelState state)> changed;
  };

  // `main` has no lease to wait for: it outlives this. So do `names`, which are those of all models.
  Models(ServedModel& main, SessionNames& names, Steps steps);
  // REQUIRES: Join.
  ~Models();

  ServedModel& main() const { return main_; }

  // From now on these are wanted, and no others. One whose spec differs is loaded anew when the old one is gone, calls
  // on which may go on for `patience`; one that failed is tried again.
  void Configure(const ModelTable& wanted, absl::Duration patience);

  // Empty: the main one. NOT_FOUND UNKNOWN_MODEL, naming those that there are; UNAVAILABLE MODEL_LOADING, with
  // RetryInfo, and MODEL_UNLOADING; FAILED_PRECONDITION MODEL_FAILED with the reason. The field is `model`.
  absl::StatusOr<ModelLease> Find(const std::string& name) const;
  // The model of a session; the main one where there is no such session.
  ModelLease Of(const std::string& tenant, const std::string& session) const;
  // The main one first, the others by name.
  std::vector<ModelView> List() const;
  // Of these, those that are loaded.
  std::vector<ModelLease> Loaded() const;

  // None is wanted any more, and none will be.
  void StopAll(absl::Duration patience);
  // Waits until no call on any of them runs. REQUIRES: StopAll.
  void WaitUntilDrained();
  // Waits until all are gone. REQUIRES: StopAll, and all leases are given back, or will be.
  void Join();

 private:
  struct Entry;

  void Serve(Entry& entry);
  void SetState(Entry& entry, ModelState state, const std::string& problem = {});
  absl::Status NotWanted(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Stop(Entry& entry, absl::Duration patience);

  ServedModel& main_;
  const ModelLease main_lease_;
  SessionNames& names_;
  const Steps steps_;
  mutable absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> wanted_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Entry>> leaving_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ebb

#endif  // EBB_SERVER_MODELS_H_
