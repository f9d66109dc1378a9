#include "server/swap_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/str_format.h"

namespace ebb {
namespace {

std::string NameOf(uint64_t file) { return absl::StrFormat("%d.snapshot", file); }

}  // namespace

absl::StatusOr<std::unique_ptr<SwapFolder>> SwapFolder::Open(const std::string& dir, int64_t bytes_max) {
  const std::string swap = dir + "/swap";
  const OpenFile store(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!store.ok()) return StoreUnusable(swap, "opening the folder around it", errno);
  auto folder = MakeFolder(store, "swap");
  if (!folder.ok()) return StoreUnusable(swap, "making it", errno);
  std::vector<std::string> names;
  if (const int error = ListNames(*folder, names); error != 0) return StoreUnusable(swap, "listing it", error);
  for (const std::string& name : names) {
    if (name == "." || name == "..") continue;
    if (unlinkat(folder->get(), name.c_str(), 0) != 0) return StoreUnusable(swap, "emptying it", errno);
  }
  return std::unique_ptr<SwapFolder>(new SwapFolder(*std::move(folder), bytes_max));
}

SwapFolder::SwapFolder(OpenFile folder, int64_t bytes_max)
    : folder_(std::move(folder)), bytes_max_(bytes_max), thread_([this] { Loop(); }) {}

void SwapFolder::Stop() {
  jobs_.Close();
  if (thread_.joinable()) thread_.join();
}

void SwapFolder::Loop() {
  std::vector<Job> jobs;
  while (jobs_.Take(jobs, absl::InfiniteDuration())) {
    for (Job& job : jobs) {
      job(*this);
      job = nullptr;  // with the copy that it held
    }
  }
}

// Not synced: who pulls the plug ends the server, and the file with it.
absl::Status SwapFolder::Write(uint64_t file, std::string_view bytes) const {
  return ReplaceFile(folder_, NameOf(file), bytes, false);
}

absl::StatusOr<SnapshotBytes> SwapFolder::Read(uint64_t file) const { return ReadSnapshotFile(folder_, NameOf(file)); }

void SwapFolder::Remove(uint64_t file) const { unlinkat(folder_.get(), NameOf(file).c_str(), 0); }

}  // namespace ebb
