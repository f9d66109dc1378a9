// The thread that waits for the disk, so that neither the worker nor gRPC's threads do. Jobs run one after another;
// they are few, since each may hold a copy of a session.

#ifndef EBB_SERVER_STORE_H_
#define EBB_SERVER_STORE_H_

#include <cstddef>
#include <memory>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "server/mailbox.h"
#include "server/snapshot_store.h"

namespace ebb {

class Store {
 public:
  static constexpr size_t kJobsMax = 8;  // that wait
  using Job = absl::AnyInvocable<void(SnapshotStore&)>;

  explicit Store(std::unique_ptr<SnapshotStore> files);
  ~Store();  // runs what waits
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Any thread. False when as many wait as may; `job` is then left as it was.
  bool Offer(Job&& job) { return jobs_.Offer(std::move(job)); }

 private:
  void Loop();

  const std::unique_ptr<SnapshotStore> files_;
  Mailbox<Job> jobs_{kJobsMax};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace ebb

#endif  // EBB_SERVER_STORE_H_
