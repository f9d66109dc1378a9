// ebb.v1.AdminService: the server about itself.

#ifndef EBB_SERVER_ADMIN_SERVICE_H_
#define EBB_SERVER_ADMIN_SERVICE_H_

#include "ebb/v1/admin.grpc.pb.h"
#include "server/rpc.h"

namespace ebb {

class AdminService final : public v1::AdminService::CallbackService {
 public:
  explicit AdminService(const ServiceParts& parts) : parts_(parts), started_(parts.clock.Now()) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context, const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context, const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* ListPolicies(grpc::CallbackServerContext* context, const v1::ListPoliciesRequest* request,
                                         v1::ListPoliciesResponse* response) override;
  grpc::ServerUnaryReactor* ReloadConfig(grpc::CallbackServerContext* context, const v1::ReloadConfigRequest* request,
                                         v1::ReloadConfigResponse* response) override;

  // admin_tenants.cc
  grpc::ServerUnaryReactor* ListTenants(grpc::CallbackServerContext* context, const v1::ListTenantsRequest* request,
                                        v1::ListTenantsResponse* response) override;
  grpc::ServerUnaryReactor* SetTenant(grpc::CallbackServerContext* context, const v1::SetTenantRequest* request,
                                      v1::Tenant* response) override;

  // admin_experiments.cc
  grpc::ServerUnaryReactor* StartExperiment(grpc::CallbackServerContext* context,
                                            const v1::StartExperimentRequest* request,
                                            v1::Experiment* response) override;
  grpc::ServerUnaryReactor* StopExperiment(grpc::CallbackServerContext* context,
                                           const v1::StopExperimentRequest* request, v1::Experiment* response) override;
  grpc::ServerUnaryReactor* RampExperiment(grpc::CallbackServerContext* context,
                                           const v1::RampExperimentRequest* request, v1::Experiment* response) override;
  grpc::ServerUnaryReactor* GetExperiment(grpc::CallbackServerContext* context, const v1::GetExperimentRequest* request,
                                          v1::Experiment* response) override;
  grpc::ServerUnaryReactor* ListExperiments(grpc::CallbackServerContext* context,
                                            const v1::ListExperimentsRequest* request,
                                            v1::ListExperimentsResponse* response) override;
  grpc::ServerWriteReactor<v1::ExperimentPart>* ExportExperiment(grpc::CallbackServerContext* context,
                                                                 const v1::ExportExperimentRequest* request) override;

 private:
  const ServiceParts& parts_;
  const absl::Time started_;
};

}  // namespace ebb

#endif  // EBB_SERVER_ADMIN_SERVICE_H_
