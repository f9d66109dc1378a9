// The files of a server that runs, as one that is killed leaves them.

#ifndef EBB_TESTS_SUPPORT_STORE_COPY_H_
#define EBB_TESTS_SUPPORT_STORE_COPY_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>

namespace ebb {

// Files under a folder, and how long they are; but for the lock of a store.
inline std::map<std::string, uintmax_t> FilesIn(const std::filesystem::path& folder) {
  std::map<std::string, uintmax_t> files;
  std::error_code gone;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const bool counts = entry.is_regular_file(gone) && entry.path().filename() != "LOCK";
    if (counts) files[entry.path().string()] = entry.file_size(gone);
  }
  return files;
}

// Makes `to` what `from` is at an instant at which the server does nothing to it.
inline void CopyStore(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code error;
  std::map<std::string, uintmax_t> before;
  do {
    std::filesystem::remove_all(to);
    before = FilesIn(from);
    std::filesystem::copy(from, to, std::filesystem::copy_options::recursive, error);
  } while (error || before != FilesIn(from));
}

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_STORE_COPY_H_
