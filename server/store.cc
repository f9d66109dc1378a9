#include "server/store.h"

#include <vector>

namespace ebb {

Store::Store(std::unique_ptr<SnapshotStore> files) : files_(std::move(files)), thread_([this] { Loop(); }) {}

Store::~Store() {
  jobs_.Close();
  thread_.join();
}

void Store::Loop() {
  std::vector<Job> jobs;
  while (jobs_.Take(jobs, absl::InfiniteDuration())) {
    for (Job& job : jobs) {
      job(*files_);
      job = nullptr;  // with the copy that it held
    }
  }
}

}  // namespace ebb
