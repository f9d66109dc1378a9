#include "server/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "server/files.h"
#include "server/finished_within.h"

namespace ebb {
namespace {

absl::StatusOr<std::string> ReadNow(const std::string& path, size_t bytes_max) {
  const auto failed = [] { return absl::NotFoundError(std::strerror(errno)); };
  struct stat about = {};
  if (stat(path.c_str(), &about) != 0) return failed();
  if (!S_ISREG(about.st_mode)) return absl::NotFoundError("it is no regular file");  // some devices mind being opened
  const OpenFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // what has become a pipe has no writer
  if (!file.ok()) return failed();
  std::string text(bytes_max + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed();
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  text.resize(size);
  return text;
}

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t bytes_max, absl::Duration patience) {
  const auto text = std::make_shared<absl::StatusOr<std::string>>();
  if (FinishedWithin(path, patience, [=] { *text = ReadNow(path, bytes_max); })) return std::move(*text);
  return absl::NotFoundError(NothingCame(patience));
}

}  // namespace ebb
