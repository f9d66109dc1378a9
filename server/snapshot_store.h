// Snapshots as files in the server's own folder. Clients name them and nothing else: a name is
// `[a-z0-9][a-z0-9._-]{0,62}` and can be no path.
//
//   DIR/LOCK                          held as long as a server uses the folder
//   DIR/SHELF/TENANT/ID.snapshot      SHELF: snapshots, which clients name, or sessions, which a drained server left
//   DIR/SHELF/TENANT/.ID.new          one that is being written; removed at the next start
//
// A snapshot is written beside the one that it replaces, synced, and put in its place: at any instant, whoever pulls
// the plug, a name has the old one or the new one, whole. One thread at a time.

#ifndef EBB_SERVER_SNAPSHOT_STORE_H_
#define EBB_SERVER_SNAPSHOT_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/files.h"

namespace ebb {

enum class Shelf { kSnapshots, kSessions };

class SnapshotStore {
 public:
  struct Entry {
    std::string id = {};
    int64_t bytes = 0;
    absl::Time saved = {};
  };

  // Makes the folder where it is missing, for its owner alone, and removes what was left half written. UNAVAILABLE
  // STORE_LOCKED when another server uses it, STORE_UNUSABLE when the system refuses.
  static absl::StatusOr<std::unique_ptr<SnapshotStore>> Open(const std::string& dir, int32_t snapshots_max);

  // In all of these `tenant` and `id` are resource names. UNAVAILABLE STORE_FULL or STORE_FAILED, with RetryInfo.
  //
  // On disk when it returns. On the shelf of snapshots RESOURCE_EXHAUSTED TENANT_SNAPSHOTS when the tenant has as many
  // as it may, and this would be another; TENANT_SNAPSHOT_BYTES when they would have more than `bytes_max` together (0:
  // no limit).
  absl::StatusOr<Entry> Write(Shelf shelf, const std::string& tenant, const std::string& id, std::string_view bytes,
                              int64_t bytes_max = 0);
  // NOT_FOUND UNKNOWN_SNAPSHOT.
  absl::StatusOr<SnapshotBytes> Read(Shelf shelf, const std::string& tenant, const std::string& id) const;
  // The tenant's snapshots after the id `after`, ascending, at most `count`.
  absl::StatusOr<std::vector<Entry>> List(Shelf shelf, const std::string& tenant, const std::string& after,
                                          size_t count) const;
  // NOT_FOUND UNKNOWN_SNAPSHOT.
  absl::Status Delete(Shelf shelf, const std::string& tenant, const std::string& id);
  // What a tenant's snapshots have together: `kept` is called for each tenant that has any, now, and whenever a Write
  // or Delete may have changed it. What the system refuses to tell is told with the next of these.
  using Kept = std::function<void(const std::string& tenant, int64_t bytes)>;
  void Watch(Kept kept);
  // Those with a folder on the shelf, ascending.
  absl::StatusOr<std::vector<std::string>> Tenants(Shelf shelf) const;

 private:
  SnapshotStore(OpenFile lock, OpenFile snapshots, OpenFile sessions, int32_t snapshots_max)
      : lock_(std::move(lock)),
        snapshots_(std::move(snapshots)),
        sessions_(std::move(sessions)),
        snapshots_max_(snapshots_max) {}

  const OpenFile& folder(Shelf shelf) const { return shelf == Shelf::kSnapshots ? snapshots_ : sessions_; }
  absl::Status RemoveLeftovers(Shelf shelf);
  void TellKept(const std::string& tenant, const OpenFile& of_tenant) const;

  OpenFile lock_;
  OpenFile snapshots_;  // folders
  OpenFile sessions_;
  const int32_t snapshots_max_;
  Kept kept_ = {};  // null: nobody asks
};

}  // namespace ebb

#endif  // EBB_SERVER_SNAPSHOT_STORE_H_
