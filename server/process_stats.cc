#include "server/process_stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

namespace ebb {
namespace {

std::string ReadFile(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Fields of /proc/self/stat by their number in proc(5); the first two are left empty, since the name may hold spaces.
std::vector<double> ReadStat() {
  const std::string text = ReadFile("/proc/self/stat");
  const size_t name_end = text.rfind(')');
  std::vector<double> fields(53, 0.0);
  if (name_end == std::string::npos) return fields;
  std::istringstream rest(text.substr(name_end + 1));
  std::string field;
  for (size_t i = 3; i < fields.size() && rest >> field; ++i) fields[i] = std::strtod(field.c_str(), nullptr);
  return fields;
}

double BootTimeSeconds() {
  const std::string text = ReadFile("/proc/stat");
  const size_t at = text.find("\nbtime ");
  return at == std::string::npos ? 0 : std::strtod(text.c_str() + at + 7, nullptr);
}

int64_t CountOpenFiles() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  return error ? 0 : std::distance(files, std::filesystem::directory_iterator()) - 1;  // the iterator holds one itself
}

int64_t MaxOpenFiles() {
  rlimit limit = {};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<int64_t>(limit.rlim_cur) : 0;
}

}  // namespace

ProcessStats ReadProcessStats() {
  const std::vector<double> stat = ReadStat();
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  return {.cpu_seconds = (stat[14] + stat[15]) / ticks,
          .start_time_seconds = BootTimeSeconds() + stat[22] / ticks,
          .resident_bytes = static_cast<int64_t>(stat[24]) * sysconf(_SC_PAGESIZE),
          .virtual_bytes = static_cast<int64_t>(stat[23]),
          .open_fds = CountOpenFiles(),
          .max_fds = MaxOpenFiles()};
}

}  // namespace ebb
