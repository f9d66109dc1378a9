// A file on which whoever opens it waits, as on a file system that is away: somebody who was asked, and never says
// whether it may be opened.

#ifndef EBB_TESTS_SUPPORT_HUNG_FILE_H_
#define EBB_TESTS_SUPPORT_HUNG_FILE_H_

#include <fcntl.h>
#include <sys/fanotify.h>
#include <unistd.h>

#include <string>

namespace ebb {

class HungFile {
 public:
  // Until this ends, or Answer.
  explicit HungFile(const std::string& path) : asked_(fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY)) {
    if (asked_ >= 0 && fanotify_mark(asked_, FAN_MARK_ADD, FAN_OPEN_PERM, AT_FDCWD, path.c_str()) != 0) Answer();
  }
  ~HungFile() { Answer(); }
  HungFile(const HungFile&) = delete;
  HungFile& operator=(const HungFile&) = delete;

  bool hangs() const { return asked_ >= 0; }  // it takes root, and a kernel that asks
  void Answer() {
    if (asked_ >= 0) close(asked_);
    asked_ = -1;
  }
  static constexpr char kSkipped[] = "no file can be made to hang: that takes root";

 private:
  int asked_;
};

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_HUNG_FILE_H_
