#include "server/planner.h"

#include <vector>

#include "policies/status.h"

namespace ebb {

Planner::~Planner() {
  tasks_.Close();
  thread_.join();
}

absl::Status Planner::QueueFull() {
  return Refuse(absl::StatusCode::kUnavailable, "too many plans wait",
                {.reason = "QUEUE_FULL", .retry = absl::Milliseconds(200)});
}

void Planner::Loop() {
  std::vector<Task> tasks;
  while (tasks_.Take(tasks, absl::InfiniteDuration())) {
    for (Task& task : tasks) task();
  }
}

}  // namespace ebb
