// An empty folder in the system's temporary one, removed with the object.

#ifndef EBB_TESTS_SUPPORT_TEMPORARY_FOLDER_H_
#define EBB_TESTS_SUPPORT_TEMPORARY_FOLDER_H_

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "policies/check.h"

namespace ebb {

class TemporaryFolder {
 public:
  TemporaryFolder() : path_((std::filesystem::temp_directory_path() / "ebb-test-XXXXXX").string()) {
    EBB_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_TEMPORARY_FOLDER_H_
