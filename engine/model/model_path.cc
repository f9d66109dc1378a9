#include "engine/model/model_path.h"

#include <filesystem>
#include <system_error>

namespace ebb {

bool IsModelFolder(const std::string& model_path) {
  std::error_code unknown;
  return std::filesystem::is_directory(model_path, unknown);
}

std::string FolderPath(const std::string& path) {
  const size_t last = path.find_last_not_of('/');
  const std::string folder = last == std::string::npos ? path : path.substr(0, last + 1);
  const std::filesystem::path name = std::filesystem::path(folder).filename();
  if (name != "." && name != "..") return folder;
  std::error_code unknown;
  const std::filesystem::path whole = std::filesystem::canonical(folder, unknown);
  return unknown ? folder : whole.string();
}

std::string PathBeside(const std::string& model_path, const char* ending) {
  if (IsModelFolder(model_path)) return FolderPath(model_path) + ending;  // what follows a dot is of its name
  return std::filesystem::path(model_path).replace_extension(ending).string();
}

}  // namespace ebb
