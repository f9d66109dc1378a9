// Whether the folder of journals takes what is written to it: what the journal's thread last met there, for others to
// ask without waiting for a disk.
//
// That thread says how each of its writes ended, and of a long one how it goes on, and looks at the folder every
// kLookEvery. What a write met is over with the next that succeeds; since nobody sends work to a server that is not
// ready, there may be none, so that the look tries one itself. A thread that has not been heard of for kSilenceMax
// waits for a disk that does not answer.

#ifndef EBB_SERVER_FOLDER_HEALTH_H_
#define EBB_SERVER_FOLDER_HEALTH_H_

#include <sys/statvfs.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/clock.h"

namespace ebb {

// The most that journals write at once: a slice of a snapshot.
inline constexpr int64_t kJournalSlice = int64_t{1} << 20;
inline constexpr uint64_t kFilesToBegin = 3;  // a tenant's folder, a journal and a snapshot

struct FolderSpace {
  int64_t available = 0;  // bytes, to whom the process is
  int64_t capacity = 0;
};

class FolderHealth {
 public:
  static constexpr absl::Duration kLookEvery = absl::Seconds(2);
  static constexpr absl::Duration kSilenceMax = absl::Seconds(10);

  // Looks at the folder, which is there.
  explicit FolderHealth(const std::string& folder, absl::Duration silence_max = kSilenceMax)
      : folder_(folder), silence_max_(silence_max) {
    Look();
  }

  // Any thread; these wait for no disk. UNAVAILABLE, naming the folder and what is wrong with it.
  absl::Status Check() const;
  // As of the last look; nothing where it saw none.
  std::optional<FolderSpace> space() const;

  // The journal's thread. It waits for nothing at the moment.
  void Answered();
  // How a write ended. What is about one name alone says nothing of the folder, and Check no more of the others than
  // their reason, since the rest names a session.
  void Wrote(const absl::Status& outcome);
  // Looks, where that is due; and when it will be.
  void Look();
  absl::Duration look_in() const;

 private:
  void Heard(const absl::Status& written);
  absl::Status LookAt(std::optional<FolderSpace>& space) const;
  absl::Status TryToWrite() const;

  const std::string folder_;
  const absl::Duration silence_max_;
  const Clock clock_ = {};
  mutable std::mutex mutex_;
  absl::Time heard_ ABSL_GUARDED_BY(mutex_) = clock_.Now();  // of the thread
  absl::Status written_ ABSL_GUARDED_BY(mutex_);             // how its last write ended
  absl::Status seen_ ABSL_GUARDED_BY(mutex_);                // what its last look found
  std::optional<FolderSpace> space_ ABSL_GUARDED_BY(mutex_) = {};
  absl::Time next_look_ = clock_.Now();  // the thread's
};

// Whether a volume has room for what a journal may need at once: kJournalSlice bytes, and the files that a session
// begins with. RESOURCE_EXHAUSTED, naming what it has and what is needed.
absl::Status CheckRoom(const struct statvfs& volume);

}  // namespace ebb

#endif  // EBB_SERVER_FOLDER_HEALTH_H_
