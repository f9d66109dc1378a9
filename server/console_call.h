// One RPC of this server, made for a page in a browser: JSON in, JSON out.
//
// It goes through a channel within the process, and from there on the way that any client's goes: what holds on the
// gRPC port of credentials, quotas and limits holds here, for every method, and no method needs code of its own. An
// object belongs to one thread, which waits in it.

#ifndef EBB_SERVER_CONSOLE_CALL_H_
#define EBB_SERVER_CONSOLE_CALL_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ebb {

class ConsoleCall {
 public:
  // Keys in lower case; values of printable ASCII, since gRPC aborts at any other.
  using Metadata = std::vector<std::pair<std::string, std::string>>;

  // Starts it. `json`: the method's request as proto3 JSON. `timeout` may be infinite. INVALID_ARGUMENT BAD_JSON.
  static absl::StatusOr<std::unique_ptr<ConsoleCall>> Start(const std::shared_ptr<grpc::Channel>& channel,
                                                            const google::protobuf::MethodDescriptor& method,
                                                            const std::string& json, const Metadata& metadata,
                                                            absl::Duration timeout);

  ~ConsoleCall();  // cancels it if it still runs
  ConsoleCall(const ConsoleCall&) = delete;
  ConsoleCall& operator=(const ConsoleCall&) = delete;

  enum class Event {
    kNothing,  // within the patience
    kTaken,    // the answer's headers have come: of a watch, it is in force
    kMessage,  // message() is the next
    kEnded,    // status() says how; nothing follows
  };
  // The next message is asked for here and not before, so that who writes slowly is not sent more than gRPC holds back.
  Event Wait(absl::Duration patience);

  const std::string& message() const { return message_; }  // proto3 JSON, on one line
  const grpc::Status& status() const { return status_; }

 private:
  // What gRPC was asked to do; one at a time.
  enum class Step { kStart, kWrite, kHeaders, kRead, kFinish, kOver };

  ConsoleCall(const google::protobuf::MethodDescriptor& method, std::string request);
  Event Happened(bool ok);
  void Ask(Step step);

  const google::protobuf::MethodDescriptor& method_;
  const std::string request_;
  grpc::CompletionQueue queue_ = {};  // the call goes before it
  grpc::ClientContext context_ = {};
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_ = {};
  Step step_ = Step::kStart;
  bool asked_ = false;  // what step_ says is under way
  grpc::ByteBuffer response_ = {};
  std::string message_ = {};
  grpc::Status status_ = {};
};

// `message` as JSON on one line; google.rpc's details are written out.
std::string ToJson(const google::protobuf::Message& message);

// What a call ended with, as JSON of google.rpc.Status, its details written out.
std::string ErrorToJson(const grpc::Status& status);

}  // namespace ebb

#endif  // EBB_SERVER_CONSOLE_CALL_H_
