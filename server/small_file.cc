#include "server/small_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <ios>

#include "absl/status/status.h"

namespace ebb {

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t bytes_max) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes_max + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad() || (file.fail() && !file.eof())) return absl::NotFoundError(std::strerror(errno));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

}  // namespace ebb
