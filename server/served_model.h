// A model that is served: its engine, the worker that owns it, and what of its sessions outlives the server.

#ifndef EBB_SERVER_SERVED_MODEL_H_
#define EBB_SERVER_SERVED_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/draft_model.h"
#include "server/folder_health.h"
#include "server/journal.h"
#include "server/kept_sessions.h"
#include "server/metrics.h"
#include "server/open_streams.h"
#include "server/recovery.h"
#include "server/redis_store.h"
#include "server/server.h"
#include "server/session_files.h"
#include "server/session_names.h"
#include "server/store.h"
#include "server/swap_folder.h"
#include "server/tenants.h"
#include "server/worker.h"

namespace ebb {

class ServedModel {
 public:
  // What it has in common with the server's other models. All of it outlives them.
  struct Shared {
    ModelId id = 0;  // no other's, ever
    SessionNames& names;
    const CurrentTenants& tenants;
    std::shared_ptr<TenantUses> tenant_uses = {};
    Clock clock = {};
    Experiments* experiments = nullptr;     // that its sessions may count in; null: none
    std::vector<std::string> methods = {};  // that its metrics are of, too
    Metrics* server_metrics = nullptr;      // of the main model and of the server; null: its own are these
  };

  // Of `options` count what is of a model: engine, draft, work but for tenants, and where sessions are kept. Errors of
  // Engine::Open, OpenDraftModel, SnapshotStore::Open, SessionFiles::Open, SwapFolder::Open and RedisStore::Open.
  static absl::StatusOr<std::unique_ptr<ServedModel>> Open(const ServerOptions& options, const Shared& shared);
  // The sessions in folders that it would bring back; all of them. Errors of SnapshotStore::Open, NamesKept,
  // SessionFiles::Open and SessionFiles::Names.
  static absl::StatusOr<std::vector<SessionName>> SessionsKept(const ServerOptions& options);
  ~ServedModel();

  ModelId id() const { return id_; }
  const std::string& name() const { return name_; }              // what clients call it
  const std::string& draft_name() const { return draft_.name; }  // likewise; empty: nothing drafts for it
  int32_t context() const { return worker_.model().context; }
  Worker& worker() { return worker_; }
  const Worker& worker() const { return worker_; }
  Metrics& metrics() { return *metrics_; }
  OpenStreams& streams() { return streams_; }    // of calls that it answers
  Store* store() { return store_.get(); }        // null: no snapshots are kept
  RedisStore* shared_store() { return redis_; }  // of the journal; null: it is no server's but this one's
  const FolderHealth* folder_health() const { return folder_health_.get(); }  // likewise; null: it is in no folder

  // Sessions of the server before this one. Errors of BringBackSessions and BringBackJournals. REQUIRES: nobody calls
  // the worker yet. Waits.
  absl::StatusOr<KeptSessions> BringBack();
  // Leaves sessions to the next server, if that is asked for. REQUIRES: the worker has drained, and nobody calls it.
  void Keep();

 private:
  // What outlives the server, each null where there is none. Sessions are journaled in one of the last two.
  struct Stores {
    std::unique_ptr<SnapshotStore> snapshots = {};
    std::unique_ptr<SwapFolder> swap = {};
    std::unique_ptr<SessionFiles> files = {};
    std::unique_ptr<RedisStore> shared = {};
  };
  static absl::StatusOr<Stores> OpenStores(const ServerOptions& options, Metrics& metrics);

  ServedModel(const ServerOptions& options, const Shared& shared, std::unique_ptr<Engine> engine, DraftModel draft,
              std::unique_ptr<Metrics> metrics, Stores stores);
  std::unique_ptr<Journal> MakeJournal(const ServerOptions& options, std::unique_ptr<SessionStore> shared) const;
  std::unique_ptr<Store> MakeStore(std::unique_ptr<SnapshotStore> files, const Shared& shared) const;
  DispatcherOptions WorkFor(const ServerOptions& options, const Shared& shared);

  const ModelId id_;
  const std::string name_;
  const Durability durability_;
  const DraftModel draft_;
  const std::unique_ptr<Metrics> metrics_;
  const std::unique_ptr<SessionFiles> files_;
  const std::unique_ptr<SwapFolder> swap_;
  const std::unique_ptr<Recovery> recovery_;  // null where no session is lost, or none comes back from a folder
  RedisStore* const redis_;                   // the journal's
  const std::unique_ptr<FolderHealth> folder_health_;
  const std::unique_ptr<Journal> journal_;
  Worker worker_;
  const std::unique_ptr<Store> store_;
  OpenStreams streams_;
};

}  // namespace ebb

#endif  // EBB_SERVER_SERVED_MODEL_H_
