// Where the golden data lies: EBB_GOLDEN, else ../shared/golden beside the source tree. Empty where there is none, so
// that a test can skip. Relative paths start at the source tree, where ctest runs every test.

#ifndef EBB_TESTS_SUPPORT_GOLDEN_FOLDER_H_
#define EBB_TESTS_SUPPORT_GOLDEN_FOLDER_H_

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace ebb {

inline std::string GoldenFolder() {
  const char* const set = std::getenv("EBB_GOLDEN");
  const std::string folder = set != nullptr && *set != '\0' ? set : "../shared/golden";
  std::error_code ignored;
  return std::filesystem::is_directory(folder, ignored) ? folder : std::string();
}

// The same, or the part of it that the source tree carries.
inline std::string GoldenFolderOrPart() {
  const std::string whole = GoldenFolder();
  return whole.empty() ? "tests/golden/data" : whole;
}

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_GOLDEN_FOLDER_H_
