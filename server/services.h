// The services of ebb.v1, as protobuf describes them: the one list that the server and its tests go by, so that a new
// one is closed, limited, measured and tried like the others.

#ifndef EBB_SERVER_SERVICES_H_
#define EBB_SERVER_SERVICES_H_

#include <google/protobuf/descriptor.h>

#include <vector>

namespace ebb {

std::vector<const google::protobuf::ServiceDescriptor*> AllServices();

}  // namespace ebb

#endif  // EBB_SERVER_SERVICES_H_
