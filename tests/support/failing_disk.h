// A disk that fails when a test says so: libc's file functions, replaced for the whole program, as far as they are
// about what lies in one folder. All else, sockets too, goes to libc as it came.
//
//   FailingDisk disk(folder.path());
//   disk.Fail({.from = 3});   // the third call fails with EIO, and that one alone
//   ...
//   disk.Work();
//   EXPECT_TRUE(disk.met());
//
// It also keeps book of what a power cut leaves: of each file what was in it when it was last synced, of each folder
// the names that it then had. A file whose sync failed stays for good what it was before: the system may have dropped
// what it could not write, and says so once. Orders of writes that a disk might change beyond that are not tried. No
// disk waits for it: a sync in the folder is done in the books alone.
//
// One at a time. Any thread may call libc meanwhile.

#ifndef EBB_TESTS_SUPPORT_FAILING_DISK_H_
#define EBB_TESTS_SUPPORT_FAILING_DISK_H_

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace ebb {

// kMake: a file or a folder that is to be there, by open with O_CREAT or mkdir; kList: an entry of a folder; kLook:
// size, times and access.
enum class DiskCall { kOpen, kMake, kWrite, kSync, kCut, kRename, kRemove, kRead, kList, kLook };
inline constexpr size_t kDiskCalls = 10;
inline constexpr std::array<const char*, kDiskCalls> kDiskCallNames = {"open",   "make",   "write", "sync", "cut",
                                                                       "rename", "remove", "read",  "list", "look"};

struct DiskFault {
  static constexpr int64_t kForGood = std::numeric_limits<int64_t>::max();

  int64_t from = 1;   // the first call that fails, of those of these kinds
  int64_t count = 1;  // how many do
  int error = EIO;
  bool partly = false;               // a write takes the half of its bytes first
  std::vector<DiskCall> kinds = {};  // empty: all
};

class FailingDisk {
 public:
  // The folder is there, and empty as far as a power cut goes: what is in it already counts as synced.
  explicit FailingDisk(const std::string& folder);
  ~FailingDisk();
  FailingDisk(const FailingDisk&) = delete;
  FailingDisk& operator=(const FailingDisk&) = delete;

  // From now on, counted anew.
  void Fail(const DiskFault& fault);
  void Work();
  // Whether a call failed since Fail; how many calls of its kinds there were; which one failed first.
  bool met() const;
  int64_t counted() const;
  std::string first() const;
  // Calls of each kind since it was made.
  std::array<int64_t, kDiskCalls> seen() const;

  // Makes in `folder`, which is empty, what a power cut at this instant would leave.
  void CutPower(const std::string& folder) const;
};

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_FAILING_DISK_H_
