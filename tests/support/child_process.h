// Another program, run for a test: its output can be awaited, and it is gone when this object is.

#ifndef EBB_TESTS_SUPPORT_CHILD_PROCESS_H_
#define EBB_TESTS_SUPPORT_CHILD_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace ebb {

class ChildProcess {
 public:
  // `arguments[0]` is searched in PATH. Standard output and error are one stream.
  explicit ChildProcess(const std::vector<std::string>& arguments);
  ~ChildProcess();  // kills it if it still runs
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // The next line of output that holds `part`; empty when the output ended without one, or none came for a minute.
  // Lines before it are gone: of two lines that come in no certain order, wait for one only.
  std::string WaitForLine(const std::string& part);

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  std::string unread_;  // what came after the last line that was returned
};

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_CHILD_PROCESS_H_
