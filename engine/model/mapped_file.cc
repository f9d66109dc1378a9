#include "engine/model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr char kReason[] = "FILE_UNREADABLE";

absl::Status Unreadable(const std::string& path, const char* call, int error) {
  return Refuse(absl::ErrnoToStatusCode(error), absl::StrFormat("%s: %s failed: %s", path, call, std::strerror(error)),
                {.reason = kReason, .metadata = {{"file", path}}});
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe must not hang us
  if (file.get() < 0) return Unreadable(path, "open", errno);
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) return Unreadable(path, "fstat", errno);
  if (!S_ISREG(status.st_mode)) {
    return Refuse(absl::StatusCode::kFailedPrecondition, absl::StrFormat("%s: expected a regular file", path),
                  {.reason = kReason, .metadata = {{"file", path}}});
  }
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return MappedFile();  // mmap refuses a length of 0
  void* const address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) return Unreadable(path, "mmap", errno);
  return MappedFile({static_cast<const std::byte*>(address), size});
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);  // `other` unmaps what was ours
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace ebb
