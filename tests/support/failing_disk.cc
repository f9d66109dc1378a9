#include "tests/support/failing_disk.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "policies/check.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;

struct DiskEntry {
  ino_t inode = 0;
  bool is_folder = false;
};

struct Disk {
  std::mutex mutex;
  std::string folder;
  bool fails = false;
  DiskFault fault;
  std::array<bool, kDiskCalls> kinds = {};
  int64_t counted = 0;
  std::string first;  // that failed
  bool is_partly = false;
  std::array<int64_t, kDiskCalls> seen = {};
  // What is on disk, by inode: what is not here is empty.
  std::map<ino_t, std::string> files;
  std::map<ino_t, std::map<std::string, DiskEntry>> folders;
  std::set<ino_t> dropped;  // files whose sync failed
};

std::atomic<bool> is_watched = false;
thread_local bool is_keeping_book = false;

Disk& TheDisk() {
  static Disk* const disk = new Disk;  // for good: any thread may be about to ask it
  return *disk;
}

template <typename Function>
Function* FromLibc(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// The disk, to itself: what its books take of libc counts for nothing, and leaves errno as it is.
class Books {
 public:
  Books() { is_keeping_book = true; }
  ~Books() {
    is_keeping_book = false;
    errno = errno_;
  }
  Disk* operator->() const { return &TheDisk(); }
  Disk& operator*() const { return TheDisk(); }

 private:
  const int errno_ = errno;
  const std::lock_guard<std::mutex> lock_{TheDisk().mutex};
};

bool IsWatched() { return is_watched && !is_keeping_book; }

std::string PathOf(int fd) {
  std::array<char, PATH_MAX> path = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), path.data(), path.size());
  return length < 0 ? std::string() : std::string(path.data(), static_cast<size_t>(length));
}
std::string PathAt(int folder, const char* name) {
  return name[0] == '/' ? std::string(name) : PathOf(folder) + "/" + name;
}
bool IsIn(const Disk& disk, const std::string& path) {
  return path == disk.folder || path.starts_with(disk.folder + "/");
}

// The error that the call fails with, 0: it does not.
int ErrorOf(DiskCall call, const std::string& path) {
  const Books books;
  Disk& disk = *books;
  if (!IsIn(disk, path)) return 0;
  const auto kind = static_cast<size_t>(call);
  ++disk.seen[kind];
  if (!disk.fails || !disk.kinds[kind]) return 0;
  if (disk.is_partly && call == DiskCall::kWrite) {  // the rest of what was written in part
    disk.is_partly = false;
    return disk.fault.error;
  }
  ++disk.counted;
  const int64_t since = disk.counted - disk.fault.from;
  if (since < 0 || since >= disk.fault.count) return 0;
  disk.is_partly = disk.fault.partly && call == DiskCall::kWrite;
  if (disk.first.empty()) disk.first = std::string(kDiskCallNames[kind]) + " " + path.substr(disk.folder.size());
  return disk.fault.error;
}
// Fails it: true, with errno.
bool Fails(DiskCall call, const std::string& path) {
  const int error = ErrorOf(call, path);
  if (error != 0) errno = error;
  return error != 0;
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::map<std::string, DiskEntry> EntriesOf(const std::string& path) {
  std::map<std::string, DiskEntry> entries;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    struct stat about = {};
    if (lstat(entry.path().c_str(), &about) != 0) continue;  // it went meanwhile
    entries[entry.path().filename()] = {.inode = about.st_ino, .is_folder = S_ISDIR(about.st_mode)};
  }
  return entries;
}

ino_t InodeOf(const std::string& path) {
  struct stat about = {};
  return lstat(path.c_str(), &about) == 0 ? about.st_ino : 0;
}

// What is in it now is on disk.
void NoteSynced(Disk& disk, const std::string& path) {
  struct stat about = {};
  if (lstat(path.c_str(), &about) != 0) return;  // it is removed already
  if (S_ISDIR(about.st_mode)) {
    disk.folders[about.st_ino] = EntriesOf(path);
  } else if (!disk.dropped.contains(about.st_ino)) {
    disk.files[about.st_ino] = Contents(path);
  }
}

void NoteAll(Disk& disk, const std::string& folder) {
  NoteSynced(disk, folder);
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) NoteSynced(disk, entry.path());
}

