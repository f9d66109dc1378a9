// Sessions that are journaled, as files in the server's own folder.
//
//   DIR/journals/TENANT/ID.N.snapshot     a session as it once was: N counts up
//   DIR/journals/TENANT/ID.N.journal      what it did since then, or since the end of journal N - 1
//   DIR/journals/TENANT/FILE.damaged      set aside: no session comes back from it
//
// A session is its newest snapshot and the journals from that one's number on. A journal is made before the snapshot of
// its number, and goes before it: a snapshot without its journal is one that was being deleted, and journals without
// any snapshot are one that was never whole.

#ifndef EBB_SERVER_SESSION_FILES_H_
#define EBB_SERVER_SESSION_FILES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/files.h"
#include "server/journal_file.h"
#include "server/sessions.h"

namespace ebb {

// Where a session's journal goes on.
struct JournalPlace {
  uint32_t first = 1;  // number of its oldest file
  uint32_t last = 1;   // of the journal that is written to
  JournalEnd end = {};
  uint64_t epoch = 0;  // of who writes it (server/redis_sessions.h); files have one writer
};

// What is there of a session.
struct SessionPieces {
  std::string snapshot = {};
  std::vector<std::string> records = {};
  JournalPlace place = {};
};

// Functions of different sessions may be called from different threads.
class SessionFiles {
 public:
  // Makes DIR/journals in a folder that is there, and removes what was left half written. UNAVAILABLE STORE_UNUSABLE.
  static absl::StatusOr<std::unique_ptr<SessionFiles>> Open(const std::string& dir);

  // Those with a file of any kind but what was set aside; all of them. UNAVAILABLE STORE_UNUSABLE.
  absl::StatusOr<std::vector<SessionName>> Names() const;

  // Empty for one that was never whole, or is gone but for the rest of its files. DATA_LOSS JOURNAL_DAMAGED, which
  // names the file and the byte; UNAVAILABLE STORE_FAILED.
  absl::StatusOr<std::optional<SessionPieces>> Read(const SessionName& name) const;

  // Renames its files so that no server takes them for a session's. UNAVAILABLE STORE_FAILED, as below.
  absl::Status SetAside(const SessionName& name) const;
  // Removes its files up to number `last`, in an order that leaves no other session behind. With `sync`, on disk when
  // it returns. Makes no folder.
  absl::Status Remove(const SessionName& name, uint32_t first, uint32_t last, bool sync) const;
  // All of them.
  absl::Status RemoveAll(const SessionName& name) const;

  absl::StatusOr<OpenFile> MakeFolderOf(const SessionName& name) const;
  // Not ok() where there is none.
  OpenFile FolderOf(const SessionName& name) const;
  const OpenFile& root() const { return root_; }  // of all tenants
  // `status`, which is not OK, with the file that it is about.
  static absl::Status AtFile(const SessionName& name, const std::string& file, const absl::Status& status);
  static std::string JournalName(const SessionName& name, uint32_t number);
  static std::string SnapshotName(const SessionName& name, uint32_t number);

 private:
  // Numbers of a session's files, ascending.
  struct Numbers {
    std::vector<uint32_t> snapshots = {};
    std::vector<uint32_t> journals = {};
  };

  SessionFiles(std::string path, OpenFile root) : path_(std::move(path)), root_(std::move(root)) {}
  // By id; all of them, or the error in the place of 0.
  static int ListFolder(const OpenFile& folder, std::map<std::string, Numbers>& sessions);
  // Of one of them, in its tenant's folder. UNAVAILABLE STORE_FAILED.
  static absl::StatusOr<Numbers> NumbersOf(const SessionName& name, const OpenFile& folder);

  const std::string path_;
  OpenFile root_;
};

}  // namespace ebb

#endif  // EBB_SERVER_SESSION_FILES_H_
