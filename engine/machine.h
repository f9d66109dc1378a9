// What this process may use of the machine it runs on: the limits of its cgroups (version 2 or 1, and of those above),
// and the machine's own.

#ifndef EBB_ENGINE_MACHINE_H_
#define EBB_ENGINE_MACHINE_H_

#include <cstdint>
#include <string>

namespace ebb {

// Compute threads that this process can use, 1..kThreadsMax: the cores of its affinity mask, but no more than the CPU
// quota, rounded up. `root` is where /proc and /sys are looked for: empty but in tests.
int32_t UsableThreads(const std::string& root = {});

// Bytes of memory that this process may still take: the least of what its cgroups' limits leave, page cache that can be
// given back not counted as used, and what the system calls available. 0 where nothing can be read.
int64_t UsableMemory(const std::string& root = {});

}  // namespace ebb

#endif  // EBB_ENGINE_MACHINE_H_
