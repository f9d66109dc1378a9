// Any call of any method, its request in bytes: what no client of ours would send.

#ifndef EBB_TESTS_SUPPORT_GENERIC_CALL_H_
#define EBB_TESTS_SUPPORT_GENERIC_CALL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

namespace ebb {

struct GenericAnswer {
  grpc::Status status = {};
  std::vector<std::string> messages = {};  // in bytes
};

// Reads at most `messages_max` messages, and cancels what has more to say. After a minute the status is
// DEADLINE_EXCEEDED. `method`: "ebb.v1.SessionService/GetSession".
GenericAnswer CallGeneric(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                          const std::string& request, const std::string& tenant, size_t messages_max);

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_GENERIC_CALL_H_
