// Journals as files in the server's own folder (server/session_files.h has the layout).

#ifndef EBB_SERVER_FOLDER_STORE_H_
#define EBB_SERVER_FOLDER_STORE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/folder_health.h"
#include "server/metrics.h"
#include "server/session_files.h"
#include "server/session_store.h"

namespace ebb {

// What has to be on disk, rather than with the system, before anybody is told of it.
enum class Sync {
  kNone,
  kInputs,  // all that cannot be made again from what is: everything but the tokens of an answer that goes on
};

class FolderStore final : public SessionStore {
 public:
  // All outlive it. `health` is told how its writes end.
  FolderStore(const SessionFiles& files, Sync sync, FolderHealth& health, const JournalMetrics& metrics)
      : files_(files), sync_(sync), health_(health), metrics_(metrics) {}

  absl::Status Begin(SessionId session, const SessionName& name, std::string_view snapshot) override;
  absl::Status Continue(SessionId session, const SessionName& name, const JournalPlace& place) override;
  void Append(SessionId session, std::string_view record, bool is_input) override;
  std::vector<Failure> Write() override;
  std::vector<Failure> Renew(SessionId session, MakeSnapshot& snapshot) override;
  absl::Status Remove(SessionId session) override;
  void Forget(SessionId session) override;
  bool has_slices() const override { return !growing_.empty(); }
  void WriteSlice() override;
  std::vector<Failure> Tend() override;
  absl::Duration tend_in() const override { return health_.look_in(); }

 private:
  struct File {
    SessionName name = {};
    JournalPlace place = {};
    OpenFile file = OpenFile();     // opened when it is written to
    std::string unwritten = {};     // records
    JournalEnd unwritten_end = {};  // behind them
    bool sync = false;              // of these
  };
  // A snapshot on its way to the disk.
  struct Growing {
    SessionId session = 0;
    SessionName name = {};
    uint32_t number = 0;
    MakeSnapshot snapshot = {};
    std::string bytes = {};  // once it is made
    size_t written = 0;
    OpenFile file = OpenFile();
  };

  absl::Status BeginFiles(File& file, std::string_view snapshot);
  absl::Status RemoveFiles(const SessionName& name, uint32_t first, uint32_t last);
  absl::Status RemoveLeft(const SessionName& name);
  absl::Status OpenJournal(File& file, bool is_new);
  absl::Status Write(SessionId session);
  absl::Status WriteTo(File& file);
  Failure GiveUp(SessionId session, absl::Status why);
  absl::Status RenewFile(SessionId session, MakeSnapshot& snapshot);
  static absl::Status Make(Growing& growing);
  absl::Status WriteSliceOf(Growing& growing, const OpenFile& folder, const std::string& beside) const;
  absl::Status Settle(File& file, const Growing& growing, const OpenFile& folder, const std::string& beside);

  const SessionFiles& files_;
  const Sync sync_;
  FolderHealth& health_;
  const JournalMetrics& metrics_;
  std::map<SessionId, File> sessions_;
  std::set<SessionId> unwritten_;
  std::deque<Growing> growing_;
  // Files that were to go and did not, from the one number to the other. They are tried again before anything more is
  // told, since who is told that there is no such session must not find it later; until they go, nothing is written
  // under their names.
  std::map<SessionName, std::pair<uint32_t, uint32_t>> left_;
  size_t open_files_ = 0;
};

}  // namespace ebb

#endif  // EBB_SERVER_FOLDER_STORE_H_
