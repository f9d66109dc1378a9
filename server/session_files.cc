#include "server/session_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ranges>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/resource_name.h"

namespace ebb {
namespace {

constexpr std::string_view kJournal = ".journal";
constexpr std::string_view kSnapshot = ".snapshot";
constexpr std::string_view kAside = ".damaged";

// ID and N of ID.N, or nothing.
std::optional<std::pair<std::string, uint32_t>> ReadName(std::string_view name, std::string_view ending) {
  if (!name.ends_with(ending)) return std::nullopt;
  name.remove_suffix(ending.size());
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  uint32_t number = 0;
  const std::string_view digits = name.substr(dot + 1);
  if (!absl::SimpleAtoi(absl::string_view(digits.data(), digits.size()), &number)) return std::nullopt;
  const std::string id(name.substr(0, dot));
  if (!IsResourceName(id) || number == 0) return std::nullopt;
  return std::pair(id, number);
}

// Without its folder nothing is there of a session; of one that cannot be opened now that is not known.
absl::Status NoFolder(const SessionName& name, int error) {
  return error == ENOENT ? absl::OkStatus() : StoreFailed("opening the folder of", name.first, error);
}

}  // namespace

absl::Status SessionFiles::AtFile(const SessionName& name, const std::string& file, const absl::Status& status) {
  return Refuse(status.code(), absl::StrFormat("journals/%s/%s: %s", name.first, file, std::string(status.message())),
                GetRefusal(status));
}

std::string SessionFiles::JournalName(const SessionName& name, uint32_t number) {
  return absl::StrFormat("%s.%d%s", name.second, number, kJournal);
}
std::string SessionFiles::SnapshotName(const SessionName& name, uint32_t number) {
  return absl::StrFormat("%s.%d%s", name.second, number, kSnapshot);
}

absl::StatusOr<std::unique_ptr<SessionFiles>> SessionFiles::Open(const std::string& dir) {
  const std::string journals = dir + "/journals";
  const OpenFile store(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!store.ok()) return StoreUnusable(journals, "opening the folder around it", errno);
  auto root = MakeFolder(store, "journals");
  if (!root.ok()) return StoreUnusable(journals, "making it", errno);
  // What a server that was killed made, and had not yet synced, is found from here on, and taken for synced.
  if (fsync(root->get()) != 0) return StoreUnusable(journals, "syncing it", errno);
  std::vector<std::string> tenants;
  if (const int error = ListNames(*root, tenants); error != 0) return StoreUnusable(journals, "listing it", error);
  for (const std::string& tenant : tenants) {
    if (!IsResourceName(tenant)) continue;
    const OpenFile folder = FindFolder(*root, tenant);
    std::vector<std::string> names;
    if (folder.ok()) ListNames(folder, names);  // what is not seen now is tidied another time
    for (const std::string& name : names) {
      if (IsBeside(name) && unlinkat(folder.get(), name.c_str(), 0) != 0)
        return StoreUnusable(journals, "tidying it", errno);
    }
  }
  return std::unique_ptr<SessionFiles>(new SessionFiles(journals, *std::move(root)));
}

absl::StatusOr<OpenFile> SessionFiles::MakeFolderOf(const SessionName& name) const {
  return MakeFolder(root_, name.first);
}
OpenFile SessionFiles::FolderOf(const SessionName& name) const { return FindFolder(root_, name.first); }

int SessionFiles::ListFolder(const OpenFile& folder, std::map<std::string, Numbers>& sessions) {
  std::vector<std::string> names;
  const int error = ListNames(folder, names);
  for (const std::string& name : names) {
    if (const auto journal = ReadName(name, kJournal)) sessions[journal->first].journals.push_back(journal->second);
    if (const auto snapshot = ReadName(name, kSnapshot))
      sessions[snapshot->first].snapshots.push_back(snapshot->second);
  }
  for (auto& [_, numbers] : sessions) {
    std::ranges::sort(numbers.journals);  // 10 came before 9
    std::ranges::sort(numbers.snapshots);
  }
  return error;
}

absl::StatusOr<SessionFiles::Numbers> SessionFiles::NumbersOf(const SessionName& name, const OpenFile& folder) {
  std::map<std::string, Numbers> sessions;
  if (const int error = ListFolder(folder, sessions); error != 0) {
    return StoreFailed("listing the folder of", name.first, error);
  }
  return std::move(sessions[name.second]);
}

absl::StatusOr<std::vector<SessionName>> SessionFiles::Names() const {
  std::vector<SessionName> names;
  std::vector<std::string> tenants;
  if (const int error = ListNames(root_, tenants); error != 0) return StoreUnusable(path_, "listing it", error);
  for (const std::string& tenant : tenants) {
    if (!IsResourceName(tenant)) continue;
    const OpenFile folder = FindFolder(root_, tenant);
    std::map<std::string, Numbers> sessions;
    const int error = folder.ok() ? ListFolder(folder, sessions) : errno;
    if (error != 0) return StoreUnusable(path_, "listing a tenant's folder in it", error);
    for (const auto& [id, _] : sessions) names.emplace_back(tenant, id);
  }
  return names;
}

absl::StatusOr<std::optional<SessionPieces>> SessionFiles::Read(const SessionName& name) const {
  const OpenFile folder = FolderOf(name);
  if (!folder.ok()) return StoreFailed("opening the folder of", name.first, errno);
  // Without one of the files it may look as if it had never been whole.
  EBB_ASSIGN(const Numbers numbers, NumbersOf(name, folder));
  const uint32_t base = numbers.snapshots.empty() ? 0 : numbers.snapshots.back();
  const bool whole = base > 0 && std::ranges::binary_search(numbers.journals, base);
  if (base > 0 && !whole) return std::nullopt;  // it was being deleted
  SessionPieces pieces = {.place = {.first = base, .last = base}};
  for (uint32_t number = base; number <= (numbers.journals.empty() ? 0 : numbers.journals.back()); ++number) {
    if (number == 0 && !std::ranges::binary_search(numbers.journals, number)) continue;
    const std::string file = JournalName(name, number);
    auto bytes = ReadFile(folder, file);
    if (absl::IsNotFound(bytes.status())) bytes = JournalDamaged("it is missing");
    if (!bytes.ok()) return AtFile(name, file, bytes.status());
    const auto text = ReadJournal(*bytes);
    if (!text.ok()) return AtFile(name, file, text.status());
    const bool is_last = number == numbers.journals.back();
    if (!is_last && text->end.bytes != bytes->size()) {
      return AtFile(name, file,
                    JournalDamaged(absl::StrFormat("byte %d: it is cut, and another follows it", text->end.bytes)));
    }
    for (const std::string_view record : text->records) pieces.records.emplace_back(record);
    pieces.place.last = number;
    pieces.place.end = text->end;
  }
  if (!whole) {  // it was being opened, and nobody was told
    if (pieces.records.empty()) return std::nullopt;
    return AtFile(name, SnapshotName(name, numbers.journals.front()), JournalDamaged("it is missing"));
  }
  auto snapshot = ReadFile(folder, SnapshotName(name, base));
  if (!snapshot.ok()) return AtFile(name, SnapshotName(name, base), snapshot.status());
  pieces.snapshot = *std::move(snapshot);
  if (const uint32_t oldest = std::min(numbers.snapshots.front(), numbers.journals.front()); oldest < base) {
    // What a snapshot had not yet removed; where it stays, the next snapshot removes it.
    if (!Remove(name, oldest, base - 1, false).ok()) pieces.place.first = oldest;
  }
  return pieces;
}

absl::Status SessionFiles::SetAside(const SessionName& name) const {
  const OpenFile folder = FolderOf(name);
  if (!folder.ok()) return NoFolder(name, errno);
  std::vector<std::string> files;
  if (const int error = ListNames(folder, files); error != 0) {
    return StoreFailed("listing the folder of", name.first, error);
  }
  // A snapshot before its journal: one that is left alone would be taken for what was being deleted.
  for (const std::string& file : files | std::views::reverse) {
    const auto journal = ReadName(file, kJournal);
    const auto found = journal ? journal : ReadName(file, kSnapshot);
    if (!found || found->first != name.second) continue;
    const std::string aside = absl::StrFormat("%s%s", file, kAside);
    if (renameat(folder.get(), file.c_str(), folder.get(), aside.c_str()) != 0) {
      return StoreFailed("setting aside", file, errno);
    }
  }
  return absl::OkStatus();
}

absl::Status SessionFiles::Remove(const SessionName& name, uint32_t first, uint32_t last, bool sync) const {
  const OpenFile folder = FolderOf(name);
  if (!folder.ok()) return NoFolder(name, errno);
  // Once the journal of the snapshot that it begins with is gone, so is the session; before, it is whole.
  for (const auto& file_of : {JournalName, SnapshotName}) {
    for (uint32_t number = first; number <= last; ++number) {
      const std::string file = file_of(name, number);
      if (unlinkat(folder.get(), file.c_str(), 0) != 0 && errno != ENOENT) return StoreFailed("removing", file, errno);
    }
  }
  if (sync && fsync(folder.get()) != 0) return StoreFailed("syncing the folder of", name.second, errno);
  return absl::OkStatus();
}

absl::Status SessionFiles::RemoveAll(const SessionName& name) const {
  const OpenFile folder = FolderOf(name);
  if (!folder.ok()) return NoFolder(name, errno);
  EBB_ASSIGN(const Numbers numbers, NumbersOf(name, folder));
  std::vector<uint32_t> all = numbers.journals;
  all.insert(all.end(), numbers.snapshots.begin(), numbers.snapshots.end());
  if (all.empty()) return absl::OkStatus();
  return Remove(name, std::ranges::min(all), std::ranges::max(all), true);
}

}  // namespace ebb
