#include "engine/machine.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

#include "engine/parallel.h"

namespace ebb {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file.is_open()) text << file.rdbuf();
  return text.str();
}

// The first number of a file; "max" is no limit, as is what cgroup v1 writes for none (a number near 2^63).
std::optional<int64_t> ReadNumber(const std::string& path) {
  std::istringstream text(ReadText(path));
  int64_t value = 0;
  if (text >> value) return value;
  return std::nullopt;
}

// The number behind `key` in lines of "key value" or "key: value".
std::optional<int64_t> ReadKey(const std::string& path, std::string_view key) {
  std::istringstream text(ReadText(path));
  for (std::string line; std::getline(text, line);) {
    std::istringstream words(line);
    std::string word;
    int64_t value = 0;
    if (!(words >> word >> value)) continue;
    if (!word.empty() && word.back() == ':') word.pop_back();
    if (word == key) return value;
  }
  return std::nullopt;
}

// Whether `name` is in a list with commas.
bool Names(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == name) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

// Where this process stands in the hierarchy of `controller`; of version 2 where that is empty. "/a/b" or empty.
std::optional<std::string> CgroupPath(const std::string& root, std::string_view controller) {
  std::istringstream text(ReadText(root + "/proc/self/cgroup"));
  for (std::string line; std::getline(text, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view names = std::string_view(line).substr(first + 1, second - first - 1);
    if (controller.empty() ? names.empty() : Names(names, controller)) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

// Calls `visit` with the folder of the process's cgroup and of each above it, up to `mount`; inside a container the
// folders of outer cgroups may not be there, and then are visited in vain.
void ForEachCgroup(const std::string& mount, std::string path, const std::function<void(const std::string&)>& visit) {
  while (!path.empty() && path != "/") {
    visit(mount + path);
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  visit(mount);
}

int64_t LeftInCgroup(const std::string& folder, const char* limit_file, const char* usage_file,
                     const char* inactive_key) {
  const auto limit = ReadNumber(folder + "/" + limit_file);
  const auto usage = ReadNumber(folder + "/" + usage_file);
  if (!limit || !usage) return kUnlimited;
  const int64_t reclaimable = ReadKey(folder + "/memory.stat", inactive_key).value_or(0);
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, *usage - reclaimable));
}

}  // namespace

int64_t UsableMemory(const std::string& root) {
  int64_t left = kUnlimited;
  const std::string mount = root + "/sys/fs/cgroup";
  if (const auto path = CgroupPath(root, "")) {
    ForEachCgroup(mount, *path, [&](const std::string& folder) {
      left = std::min(left, LeftInCgroup(folder, "memory.max", "memory.current", "inactive_file"));
    });
  }
  if (const auto path = CgroupPath(root, "memory")) {
    ForEachCgroup(mount + "/memory", *path, [&](const std::string& folder) {
      left =
          std::min(left, LeftInCgroup(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"));
    });
  }
  if (const auto available = ReadKey(root + "/proc/meminfo", "MemAvailable")) left = std::min(left, *available * 1024);
  return left == kUnlimited ? 0 : left;
}

int32_t UsableThreads(const std::string& root) {
  cpu_set_t sets[16] = {};  // for 16,384 cores: the call fails where the kernel has room for more than the caller
  int32_t allowed = sched_getaffinity(0, sizeof(sets), sets) == 0 ? CPU_COUNT_S(sizeof(sets), sets) : 1;
  const auto obey = [&](std::optional<int64_t> quota, std::optional<int64_t> period) {
    if (!quota || !period || *quota <= 0 || *period <= 0) return;
    allowed = static_cast<int32_t>(std::min<int64_t>(allowed, (*quota + *period - 1) / *period));
  };
  const std::string mount = root + "/sys/fs/cgroup";
  if (const auto path = CgroupPath(root, "")) {
    ForEachCgroup(mount, *path, [&](const std::string& folder) {
      std::istringstream text(ReadText(folder + "/cpu.max"));  // "max 100000" or "150000 100000"
      int64_t quota = 0;
      int64_t period = 0;
      if (text >> quota >> period) obey(quota, period);
    });
  }
  if (const auto path = CgroupPath(root, "cpu")) {
    ForEachCgroup(mount + "/cpu", *path, [&](const std::string& folder) {
      obey(ReadNumber(folder + "/cpu.cfs_quota_us"), ReadNumber(folder + "/cpu.cfs_period_us"));
    });
  }
  return std::clamp(allowed, 1, kThreadsMax);
}

}  // namespace ebb
