// A Generate of this server's own gRPC services, made for an HTTP connection.
//
// It goes through a channel within the process, and from there on the way that any client's goes: what holds on the
// gRPC port of credentials, quotas, limits and back-pressure holds here. An object belongs to one thread, which waits
// in it.

#ifndef EBB_SERVER_OPENAI_CALL_H_
#define EBB_SERVER_OPENAI_CALL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "ebb/v1/inference.grpc.pb.h"

namespace ebb {

// Keys in lower case; values of printable ASCII, since gRPC aborts at any other.
using CallMetadata = std::vector<std::pair<std::string, std::string>>;

class OpenAiCall {
 public:
  OpenAiCall(v1::InferenceService::Stub& stub, const v1::GenerateRequest& request, const CallMetadata& metadata);
  ~OpenAiCall();  // cancels it if it still runs
  OpenAiCall(const OpenAiCall&) = delete;
  OpenAiCall& operator=(const OpenAiCall&) = delete;

  enum class Event {
    kNothing,  // within the patience
    kMessage,  // message() is the next
    kEnded,    // status() says how; nothing follows
  };
  // The next message is asked for here and not before, so that who reads slowly is not sent more than gRPC holds back.
  Event Wait(absl::Duration patience);

  const v1::GenerateResponse& message() const { return message_; }
  const grpc::Status& status() const { return status_; }

 private:
  // What gRPC was asked to do; one at a time.
  enum class Step { kStart, kRead, kFinish, kOver };

  grpc::CompletionQueue queue_ = {};  // the call goes before it
  grpc::ClientContext context_ = {};
  std::unique_ptr<grpc::ClientAsyncReader<v1::GenerateResponse>> reader_;
  Step step_ = Step::kStart;
  bool asked_ = true;  // what step_ says is under way
  v1::GenerateResponse message_ = {};
  grpc::Status status_ = {};
};

}  // namespace ebb

#endif  // EBB_SERVER_OPENAI_CALL_H_
