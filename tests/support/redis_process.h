// Debian's redis-server for a test: on a free port, with its files in a folder of the test's, and every write on disk
// before it is acknowledged.

#ifndef EBB_TESTS_SUPPORT_REDIS_PROCESS_H_
#define EBB_TESTS_SUPPORT_REDIS_PROCESS_H_

#include <memory>
#include <string>

#include "server/redis_connection.h"
#include "tests/support/child_process.h"

namespace ebb {

class RedisProcess {
 public:
  explicit RedisProcess(const std::string& folder);

  void Kill();   // SIGKILL
  void Start();  // again, on the same port and files
  RedisOptions options() const;
  // The answer's text; fails the test when there is none.
  std::string Ask(const RedisCommand& command) const;

 private:
  const std::string folder_;
  const int port_;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_REDIS_PROCESS_H_
