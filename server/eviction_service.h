// ebb.v1.EvictionService: check, convert, ask the worker between two steps; plans are a thread of their own.

#ifndef EBB_SERVER_EVICTION_SERVICE_H_
#define EBB_SERVER_EVICTION_SERVICE_H_

#include "ebb/v1/eviction.grpc.pb.h"
#include "server/planner.h"
#include "server/rpc.h"

namespace ebb {

class EvictionService final : public v1::EvictionService::CallbackService {
 public:
  explicit EvictionService(const ServiceParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* SetPolicy(grpc::CallbackServerContext* context, const v1::SetPolicyRequest* request,
                                      v1::SetPolicyResponse* response) override;
  grpc::ServerUnaryReactor* Evict(grpc::CallbackServerContext* context, const v1::EvictRequest* request,
                                  v1::EvictResponse* response) override;
  grpc::ServerUnaryReactor* DescribeCache(grpc::CallbackServerContext* context, const v1::DescribeCacheRequest* request,
                                          v1::DescribeCacheResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchEvictionsResponse>* WatchEvictions(
      grpc::CallbackServerContext* context, const v1::WatchEvictionsRequest* request) override;
  grpc::ServerUnaryReactor* PlanEviction(grpc::CallbackServerContext* context, const v1::PlanEvictionRequest* request,
                                         v1::PlanEvictionResponse* response) override;

 private:
  grpc::ServerUnaryReactor* SetAllPolicies(grpc::CallbackServerContext& context, const v1::SetPolicyRequest& request,
                                           v1::SetPolicyResponse& response);

  const ServiceParts& parts_;
  Planner planner_;
};

}  // namespace ebb

#endif  // EBB_SERVER_EVICTION_SERVICE_H_
