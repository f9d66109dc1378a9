// A file that a running server reads again: its configuration, and those that the configuration names.
//
// Reading and taking are two steps, so that all of several files is checked before any of them counts.

#ifndef EBB_SERVER_LIVE_FILE_H_
#define EBB_SERVER_LIVE_FILE_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "policies/status.h"
#include "server/config_keys.h"

namespace ebb {

// What was read, and is good.
struct FileChange {
  std::vector<std::string> paths = {};           // whose content is not what was taken before; empty: all of it is
  std::vector<ConfigChange> keys = {};           // of the configuration, that have other values
  absl::AnyInvocable<absl::Status()> take = {};  // null: there is nothing to do
};

struct LiveFile {
  std::string path = {};      // for logs
  absl::Duration every = {};  // between two looks at it
  std::function<absl::StatusOr<FileChange>()> read = {};
};

// Of one file alone. Errors of both.
inline absl::Status TakeNow(absl::StatusOr<FileChange> change) {
  EBB_TRY(change.status());
  return change->take == nullptr ? absl::OkStatus() : change->take();
}

}  // namespace ebb

#endif  // EBB_SERVER_LIVE_FILE_H_
