#include "server/finished_within.h"

#include <memory>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"

namespace ebb {
namespace {

struct LateWork {
  absl::Mutex mutex;
  std::multiset<std::string> names ABSL_GUARDED_BY(mutex);  // of what nobody waits for any more
};

// Never destroyed: threads that are left to themselves use it until the process ends.
LateWork& Late() {
  static auto* const late = new LateWork;
  return *late;
}

struct Work {
  std::function<void()> run;
  bool is_over = false;  // both under LateWork's mutex
  bool is_late = false;
};

void Run(const std::string& name, Work& work) {
  work.run();
  LateWork& late = Late();
  const absl::MutexLock lock(&late.mutex);
  work.is_over = true;
  if (work.is_late) late.names.erase(late.names.find(name));
}

}  // namespace

bool FinishedWithin(const std::string& name, absl::Duration patience, std::function<void()> work) {
  LateWork& late = Late();
  {
    const absl::MutexLock lock(&late.mutex);
    if (late.names.contains(name)) return false;
  }
  const auto begun = std::make_shared<Work>();
  begun->run = std::move(work);
  try {
    std::thread([name, begun] { Run(name, *begun); }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  const absl::MutexLock lock(&late.mutex);
  if (late.mutex.AwaitWithTimeout(absl::Condition(&begun->is_over), patience)) return true;
  begun->is_late = true;
  late.names.insert(name);
  return false;
}

std::string NothingCame(absl::Duration patience) {
  return absl::StrFormat("nothing has come of it for %s: the file system that it is on may be away",
                         absl::FormatDuration(patience));
}

}  // namespace ebb
