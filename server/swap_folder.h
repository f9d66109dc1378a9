// The folder of swapped sessions, and the thread that waits for it. Nothing in it outlives the server: a file is what a
// session's pages held while others needed them.
//
//   DIR/swap/N.snapshot     a session as SaveSession writes it; N counts up

#ifndef EBB_SERVER_SWAP_FOLDER_H_
#define EBB_SERVER_SWAP_FOLDER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/files.h"
#include "server/mailbox.h"

namespace ebb {

class SwapFolder {
 public:
  // Makes DIR/swap in a folder that is there, and removes what a server before this one left in it. At most `bytes_max`
  // are kept in it: who writes sees to that. UNAVAILABLE STORE_UNUSABLE.
  static absl::StatusOr<std::unique_ptr<SwapFolder>> Open(const std::string& dir, int64_t bytes_max);
  ~SwapFolder() { Stop(); }
  SwapFolder(const SwapFolder&) = delete;
  SwapFolder& operator=(const SwapFolder&) = delete;

  int64_t bytes_max() const { return bytes_max_; }

  // Any thread. Runs on the folder's thread, after all that was posted before.
  using Job = absl::AnyInvocable<void(const SwapFolder&)>;
  void Post(Job job) { jobs_.Post(std::move(job)); }
  // Runs what waits; what is posted later is dropped.
  void Stop();

  // In a job. UNAVAILABLE STORE_FULL or STORE_FAILED, and then there is no such file.
  absl::Status Write(uint64_t file, std::string_view bytes) const;
  // The same; NOT_FOUND without a reason.
  absl::StatusOr<SnapshotBytes> Read(uint64_t file) const;
  // A file that is not there, or stays, is left to the next start.
  void Remove(uint64_t file) const;

 private:
  SwapFolder(OpenFile folder, int64_t bytes_max);
  void Loop();

  const OpenFile folder_;
  const int64_t bytes_max_;
  Mailbox<Job> jobs_{0};  // what is posted is taken, however much waits
  std::thread thread_;    // last: it uses all of the above
};

}  // namespace ebb

#endif  // EBB_SERVER_SWAP_FOLDER_H_
