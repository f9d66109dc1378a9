// The methods of AdminService that start, change and tell of experiments.

#include <string>
#include <utility>

#include "policies/status.h"
#include "server/admin_service.h"
#include "server/convert_experiment.h"
#include "server/export_stream.h"
#include "server/start_experiment.h"

namespace ebb {

grpc::ServerUnaryReactor* AdminService::StartExperiment(grpc::CallbackServerContext* context,
                                                        const v1::StartExperimentRequest* request,
                                                        v1::Experiment* response) {
  using Question = absl::AnyInvocable<absl::StatusOr<ExperimentView>(Dispatcher&)>;
  return Ask<ExperimentView>(
      parts_, "AdminService/StartExperiment", *context,
      [&](const std::string& /*tenant*/) -> absl::StatusOr<OfModel<Question>> {
        EBB_TRY(CheckSize(parts_, *request));
        ModelLease model = parts_.models.main_lease();
        EBB_ASSIGN(ExperimentSpec spec, ExperimentFrom(request->experiment(), LimitsOf(model->worker().model())));
        return OfModel<Question>{std::move(model),
                                 [spec = std::move(spec), experiments = parts_.experiments](Dispatcher& dispatcher) {
                                   return ebb::StartExperiment(dispatcher, *experiments, spec);
                                 }};
      },
      [response](const ExperimentView& view, const ServedModel& /*model*/) {
        *response = ExperimentProto(view);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* AdminService::StopExperiment(grpc::CallbackServerContext* context,
                                                       const v1::StopExperimentRequest* request,
                                                       v1::Experiment* response) {
  return Reply(parts_, "AdminService/StopExperiment", *context, [&](Rpc& /*rpc*/) -> absl::Status {
    EBB_ASSIGN(const std::string id, ExperimentIdFrom(request->name()));
    EBB_ASSIGN(const ExperimentView view, parts_.experiments->Stop(id, parts_.clock.Now()));
    *response = ExperimentProto(view);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::RampExperiment(grpc::CallbackServerContext* context,
                                                       const v1::RampExperimentRequest* request,
                                                       v1::Experiment* response) {
  return Reply(parts_, "AdminService/RampExperiment", *context, [&](Rpc& /*rpc*/) -> absl::Status {
    EBB_ASSIGN(const std::string id, ExperimentIdFrom(request->name()));
    EBB_ASSIGN(const double ramp, RampFrom(request->ramp(), "ramp"));
    EBB_ASSIGN(const ExperimentView view, parts_.experiments->Ramp(id, ramp));
    *response = ExperimentProto(view);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::GetExperiment(grpc::CallbackServerContext* context,
                                                      const v1::GetExperimentRequest* request,
                                                      v1::Experiment* response) {
  return Reply(parts_, "AdminService/GetExperiment", *context, [&](Rpc& /*rpc*/) -> absl::Status {
    EBB_ASSIGN(const std::string id, ExperimentIdFrom(request->name()));
    EBB_ASSIGN(const ExperimentView view, parts_.experiments->Get(id));
    *response = ExperimentProto(view);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::ListExperiments(grpc::CallbackServerContext* context,
                                                        const v1::ListExperimentsRequest* /*request*/,
                                                        v1::ListExperimentsResponse* response) {
  return Reply(parts_, "AdminService/ListExperiments", *context, [&](Rpc& /*rpc*/) -> absl::Status {
    for (const ExperimentView& view : parts_.experiments->List()) *response->add_experiments() = ExperimentProto(view);
    return absl::OkStatus();
  });
}

grpc::ServerWriteReactor<v1::ExperimentPart>* AdminService::ExportExperiment(
    grpc::CallbackServerContext* context, const v1::ExportExperimentRequest* request) {
  auto* stream = new ExportStream(parts_, *context);
  stream->Start(*request);
  return stream;
}

}  // namespace ebb
