// Of every method a request that is taken, and the caller whose session and snapshot most of them name: what a test of
// all requests changes one field of.
//
//   RequestCaller caller(server.address(), "tenant");
//   grpc::Status status = caller.Call(method, GoodRequest(method)->SerializeAsString());
//   caller.Restore(method);

#ifndef EBB_TESTS_SUPPORT_GOOD_REQUESTS_H_
#define EBB_TESTS_SUPPORT_GOOD_REQUESTS_H_

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <memory>
#include <string>

#include "tests/support/request_mutations.h"
#include "tests/support/test_server.h"

namespace ebb {

// What the session holds, behind a begin token: of 64 tokens its policy keeps 24.
inline constexpr char kTale[] = "The frog jumped into the pond, and the old man sat by the fire.";

// "SessionService/GetSession"
std::string ShortName(const Method& method);

// Taken by a server that has a store, Accept's after a draft alone, ReloadConfig's where there are files, and
// RampExperiment's before StopExperiment's.
std::unique_ptr<google::protobuf::Message> GoodRequest(const Method& method);
// How many methods have one.
size_t GoodRequests();

// One tenant's view, with the session sessions/tale and the snapshot snapshots/kept of it.
class RequestCaller {
 public:
  RequestCaller(const std::string& address, std::string tenant);

  // Two messages of a stream are enough, and a watch has none to tell: then the call is cancelled, which without a
  // reason is this side's doing. `request` in bytes.
  grpc::Status Call(const Method& method, const std::string& request);
  // The same, waiting for a stream's first message or its end.
  grpc::Status CallToHear(const Method& method, const std::string& request);

  // As it was before a call that did something.
  void Restore(const Method& method);

  // Deletes everything of the tenant.
  void Leave();

  TestClient& client() { return client_; }

 private:
  grpc::Status CallFor(const Method& method, const std::string& request, size_t messages_max);
  void Prepare();

  const std::string tenant_;
  TestClient client_;
  std::string made_ = {};  // by the last call
};

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_GOOD_REQUESTS_H_
