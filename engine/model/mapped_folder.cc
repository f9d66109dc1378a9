#include "engine/model/mapped_folder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/model/model_path.h"
#include "policies/status.h"

namespace ebb {

MappedFolder::MappedFolder(const std::string& path) : path_(FolderPath(path)) {}

absl::StatusOr<std::span<const std::byte>> MappedFolder::Read(const std::string& name) {
  std::string file = absl::StrCat(path_, "/", name);
  const auto known = std::ranges::find(files_, file);
  if (known != files_.end()) return mappings_[static_cast<size_t>(known - files_.begin())].bytes();
  EBB_ASSIGN(MappedFile mapping, MappedFile::Open(file));
  files_.push_back(std::move(file));
  mappings_.push_back(std::move(mapping));
  return mappings_.back().bytes();
}

}  // namespace ebb
