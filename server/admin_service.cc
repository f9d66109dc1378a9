#include "server/admin_service.h"

#include "policies/status.h"
#include "server/describe.h"
#include "server/process_stats.h"
#include "server/proto_time.h"
#include "server/reply.h"
#include "server/version.h"

namespace ebb {

namespace {

v1::ModelStatus StatusProto(const ServedModel& served, const WorkTotals& totals) {
  const Worker& worker = served.worker();
  const ModelConfig& config = worker.model();
  v1::ModelStatus model;
  model.set_name(served.name());
  model.set_architecture(config.architecture);
  model.set_layers(static_cast<uint32_t>(config.layers));
  model.set_heads(static_cast<uint32_t>(config.heads));
  model.set_kv_heads(static_cast<uint32_t>(config.kv_heads));
  model.set_head_dim(static_cast<uint32_t>(config.head_dim));
  model.set_vocabulary(static_cast<uint32_t>(config.vocab));
  model.set_context(static_cast<uint32_t>(config.context));
  model.set_weight_bytes(static_cast<uint64_t>(totals.memory.weight_bytes));
  model.set_fingerprint(worker.fingerprint());
  model.set_gpu_products(worker.gpu_products());
  model.set_threads(static_cast<uint32_t>(worker.threads()));
  model.set_draft_model(served.draft_name());
  return model;
}

v1::CacheStatus CacheProto(const WorkTotals& totals) {
  v1::CacheStatus cache;
  cache.set_page_bytes(static_cast<uint64_t>(totals.memory.page_bytes));
  cache.set_pages_total(static_cast<uint64_t>(totals.memory.pages_total));
  cache.set_pages_reserved(static_cast<uint64_t>(totals.load.pages_reserved));
  cache.set_used_bytes(static_cast<uint64_t>(totals.used_bytes));
  return cache;
}

v1::WorkStatus WorkProto(const WorkTotals& totals) {
  v1::WorkStatus work;
  work.set_sessions(static_cast<uint32_t>(totals.load.sessions));
  work.set_requests_running(static_cast<uint32_t>(totals.load.requests - totals.load.requests_waiting));
  work.set_requests_queued(static_cast<uint32_t>(totals.load.requests_waiting));
  work.set_steps(static_cast<uint64_t>(totals.steps));
  work.set_prompt_tokens(static_cast<uint64_t>(totals.prompt_tokens));
  work.set_completion_tokens(static_cast<uint64_t>(totals.completion_tokens));
  work.set_evicted_tokens(static_cast<uint64_t>(totals.evicted_tokens));
  work.set_resident_bytes(static_cast<uint64_t>(ReadProcessStats().resident_bytes));
  return work;
}

v1::ModelState StateProto(ModelState state) {
  switch (state) {
    case ModelState::kLoading:
      return v1::MODEL_STATE_LOADING;
    case ModelState::kServing:
      return v1::MODEL_STATE_SERVING;
    case ModelState::kUnloading:
      return v1::MODEL_STATE_UNLOADING;
    case ModelState::kFailed:
      return v1::MODEL_STATE_FAILED;
  }
  return v1::MODEL_STATE_UNSPECIFIED;
}

void FillReloaded(const Reloaded& reloaded, v1::ReloadConfigResponse& response) {
  response.mutable_files()->Assign(reloaded.paths.begin(), reloaded.paths.end());
  for (const ebb::ConfigChange& key : reloaded.keys) {
    v1::ConfigChange& change = *response.add_changes();
    change.set_key(key.path);
    change.set_before(key.before);
    change.set_after(key.after);
  }
}

}  // namespace

grpc::ServerUnaryReactor* AdminService::GetStatus(grpc::CallbackServerContext* context,
                                                  const v1::GetStatusRequest* /*request*/,
                                                  v1::GetStatusResponse* response) {
  using Question = absl::AnyInvocable<absl::StatusOr<WorkTotals>(Dispatcher&)>;
  return Ask<WorkTotals>(
      parts_, "AdminService/GetStatus", *context,
      [&](const std::string& /*tenant*/) -> absl::StatusOr<OfModel<Question>> {
        ModelLease model = parts_.models.main_lease();
        return OfModel<Question>{
            std::move(model), [](Dispatcher& dispatcher) -> absl::StatusOr<WorkTotals> { return dispatcher.Totals(); }};
      },
      [this, response](const WorkTotals& totals, const ServedModel& model) {
        response->set_version(std::string(Version()));
        *response->mutable_uptime() = DurationProto(parts_.clock.Now() - started_);
        response->set_state(totals.load.draining ? v1::SERVER_STATE_DRAINING : v1::SERVER_STATE_SERVING);
        *response->mutable_model() = StatusProto(model, totals);
        *response->mutable_cache() = CacheProto(totals);
        *response->mutable_work() = WorkProto(totals);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* AdminService::ListModels(grpc::CallbackServerContext* context,
                                                   const v1::ListModelsRequest* /*request*/,
                                                   v1::ListModelsResponse* response) {
  using Question = EachModel<WorkTotals>::Question;
  return AskAll<WorkTotals>(
      parts_, "AdminService/ListModels", *context,
      [](const std::string& /*tenant*/) -> absl::StatusOr<Question> {
        return Question([](Dispatcher& dispatcher) -> absl::StatusOr<WorkTotals> { return dispatcher.Totals(); });
      },
      [this, response](const std::vector<ModelAnswer<WorkTotals>>& answers) {
        for (const ModelView& view : parts_.models.List()) {
          v1::Model& model = *response->add_models();
          model.set_name(view.name);
          model.set_state(StateProto(view.state));
          model.set_problem(view.problem);
          for (const ModelAnswer<WorkTotals>& answer : answers) {
            if (answer.model != view.model) continue;
            *model.mutable_status() = StatusProto(*answer.model, answer.result);
            *model.mutable_cache() = CacheProto(answer.result);
            *model.mutable_work() = WorkProto(answer.result);
          }
        }
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* AdminService::ListPolicies(grpc::CallbackServerContext* context,
                                                     const v1::ListPoliciesRequest* request,
                                                     v1::ListPoliciesResponse* response) {
  return Reply(parts_, "AdminService/ListPolicies", *context, [&](Rpc& rpc) -> absl::Status {
    EBB_ASSIGN(const ModelLease of, parts_.models.Find(request->model()));
    rpc.About({}, of->name());
    const ModelConfig& model = of->worker().model();
    EBB_ASSIGN(*response,
               DescribePolicies(LimitsOf(model), {.query_heads = model.group(), .head_dim = model.head_dim}));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::ReloadConfig(grpc::CallbackServerContext* context,
                                                     const v1::ReloadConfigRequest* /*request*/,
                                                     v1::ReloadConfigResponse* response) {
  Rpc rpc(parts_, "AdminService/ReloadConfig", *context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!rpc.tenant().ok()) {
    reactor->Finish(rpc.Finish(rpc.tenant().status()));
    return reactor;
  }
  parts_.reloader->Ask([rpc, reactor, response](const absl::StatusOr<Reloaded>& reloaded) mutable {
    if (reloaded.ok()) FillReloaded(*reloaded, *response);
    reactor->Finish(rpc.Finish(reloaded.status()));
  });
  return reactor;
}

}  // namespace ebb
