#include "server/services.h"

#include "ebb/v1/admin.pb.h"
#include "ebb/v1/eviction.pb.h"
#include "ebb/v1/inference.pb.h"
#include "ebb/v1/session.pb.h"

namespace ebb {

std::vector<const google::protobuf::ServiceDescriptor*> AllServices() {
  std::vector<const google::protobuf::ServiceDescriptor*> services;
  // Any message of a file leads to the file.
  for (const auto* message : {v1::CreateSessionRequest::descriptor(), v1::PrefillRequest::descriptor(),
                              v1::EvictRequest::descriptor(), v1::GetStatusRequest::descriptor()}) {
    const google::protobuf::FileDescriptor& file = *message->file();
    for (int i = 0; i < file.service_count(); ++i) services.push_back(file.service(i));
  }
  return services;
}

}  // namespace ebb
