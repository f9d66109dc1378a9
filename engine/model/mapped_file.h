// A file, mapped read-only into memory for as long as the object lives. Move-only; moving keeps the addresses.
//
// The bytes are the file's own: whoever truncates the file under a running process kills it (SIGBUS), so replace model
// files by renaming, never in place.

#ifndef EBB_ENGINE_MODEL_MAPPED_FILE_H_
#define EBB_ENGINE_MODEL_MAPPED_FILE_H_

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace ebb {

class MappedFile {
 public:
  // Errors carry the code that fits errno (NOT_FOUND, PERMISSION_DENIED, ...), reason FILE_UNREADABLE, and a message
  // with the path and errno's text. What is no regular file is FAILED_PRECONDITION. An empty file maps to no bytes.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_ = {};
};

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_MAPPED_FILE_H_