// An inode may have been another's before.
void NoteNew(const std::string& path) {
  const Books books;
  Disk& disk = *books;
  struct stat about = {};
  if (!IsIn(disk, path) || lstat(path.c_str(), &about) != 0) return;
  if (!S_ISDIR(about.st_mode) && about.st_size > 0) return;
  disk.files.erase(about.st_ino);
  disk.folders.erase(about.st_ino);
  disk.dropped.erase(about.st_ino);
}

using SyncFunction = int(int);

int Sync(SyncFunction* real, int fd) {
  const std::string path = PathOf(fd);
  const bool fails = Fails(DiskCall::kSync, path);
  const Books books;
  if (!IsIn(*books, path)) return real(fd);
  if (fails) {
    books->dropped.insert(InodeOf(path));
  } else {
    NoteSynced(*books, path);
  }
  return fails ? -1 : 0;
}

ssize_t Write(decltype(write)* real, int fd, const void* bytes, size_t size) {
  if (!Fails(DiskCall::kWrite, PathOf(fd))) return real(fd, bytes, size);
  const Books books;
  return books->is_partly && size > 1 ? real(fd, bytes, size / 2) : -1;
}

int Open(int folder, const char* name, int flags, mode_t mode) {
  static auto* const real = FromLibc<int(int, const char*, int, mode_t)>("openat");
  if (!IsWatched()) return real(folder, name, flags, mode);
  const bool makes = (flags & O_CREAT) != 0;
  const std::string path = PathAt(folder, name);
  if (Fails(makes ? DiskCall::kMake : DiskCall::kOpen, path)) return -1;
  const int fd = real(folder, name, flags, mode);
  if (fd >= 0 && makes) NoteNew(path);
  return fd;
}

int MakeFolder(int folder, const char* name, mode_t mode) {
  static auto* const real = FromLibc<int(int, const char*, mode_t)>("mkdirat");
  if (!IsWatched()) return real(folder, name, mode);
  const std::string path = PathAt(folder, name);
  if (Fails(DiskCall::kMake, path)) return -1;
  const int result = real(folder, name, mode);
  if (result == 0) NoteNew(path);
  return result;
}

int RemoveAt(int folder, const char* name, int flags) {
  static auto* const real = FromLibc<int(int, const char*, int)>("unlinkat");
  if (IsWatched() && Fails(DiskCall::kRemove, PathAt(folder, name))) return -1;
  return real(folder, name, flags);
}

void Restore(const Disk& disk, ino_t inode, const fs::path& into) {
  const auto entries = disk.folders.find(inode);
  if (entries == disk.folders.end()) return;
  for (const auto& [name, entry] : entries->second) {
    const fs::path path = into / name;
    if (entry.is_folder) {
      fs::create_directory(path);
      Restore(disk, entry.inode, path);
    } else {
      const auto bytes = disk.files.find(entry.inode);
      std::ofstream(path, std::ios::binary) << (bytes == disk.files.end() ? std::string() : bytes->second);
    }
  }
}

}  // namespace

FailingDisk::FailingDisk(const std::string& folder) {
  {
    const Books books;
    Disk& disk = *books;
    disk.folder = fs::canonical(folder);
    disk.fails = false;
    disk.seen = {};
    disk.files.clear();
    disk.folders.clear();
    disk.dropped.clear();
    NoteAll(disk, disk.folder);
  }
  EBB_CHECK(!is_watched.exchange(true));
}

FailingDisk::~FailingDisk() { is_watched = false; }

void FailingDisk::Fail(const DiskFault& fault) {
  const Books books;
  Disk& disk = *books;
  disk.fails = true;
  disk.is_partly = false;
  disk.fault = fault;
  disk.counted = 0;
  disk.first.clear();
  disk.kinds.fill(fault.kinds.empty());
  for (const DiskCall kind : fault.kinds) disk.kinds[static_cast<size_t>(kind)] = true;
}

void FailingDisk::Work() { Books()->fails = false; }

bool FailingDisk::met() const { return !first().empty(); }
int64_t FailingDisk::counted() const { return Books()->counted; }
std::string FailingDisk::first() const { return Books()->first; }
std::array<int64_t, kDiskCalls> FailingDisk::seen() const { return Books()->seen; }

