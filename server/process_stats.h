// What the kernel says about this process, for metrics and GetStatus.

#ifndef EBB_SERVER_PROCESS_STATS_H_
#define EBB_SERVER_PROCESS_STATS_H_

#include <cstdint>

namespace ebb {

struct ProcessStats {
  double cpu_seconds = 0;         // user and system
  double start_time_seconds = 0;  // since the epoch
  int64_t resident_bytes = 0;
  int64_t virtual_bytes = 0;
  int64_t open_fds = 0;
  int64_t max_fds = 0;
};

// From /proc/self and the process's limits; what cannot be read is 0.
ProcessStats ReadProcessStats();

}  // namespace ebb

#endif  // EBB_SERVER_PROCESS_STATS_H_
