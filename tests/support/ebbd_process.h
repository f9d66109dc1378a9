// The ebbd binary as a process of its own, on free ports.

#ifndef EBB_TESTS_SUPPORT_EBBD_PROCESS_H_
#define EBB_TESTS_SUPPORT_EBBD_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace ebb {

class EbbdProcess {
 public:
  // Starts `binary` with `arguments` and ports of its own choice. Serves when this returns, or has ended: then
  // address() is empty and log() says why.
  EbbdProcess(const std::string& binary, const std::vector<std::string>& arguments);
  ~EbbdProcess();  // killed if it still runs
  EbbdProcess(const EbbdProcess&) = delete;
  EbbdProcess& operator=(const EbbdProcess&) = delete;

  const std::string& address() const { return address_; }
  const std::string& http_address() const { return http_address_; }
  const std::string& log() const { return log_; }  // what it wrote to stderr, as far as it was read

  void Signal(int number) const;
  // Waits for its end and reads the rest of its log: the exit code, or 128 + the signal that ended it.
  int Wait();

 private:
  bool ReadLine();

  pid_t pid_ = -1;  // -1: it has been waited for
  int stderr_ = -1;
  std::string log_ = {};
  std::string unread_ = {};
  std::string address_ = {};
  std::string http_address_ = {};
};

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_EBBD_PROCESS_H_
