#include "server/console_call.h"

#include <google/protobuf/util/json_util.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "google/rpc/status.pb.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::Message;

std::unique_ptr<Message> NewMessage(const Descriptor& type) {
  const Message* const prototype = google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type);
  EBB_CHECK(prototype != nullptr);
  return std::unique_ptr<Message>(prototype->New());
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConsoleCall>> ConsoleCall::Start(const std::shared_ptr<grpc::Channel>& channel,
                                                                const google::protobuf::MethodDescriptor& method,
                                                                const std::string& json, const Metadata& metadata,
                                                                absl::Duration timeout) {
  const std::unique_ptr<Message> request = NewMessage(*method.input_type());
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, request.get());
  if (!parsed.ok()) {
    return Refuse(
        absl::StatusCode::kInvalidArgument,
        absl::StrFormat("the body is no %s in JSON: %s", method.input_type()->name(), std::string(parsed.message())),
        {.reason = "BAD_JSON"});
  }
  std::unique_ptr<ConsoleCall> call(new ConsoleCall(method, request->SerializeAsString()));
  for (const auto& [key, value] : metadata) call->context_.AddMetadata(key, value);
  if (timeout < absl::InfiniteDuration()) call->context_.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  call->stream_ = grpc::GenericStub(channel).PrepareCall(
      &call->context_, absl::StrCat("/", method.service()->full_name(), "/", method.name()), &call->queue_);
  return call;
}

ConsoleCall::ConsoleCall(const google::protobuf::MethodDescriptor& method, std::string request)
    : method_(method), request_(std::move(request)) {}

ConsoleCall::~ConsoleCall() {
  context_.TryCancel();
  void* tag = nullptr;
  bool ok = false;
  if (asked_) queue_.Next(&tag, &ok);  // what it was to fill is still there
  queue_.Shutdown();
  while (queue_.Next(&tag, &ok)) {
  }
}

ConsoleCall::Event ConsoleCall::Wait(absl::Duration patience) {
  const auto deadline = absl::ToChronoTime(absl::Now() + patience);
  while (step_ != Step::kOver) {
    if (!asked_) Ask(step_);
    void* tag = nullptr;
    bool ok = false;
    if (queue_.AsyncNext(&tag, &ok, deadline) == grpc::CompletionQueue::TIMEOUT) return Event::kNothing;
    asked_ = false;
    const Event event = Happened(ok);
    if (event != Event::kNothing) return event;
  }
  return Event::kEnded;
}

// Moves on to the next step. kNothing: there is no more to tell than that.
ConsoleCall::Event ConsoleCall::Happened(bool ok) {
  if (!ok && step_ != Step::kFinish) {  // the call is over, and Finish says why
    step_ = Step::kFinish;
    return Event::kNothing;
  }
  switch (step_) {
    case Step::kStart:
      step_ = Step::kWrite;
      return Event::kNothing;
    case Step::kWrite:
      step_ = Step::kHeaders;
      return Event::kNothing;
    case Step::kHeaders:
      step_ = Step::kRead;
      return Event::kTaken;
    case Step::kRead: {
      const std::unique_ptr<Message> response = NewMessage(*method_.output_type());
      grpc::ProtoBufferReader reader(&response_);
      EBB_CHECK(response->ParseFromZeroCopyStream(&reader));  // this server wrote it
      message_ = ToJson(*response);
      return Event::kMessage;
    }
    case Step::kFinish:
    case Step::kOver:
      break;
  }
  step_ = Step::kOver;
  return Event::kEnded;
}

void ConsoleCall::Ask(Step step) {
  asked_ = true;
  switch (step) {
    case Step::kStart:
      return stream_->StartCall(this);
    case Step::kWrite: {
      const grpc::Slice slice(request_);
      return stream_->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), this);
    }
    case Step::kHeaders:
      return stream_->ReadInitialMetadata(this);
    case Step::kRead:
      response_.Clear();
      return stream_->Read(&response_, this);
    case Step::kFinish:
      return stream_->Finish(&status_, this);
    case Step::kOver:
      break;
  }
  EBB_CHECK(false);
}

std::string ToJson(const Message& message) {
  std::string json;
  const auto printed = google::protobuf::util::MessageToJsonString(message, &json);
  EBB_CHECK(printed.ok());
  return json;
}

std::string ErrorToJson(const grpc::Status& status) {
  google::rpc::Status error;
  if (!error.ParseFromString(status.error_details())) error.Clear();
  error.set_code(status.error_code());
  error.set_message(status.error_message());
  return ToJson(error);
}

}  // namespace ebb
