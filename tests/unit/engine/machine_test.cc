#include "engine/machine.h"

#include <gmock/gmock.h>
#include <sched.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace ebb {
namespace {

// A made-up /proc and /sys.
class MachineTest : public testing::Test {
 protected:
  MachineTest() {
    std::string name = (std::filesystem::temp_directory_path() / "ebb-machine-XXXXXX").string();
    root_ = mkdtemp(name.data());
  }
  ~MachineTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = root_ + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }

  std::string root_;
};

TEST_F(MachineTest, WithoutLimitsMemoryIsWhatTheSystemHas) {
  Write("/proc/meminfo", "MemTotal:  9000 kB\nMemFree:  1000 kB\nMemAvailable:  4000 kB\n");
  Write("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(UsableMemory(root_), 4000 * 1024);
}

TEST_F(MachineTest, TheTightestCgroupOnTheWayUpCounts) {
  Write("/proc/meminfo", "MemAvailable:  4000000 kB\n");
  Write("/proc/self/cgroup", "0::/pod/container\n");
  Write("/sys/fs/cgroup/pod/container/memory.max", "max\n");
  Write("/sys/fs/cgroup/pod/container/memory.current", "100\n");
  Write("/sys/fs/cgroup/pod/memory.max", "1000000\n");
  Write("/sys/fs/cgroup/pod/memory.current", "400000\n");
  Write("/sys/fs/cgroup/pod/memory.stat", "anon 100000\ninactive_file 250000\nfile 300000\n");
  EXPECT_EQ(UsableMemory(root_), 850000);  // page cache that can go is not in use
}

TEST_F(MachineTest, ReadsVersionOneToo) {
  Write("/proc/meminfo", "MemAvailable:  4000000 kB\n");
  Write("/proc/self/cgroup", "7:memory:/job\n3:cpuset,cpu,cpuacct:/job\n");
  Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "5000\n");
  Write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "6000\n");
  EXPECT_EQ(UsableMemory(root_), 0);
  Write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n");
  Write("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(UsableThreads(root_), 1);
}

TEST_F(MachineTest, AQuotaBoundsThreadsAndNoneDoesNot) {
  const int32_t unbounded = UsableThreads(root_);
  EXPECT_GE(unbounded, 1);
  Write("/proc/self/cgroup", "0::/pod\n");
  Write("/sys/fs/cgroup/pod/cpu.max", "max 100000\n");
  EXPECT_EQ(UsableThreads(root_), unbounded);
  Write("/sys/fs/cgroup/pod/cpu.max", "20000 100000\n");
  EXPECT_EQ(UsableThreads(root_), 1);
}

TEST_F(MachineTest, AnAffinityMaskOfOneCoreIsOneThread) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(UsableThreads(root_), CPU_COUNT(&before));
  cpu_set_t one;
  CPU_ZERO(&one);
  int core = 0;
  while (!CPU_ISSET(core, &before)) ++core;
  CPU_SET(core, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);  // of this thread alone
  EXPECT_EQ(UsableThreads(root_), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST_F(MachineTest, WhatCannotBeReadIsNothing) { EXPECT_EQ(UsableMemory(root_ + "/none"), 0); }

}  // namespace
}  // namespace ebb
