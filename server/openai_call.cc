#include "server/openai_call.h"

#include "absl/time/clock.h"

namespace ebb {

OpenAiCall::OpenAiCall(v1::InferenceService::Stub& stub, const v1::GenerateRequest& request,
                       const CallMetadata& metadata) {
  for (const auto& [key, value] : metadata) context_.AddMetadata(key, value);
  reader_ = stub.PrepareAsyncGenerate(&context_, request, &queue_);
  reader_->StartCall(this);
}

OpenAiCall::~OpenAiCall() {
  context_.TryCancel();
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {  // what it was to fill is still there
  }
}

OpenAiCall::Event OpenAiCall::Wait(absl::Duration patience) {
  const auto deadline = absl::ToChronoTime(absl::Now() + patience);
  while (step_ != Step::kOver) {
    if (!asked_ && step_ == Step::kRead) reader_->Read(&message_, this);
    if (!asked_ && step_ == Step::kFinish) reader_->Finish(&status_, this);
    asked_ = true;
    void* tag = nullptr;
    bool ok = false;
    if (queue_.AsyncNext(&tag, &ok, deadline) == grpc::CompletionQueue::TIMEOUT) return Event::kNothing;
    asked_ = false;
    if (step_ == Step::kFinish) {
      step_ = Step::kOver;
    } else if (!ok) {  // the call is over, and Finish says why
      step_ = Step::kFinish;
    } else if (step_ == Step::kStart) {
      step_ = Step::kRead;
    } else {
      return Event::kMessage;
    }
  }
  return Event::kEnded;
}

}  // namespace ebb
