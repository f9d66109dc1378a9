// Another program, run for a test: its output can be awaited, and it is gone when this object is.

#ifndef EBB_TESTS_SUPPORT_CHILD_PROCESS_H_
#define EBB_TESTS_SUPPORT_CHILD_PROCESS_H_

#include <sys/types.h>

#include <cstdio>
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

  // The next line of output that holds `part`; empty when the output ended without one.
  std::string WaitForLine(const std::string& part);

 private:
  pid_t pid_ = -1;
  FILE* output_ = nullptr;
};

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_CHILD_PROCESS_H_
