#include "tests/support/generic_call.h"

#include <grpcpp/generic/generic_stub.h>

#include <chrono>

#include "policies/check.h"

namespace ebb {

GenericAnswer CallGeneric(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                          const std::string& request, const std::string& tenant, size_t messages_max) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  if (!tenant.empty()) context.AddMetadata("x-ebb-tenant", tenant);
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    EBB_CHECK(queue.Next(&tag, &ok));
    return ok;
  };
  const auto call = stub.PrepareCall(&context, "/" + method, &queue);
  call->StartCall(nullptr);
  next();
  grpc::Slice slice(request);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
  next();
  call->ReadInitialMetadata(nullptr);
  next();
  GenericAnswer answer;
  bool more = true;
  while (answer.messages.size() < messages_max) {
    grpc::ByteBuffer message;
    call->Read(&message, nullptr);
    more = next();
    if (!more) break;
    grpc::Slice bytes;
    EBB_CHECK(message.DumpToSingleSlice(&bytes).ok());
    answer.messages.emplace_back(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
  }
  if (more) context.TryCancel();
  call->Finish(&answer.status, nullptr);
  next();
  return answer;
}

}  // namespace ebb