void FailingDisk::CutPower(const std::string& folder) const {
  const Books books;
  Restore(*books, InodeOf(books->folder), folder);
}

}  // namespace ebb

// What libc's headers declare, and what they make of it in a program that is compiled with checks.
// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name,bugprone-reserved-identifier)
extern "C" {

int __open_2(const char* path, int flags);
int __openat_2(int folder, const char* path, int flags);

int openat(int folder, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return ebb::Open(folder, path, flags, mode);
}
int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return ebb::Open(AT_FDCWD, path, flags, mode);
}
int __openat_2(int folder, const char* path, int flags) { return ebb::Open(folder, path, flags, 0); }
int __open_2(const char* path, int flags) { return ebb::Open(AT_FDCWD, path, flags, 0); }

ssize_t write(int fd, const void* bytes, size_t size) {
  static auto* const real = ebb::FromLibc<decltype(write)>("write");
  return ebb::IsWatched() ? ebb::Write(real, fd, bytes, size) : real(fd, bytes, size);
}
ssize_t read(int fd, void* bytes, size_t size) {
  static auto* const real = ebb::FromLibc<decltype(read)>("read");
  if (ebb::IsWatched() && ebb::Fails(ebb::DiskCall::kRead, ebb::PathOf(fd))) return -1;
  return real(fd, bytes, size);
}

int fsync(int fd) {
  static auto* const real = ebb::FromLibc<ebb::SyncFunction>("fsync");
  return ebb::IsWatched() ? ebb::Sync(real, fd) : real(fd);
}
int fdatasync(int fd) {
  static auto* const real = ebb::FromLibc<ebb::SyncFunction>("fdatasync");
  return ebb::IsWatched() ? ebb::Sync(real, fd) : real(fd);
}
int ftruncate(int fd, off_t size) noexcept {
  static auto* const real = ebb::FromLibc<int(int, off_t)>("ftruncate");
  if (ebb::IsWatched() && ebb::Fails(ebb::DiskCall::kCut, ebb::PathOf(fd))) return -1;
  return real(fd, size);
}

int mkdirat(int folder, const char* path, mode_t mode) noexcept { return ebb::MakeFolder(folder, path, mode); }
int mkdir(const char* path, mode_t mode) noexcept { return ebb::MakeFolder(AT_FDCWD, path, mode); }
int unlinkat(int folder, const char* path, int flags) noexcept { return ebb::RemoveAt(folder, path, flags); }
int unlink(const char* path) noexcept { return ebb::RemoveAt(AT_FDCWD, path, 0); }
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  static auto* const real = ebb::FromLibc<int(int, const char*, int, const char*)>("renameat");
  if (ebb::IsWatched() && ebb::Fails(ebb::DiskCall::kRename, ebb::PathAt(to_folder, to))) return -1;
  return real(from_folder, from, to_folder, to);
}

struct dirent* readdir(DIR* entries) {
  static auto* const real = ebb::FromLibc<struct dirent*(DIR*)>("readdir");
  if (ebb::IsWatched() && ebb::Fails(ebb::DiskCall::kList, ebb::PathOf(dirfd(entries)))) return nullptr;
  return real(entries);
}
int fstat(int fd, struct stat* about) noexcept {
  static auto* const real = ebb::FromLibc<int(int, struct stat*)>("fstat");
  if (ebb::IsWatched() && ebb::Fails(ebb::DiskCall::kLook, ebb::PathOf(fd))) return -1;
  return real(fd, about);
}
int fstatat(int folder, const char* path, struct stat* about, int flags) noexcept {
  static auto* const real = ebb::FromLibc<int(int, const char*, struct stat*, int)>("fstatat");
  if (ebb::IsWatched() && ebb::Fails(ebb::DiskCall::kLook, ebb::PathAt(folder, path))) return -1;
  return real(folder, path, about, flags);
}
int access(const char* path, int mode) noexcept {
  static auto* const real = ebb::FromLibc<int(const char*, int)>("access");
  if (ebb::IsWatched() && ebb::Fails(ebb::DiskCall::kLook, path)) return -1;
  return real(path, mode);
}

}  // extern "C"
// NOLINTEND(readability-inconsistent-declaration-parameter-name,bugprone-reserved-identifier)
