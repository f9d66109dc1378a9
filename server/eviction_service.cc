#include "server/eviction_service.h"

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/convert.h"
#include "server/plan_eviction.h"
#include "server/reply.h"
#include "server/set_all_policies.h"
#include "server/watch_stream.h"

namespace ebb {
namespace {

constexpr char kSetPolicy[] = "EvictionService/SetPolicy";
constexpr uint32_t kStrideMax = 1 << 20;
constexpr int64_t kEntriesMax = 1 << 17;  // of a description: 2 MiB, half of what a client takes by default
constexpr int64_t kVictimsMax = 1 << 19;  // likewise

absl::StatusOr<std::optional<int32_t>> IndexFrom(const std::string& field, std::optional<uint32_t> index,
                                                 int32_t count) {
  if (!index) return std::optional<int32_t>();
  if (*index >= static_cast<uint32_t>(count)) {
    return RefuseField("OUT_OF_RANGE", field, absl::StrFormat("%d is not in [0, %d]", *index, count - 1));
  }
  return std::optional(static_cast<int32_t>(*index));
}

absl::Status ModelOnlyWithoutSession() {
  return RefuseField("ONLY_WITHOUT_SESSION", "model", "the session has its own; leave it out");
}

absl::Status FillDescription(const CacheDescription& cache, int32_t stride, v1::DescribeCacheResponse& response) {
  int64_t slots = 0;
  for (const LaneReport& lane : cache.lanes) slots += static_cast<int64_t>(lane.slots.size());
  if (slots / stride > kEntriesMax) {
    return RefuseField("ANSWER_TOO_LARGE", "stride",
                       absl::StrFormat("%d slots are too many for one answer; use at least %d, or one layer or head",
                                       slots, slots / kEntriesMax + 1));
  }
  response.set_capacity(static_cast<uint32_t>(cache.capacity));
  response.set_session_tokens(static_cast<uint64_t>(cache.session_tokens));
  response.set_generation(cache.generation);
  for (const LaneReport& lane : cache.lanes) *response.add_lanes() = LaneProto(lane, stride);
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* EvictionService::SetPolicy(grpc::CallbackServerContext* context,
                                                     const v1::SetPolicyRequest* request,
                                                     v1::SetPolicyResponse* response) {
  if (request->all_sessions()) return SetAllPolicies(*context, *request, *response);
  using Order = absl::AnyInvocable<void(Dispatcher&, Asker<PolicyOutcome>)>;
  return Undertake<PolicyOutcome>(
      parts_, kSetPolicy, *context,
      [&](const std::string& tenant) -> absl::StatusOr<OfModel<Order>> {
        EBB_TRY(CheckSize(parts_, *request));
        EBB_ASSIGN(const std::string id, SessionIdFrom(request->session(), "session"));
        if (!request->model().empty()) return ModelOnlyWithoutSession();
        EBB_ASSIGN(ModelLease model, parts_.models.Of(tenant, id));
        EBB_ASSIGN(PolicyRequest change, PolicyRequestFrom(*request, LimitsOf(model->worker().model())));
        std::optional<uint64_t> expected;
        if (request->has_expected_generation()) expected = request->expected_generation();
        return OfModel<Order>{
            std::move(model),
            [tenant, id, expected, change = std::move(change)](Dispatcher& dispatcher, Asker<PolicyOutcome> asker) {
              dispatcher.SetPolicy(tenant, id, expected, change, std::move(asker));
            },
            id};
      },
      [response, dry_run = request->dry_run()](const PolicyOutcome& outcome, const ServedModel& /*model*/) {
        *response->add_changes() = PolicyChangeProto(outcome, dry_run);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* EvictionService::SetAllPolicies(grpc::CallbackServerContext& context,
                                                          const v1::SetPolicyRequest& request,
                                                          v1::SetPolicyResponse& response) {
  Rpc rpc(parts_, kSetPolicy, context);
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  const auto change = [&]() -> absl::StatusOr<OfModel<PolicyRequest>> {
    EBB_TRY(rpc.tenant().status());
    EBB_TRY(CheckSize(parts_, request));
    if (request.has_expected_generation()) {
      return RefuseField("ONLY_WITH_SESSION", "expected_generation", "sessions have their own; leave it out");
    }
    EBB_ASSIGN(ModelLease model, parts_.models.Find(request.model()));
    EBB_ASSIGN(PolicyRequest made, PolicyRequestFrom(request, LimitsOf(model->worker().model())));
    return OfModel<PolicyRequest>{std::move(model), std::move(made)};
  }();
  if (!change.ok()) {
    reactor->Finish(rpc.Finish(change.status()));
    return reactor;
  }
  rpc.About({}, change->model->name());
  ebb::SetAllPolicies(
      change->model->worker(), *rpc.tenant(), change->question, [&context] { return context.IsCancelled(); }, response,
      [rpc, reactor, model = change->model](const absl::Status& status) mutable {
        reactor->Finish(rpc.Finish(status));
      });
  return reactor;
}

grpc::ServerUnaryReactor* EvictionService::Evict(grpc::CallbackServerContext* context, const v1::EvictRequest* request,
                                                 v1::EvictResponse* response) {
  using Order = absl::AnyInvocable<void(Dispatcher&, Asker<EvictOutcome>)>;
  const bool with_victims = request->dry_run() || request->list_victims();
  return Undertake<EvictOutcome>(
      parts_, "EvictionService/Evict", *context,
      [&](const std::string& tenant) -> absl::StatusOr<OfModel<Order>> {
        EBB_TRY(CheckSize(parts_, *request));
        EBB_ASSIGN(const std::string id, SessionIdFrom(request->session(), "session"));
        EBB_ASSIGN(EvictRequest evict, EvictFrom(*request));
        std::optional<uint64_t> expected;
        if (request->has_expected_generation()) expected = request->expected_generation();
        // Who would leave, if they are too many to be listed, is refused before anybody leaves.
        const int64_t victims_max = with_victims ? kVictimsMax : std::numeric_limits<int64_t>::max();
        EBB_ASSIGN(ModelLease model, parts_.models.Of(tenant, id));
        return OfModel<Order>{std::move(model),
                              [=](Dispatcher& dispatcher, Asker<EvictOutcome> asker) {
                                dispatcher.Evict(tenant, id, expected, evict, victims_max, std::move(asker));
                              },
                              id};
      },
      [response, with_victims](const EvictOutcome& outcome, const ServedModel& /*model*/) {
        *response = EvictProto(outcome, with_victims);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* EvictionService::DescribeCache(grpc::CallbackServerContext* context,
                                                         const v1::DescribeCacheRequest* request,
                                                         v1::DescribeCacheResponse* response) {
  using Order = absl::AnyInvocable<void(Dispatcher&, Asker<CacheDescription>)>;
  const uint32_t stride = request->has_stride() ? request->stride() : 1;
  return Undertake<CacheDescription>(
      parts_, "EvictionService/DescribeCache", *context,
      [&](const std::string& tenant) -> absl::StatusOr<OfModel<Order>> {
        EBB_ASSIGN(const std::string id, SessionIdFrom(request->session(), "session"));
        EBB_ASSIGN(ModelLease model, parts_.models.Of(tenant, id));
        const ModelConfig& shape = model->worker().model();
        EBB_ASSIGN(
            const auto layer,
            IndexFrom("layer", request->has_layer() ? std::optional(request->layer()) : std::nullopt, shape.layers));
        EBB_ASSIGN(
            const auto head,
            IndexFrom("head", request->has_head() ? std::optional(request->head()) : std::nullopt, shape.kv_heads));
        if (stride < 1 || stride > kStrideMax) {
          return RefuseField("OUT_OF_RANGE", "stride", absl::StrFormat("%d is not in [1, %d]", stride, kStrideMax));
        }
        return OfModel<Order>{std::move(model),
                              [tenant, id, layer, head](Dispatcher& dispatcher, Asker<CacheDescription> asker) {
                                dispatcher.Describe(tenant, id, layer, head, std::move(asker));
                              },
                              id};
      },
      [response, stride](const CacheDescription& cache, const ServedModel& model) {
        response->set_layers(static_cast<uint32_t>(model.worker().model().layers));
        response->set_heads(static_cast<uint32_t>(model.worker().model().kv_heads));
        return FillDescription(cache, static_cast<int32_t>(stride), *response);
      });
}

grpc::ServerWriteReactor<v1::WatchEvictionsResponse>* EvictionService::WatchEvictions(
    grpc::CallbackServerContext* context, const v1::WatchEvictionsRequest* request) {
  auto* stream = new WatchStream(parts_, *context);
  const auto watch = [&]() -> absl::StatusOr<OfModel<WatchRequest>> {
    WatchRequest of = {.list_victims = request->list_victims()};
    EBB_ASSIGN(of.tenant, stream->rpc().tenant());
    if (!request->session().empty()) {
      EBB_ASSIGN(of.session, SessionIdFrom(request->session(), "session"));
    }
    const uint32_t every = request->has_every() ? request->every() : 1;
    if (every < 1 || every > kStrideMax) {
      return RefuseField("OUT_OF_RANGE", "every", absl::StrFormat("%d is not in [1, %d]", every, kStrideMax));
    }
    of.every = static_cast<int32_t>(every);
    if (!of.session.empty()) {
      if (!request->model().empty()) return ModelOnlyWithoutSession();
      EBB_ASSIGN(ModelLease model, parts_.models.Of(of.tenant, of.session));
      return OfModel<WatchRequest>{std::move(model), std::move(of)};
    }
    EBB_ASSIGN(ModelLease model, parts_.models.Find(request->model()));
    return OfModel<WatchRequest>{std::move(model), std::move(of)};
  }();
  stream->Start(watch);
  return stream;
}

grpc::ServerUnaryReactor* EvictionService::PlanEviction(grpc::CallbackServerContext* context,
                                                        const v1::PlanEvictionRequest* request,
                                                        v1::PlanEvictionResponse* response) {
  Rpc rpc(parts_, "EvictionService/PlanEviction", *context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!rpc.tenant().ok()) {
    reactor->Finish(rpc.Finish(rpc.tenant().status()));
    return reactor;
  }
  Planner::Task task = [rpc, reactor, context, request, response]() mutable {
    reactor->Finish(rpc.Finish(ebb::PlanEviction(
        *request, [&] { return context->IsCancelled(); }, *response)));
  };
  if (!planner_.Offer(std::move(task))) reactor->Finish(rpc.Finish(Planner::QueueFull()));
  return reactor;
}

}  // namespace ebb
