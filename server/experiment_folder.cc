#include "server/experiment_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "policies/status.h"
#include "server/resource_name.h"

namespace ebb {
namespace {

constexpr char kEnding[] = ".experiment";
constexpr char kAside[] = ".damaged";
constexpr char kFolder[] = "experiments";

// REQUIRES: `id` is a resource name.
std::string FileOfExperiment(const std::string& id) { return absl::StrCat(id, kEnding); }

}  // namespace

absl::StatusOr<std::unique_ptr<ExperimentFolder>> ExperimentFolder::Open(const std::string& dir) {
  const OpenFile root(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root.ok()) return StoreUnusable(dir, "opening it", errno);
  auto folder = MakeFolder(root, kFolder);
  if (!folder.ok()) return StoreUnusable(dir, folder.status());
  std::vector<std::string> names;
  if (const int error = ListNames(*folder, names); error != 0) return StoreUnusable(dir, "listing experiments", error);
  for (const std::string& name : names) {
    if (IsBeside(name)) unlinkat(folder->get(), name.c_str(), 0);  // else another time
  }
  return std::unique_ptr<ExperimentFolder>(new ExperimentFolder(*std::move(folder)));
}

absl::StatusOr<ExperimentStore::Lefts> ExperimentFolder::Find() {
  std::vector<std::string> names;
  if (const int error = ListNames(folder_, names); error != 0) return StoreFailed("listing", kFolder, error);
  Lefts lefts;
  for (const std::string& name : names) {
    const std::string id(absl::StripSuffix(name, kEnding));
    if (id != name && IsResourceName(id)) lefts.push_back({.id = id, .place = kFolder});
  }
  return lefts;
}

absl::StatusOr<std::string> ExperimentFolder::Read(const Left& left) {
  return ReadFile(folder_, FileOfExperiment(left.id));
}

absl::StatusOr<std::string> ExperimentFolder::SetAside(const Left& left) {
  const std::string file = FileOfExperiment(left.id);
  const std::string aside = absl::StrCat(file, kAside);
  if (renameat(folder_.get(), file.c_str(), folder_.get(), aside.c_str()) == 0) return aside;
  return StoreFailed("setting aside", file, errno);
}

absl::Status ExperimentFolder::Write(const std::string& id, std::string_view image, const Lefts& /*merged*/) {
  return ReplaceFile(folder_, FileOfExperiment(id), image, true);
}

absl::Status ExperimentFolder::Remove(const std::string& id, const Lefts& /*merged*/) {
  const std::string file = FileOfExperiment(id);
  if (unlinkat(folder_.get(), file.c_str(), 0) == 0 || errno == ENOENT) return absl::OkStatus();
  return StoreFailed("removing", file, errno);
}

}  // namespace ebb
