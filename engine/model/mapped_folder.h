// The files of a model's folder, each mapped once, when it is first read.

#ifndef EBB_ENGINE_MODEL_MAPPED_FOLDER_H_
#define EBB_ENGINE_MODEL_MAPPED_FOLDER_H_

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/mapped_file.h"

namespace ebb {

class MappedFolder {
 public:
  // By any of its paths (FolderPath).
  explicit MappedFolder(const std::string& path);

  const std::string& path() const { return path_; }
  // MappedFile::Open's errors. The bytes live as long as the mappings, also after TakeMappings.
  absl::StatusOr<std::span<const std::byte>> Read(const std::string& name);

  // Of what was read, in that order.
  std::vector<std::string> files() const { return files_; }
  std::vector<MappedFile> TakeMappings() { return std::move(mappings_); }

 private:
  std::string path_;
  std::vector<std::string> files_ = {};
  std::vector<MappedFile> mappings_ = {};
};

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_MAPPED_FOLDER_H_
