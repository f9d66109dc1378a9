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
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "server/model_state.h"
#include "server/served_model.h"

namespace ebb {

// For streams to be written when their calls are over.
inline constexpr absl::Duration kFlush = absl::Seconds(5);

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
    // All of these are done by the model's thread. Names of the sessions that `open` will bring back; quick. A model of
    // which they are not known fails, as somebody else could be given one of them.
    std::function<absl::StatusOr<std::vector<SessionName>>(const std::string& name, const ModelSpec& spec)> sessions;
    // Loads it, with the sessions that it had.
    std::function<absl::StatusOr<std::unique_ptr<ServedModel>>(const std::string& name, const ModelSpec& spec,
                                                               ModelId id)>
        open;
    // A model is one of Loaded from now on, and takes calls soon: it may have missed what the others were told.
    std::function<void()> joined;
    // A model's state is another, to be said to whoever watches.
    std::function<void(const std::string& name, ModelState state)> changed;
  };

  // `main` has no lease to wait for: it outlives this. So do `names`, which are those of all models.
  Models(ServedModel& main, SessionNames& names, Steps steps);
  // REQUIRES: Join.
  ~Models();

  ServedModel& main() const { return main_; }
  ModelLease main_lease() const { return main_lease_; }

  // From now on these are wanted, and no others. One whose spec differs is loaded anew when the old one is gone, calls
  // on which may go on for `patience`; one that failed is tried again. The sessions that new ones will bring back are
  // known when it returns.
  void Configure(const ModelTable& wanted, absl::Duration patience);

  // Whether Configure would leave the model as it is, rather than load one of that name.
  bool Leaves(const std::string& name, const ModelSpec& spec) const;

  // Empty: the main one. NOT_FOUND UNKNOWN_MODEL, naming those that there are; UNAVAILABLE MODEL_LOADING, with
  // RetryInfo, and MODEL_UNLOADING; FAILED_PRECONDITION MODEL_FAILED with the reason. The field is `model`.
  absl::StatusOr<ModelLease> Find(const std::string& name) const;
  // The model of a session; the main one where there is no such session. As Find where the session's is not loaded.
  absl::StatusOr<ModelLease> Of(const std::string& tenant, const std::string& session) const;
  // The main one first, the others by name.
  std::vector<ModelView> List() const;
  // Of these, those that are loaded.
  std::vector<ModelLease> Loaded() const;

  // None is wanted any more, and none will be. What is asked of them is refused until Join.
  void StopAll(absl::Duration patience);
  // Waits until no call on any of them runs. REQUIRES: StopAll.
  void WaitUntilDrained();
  // Waits until all are gone. REQUIRES: StopAll, and all leases are given back, or will be.
  void Join();

 private:
  struct Entry;

  void Serve(Entry& entry);
  absl::StatusOr<std::unique_ptr<ServedModel>> Open(Entry& entry);
  void SetState(Entry& entry, ModelState state, const std::string& problem = {});
  void Call(Entry& entry, ServedModel& model);
  absl::Status NotWanted(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool IsAs(const Entry& entry, const ModelSpec& spec);
  static void Stop(Entry& entry, absl::Duration patience);

  ServedModel& main_;
  const ModelLease main_lease_;
  SessionNames& names_;
  const Steps steps_;
  mutable absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> wanted_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Entry>> leaving_ ABSL_GUARDED_BY(mutex_);
  ModelId made_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Notification leave_;  // those that stay until Join need not any more
};

}  // namespace ebb

#endif  // EBB_SERVER_MODELS_H_
