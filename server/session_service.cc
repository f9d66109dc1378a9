#include "server/session_service.h"

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/convert.h"
#include "server/reply.h"
#include "server/resource_name.h"
#include "server/tenant_policies.h"

namespace ebb {
namespace {

constexpr size_t kEndUserBytesMax = 256;
constexpr absl::Duration kTtlMax = absl::Hours(24 * 30);

absl::StatusOr<absl::Duration> TtlFrom(const google::protobuf::Duration& proto) {
  const absl::Duration ttl = absl::Seconds(proto.seconds()) + absl::Nanoseconds(proto.nanos());
  if (ttl < absl::Seconds(1) || ttl > kTtlMax) {
    return RefuseField("OUT_OF_RANGE", "ttl", absl::StrFormat("%s is not in [1s, 720h]", absl::FormatDuration(ttl)));
  }
  return ttl;
}

absl::StatusOr<SessionRequest> SessionFrom(const v1::CreateSessionRequest& proto, const std::string& tenant,
                                           const ServiceParts& parts, ServedModel& model) {
  const Worker& worker = model.worker();
  SessionRequest request = {.tenant = tenant, .id = proto.session_id(), .request_id = proto.request_id()};
  if (request.id.empty()) request.id = NewSessionId();
  EBB_TRY(CheckSessionId(request.id, "session_id"));
  if (proto.end_user().size() > kEndUserBytesMax) {
    return RefuseField("TOO_LONG", "end_user",
                       absl::StrFormat("%d bytes; at most %d", proto.end_user().size(), kEndUserBytesMax));
  }
  const bool placeable = !proto.has_policy() && &model == &parts.models.main();
  auto placed = !placeable ? std::nullopt : parts.experiments->Place(tenant, proto.end_user(), request.id);
  if (placed) {
    request.policy = std::move(placed->policy);
    request.assignment = std::move(placed->assignment);
  } else {
    EBB_ASSIGN(request.policy, PolicyFor(parts, model, tenant, proto.has_policy(), proto.policy()));
  }
  EBB_ASSIGN(request.sampling,
             SamplingFrom(proto.sampling(), {.seed = SeedFor(request.id)}, worker.tokenizer().size()));
  const auto block_size = proto.has_block_size() ? std::optional(proto.block_size()) : std::nullopt;
  EBB_ASSIGN(request.block_size, BlockSizeFrom(block_size, kDefaultBlockSize, worker.step_tokens_max()));
  if (proto.has_ttl()) {
    EBB_ASSIGN(request.ttl, TtlFrom(proto.ttl()));
  }
  EBB_TRY(CheckRequestId(request.request_id));
  return request;
}

absl::StatusOr<OfModel<ForkRequest>> ForkFrom(const v1::ForkSessionRequest& proto, const std::string& tenant,
                                              const ServiceParts& parts) {
  ForkRequest request = {.tenant = tenant,
                         .id = proto.session_id(),
                         .request_id = proto.request_id(),
                         .reserve_copies = proto.reserve_copies()};
  EBB_ASSIGN(request.session, SessionIdFrom(proto.session(), "session"));
  EBB_ASSIGN(ModelLease model, parts.models.Of(tenant, request.session));
  const Worker& worker = model->worker();
  if (proto.has_expected_generation()) request.expected_generation = proto.expected_generation();
  if (request.id.empty()) request.id = NewSessionId();
  EBB_TRY(CheckSessionId(request.id, "session_id"));
  if (proto.has_policy()) {
    v1::SetPolicyRequest change;
    *change.mutable_policy() = proto.policy();
    EBB_ASSIGN(request.policy, PolicyRequestFrom(change, LimitsOf(worker.model())));
  }
  EBB_ASSIGN(const SessionView view, worker.Look(tenant, request.session));
  request.made_for = view.id;
  SamplingOptions defaults = view.sampling;
  defaults.seed = SeedFor(request.id);
  EBB_ASSIGN(request.sampling, SamplingFrom(proto.sampling(), defaults, worker.tokenizer().size()));
  if (proto.has_ttl()) {
    EBB_ASSIGN(request.ttl, TtlFrom(proto.ttl()));
  }
  EBB_TRY(CheckRequestId(request.request_id));
  return OfModel<ForkRequest>{std::move(model), std::move(request)};
}

}  // namespace

grpc::ServerUnaryReactor* SessionService::CreateSession(grpc::CallbackServerContext* context,
                                                        const v1::CreateSessionRequest* request,
                                                        v1::Session* response) {
  using Question = absl::AnyInvocable<absl::StatusOr<SessionInfo>(Dispatcher&)>;
  return Ask<SessionInfo>(
      parts_, "SessionService/CreateSession", *context,
      [&](const std::string& tenant) -> absl::StatusOr<OfModel<Question>> {
        EBB_TRY(CheckSize(parts_, *request));
        EBB_ASSIGN(ModelLease model, parts_.models.Find(request->model()));
        EBB_ASSIGN(SessionRequest session, SessionFrom(*request, tenant, parts_, *model));
        return OfModel<Question>{std::move(model),
                                 [session, context](Dispatcher& dispatcher) -> absl::StatusOr<SessionInfo> {
                                   EBB_TRY(CheckWaits(*context));
                                   return dispatcher.Create(session);
                                 },
                                 session.id};
      },
      [response](const SessionInfo& info, const ServedModel& model) {
        *response = SessionProto(info, model.name());
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* SessionService::ForkSession(grpc::CallbackServerContext* context,
                                                      const v1::ForkSessionRequest* request, v1::Session* response) {
  using Question = absl::AnyInvocable<absl::StatusOr<SessionInfo>(Dispatcher&)>;
  return Ask<SessionInfo>(
      parts_, "SessionService/ForkSession", *context,
      [&](const std::string& tenant) -> absl::StatusOr<OfModel<Question>> {
        EBB_TRY(CheckSize(parts_, *request));
        EBB_ASSIGN(OfModel<ForkRequest> fork, ForkFrom(*request, tenant, parts_));
        const std::string id = fork.question.session;
        return OfModel<Question>{
            std::move(fork.model),
            [fork = std::move(fork.question), context](Dispatcher& dispatcher) -> absl::StatusOr<SessionInfo> {
              EBB_TRY(CheckWaits(*context));
              return dispatcher.Fork(fork);
            },
            id};
      },
      [response](const SessionInfo& info, const ServedModel& model) {
        *response = SessionProto(info, model.name());
        return absl::OkStatus();
      },
      // It comes after work on the session's cache; and another policy ranks the cache, as SetPolicy does.
      Effort::kLong);
}

grpc::ServerUnaryReactor* SessionService::GetSession(grpc::CallbackServerContext* context,
                                                     const v1::GetSessionRequest* request, v1::Session* response) {
  using Question = absl::AnyInvocable<absl::StatusOr<SessionInfo>(Dispatcher&)>;
  return Ask<SessionInfo>(
      parts_, "SessionService/GetSession", *context,
      [&](const std::string& tenant) -> absl::StatusOr<OfModel<Question>> {
        EBB_ASSIGN(const std::string id, SessionIdFrom(request->name(), "name"));
        EBB_ASSIGN(ModelLease model, parts_.models.Of(tenant, id));
        return OfModel<Question>{std::move(model),
                                 [tenant, id](Dispatcher& dispatcher) { return dispatcher.Get(tenant, id); }, id};
      },
      [response](const SessionInfo& info, const ServedModel& model) {
        *response = SessionProto(info, model.name());
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* SessionService::ListSessions(grpc::CallbackServerContext* context,
                                                       const v1::ListSessionsRequest* request,
                                                       v1::ListSessionsResponse* response) {
  using Infos = std::vector<SessionInfo>;
  using Question = EachModel<Infos>::Question;
  const absl::StatusOr<ListPage> page = PageFrom(request->page_size(), request->page_token(), "ListSessions");
  return AskAll<Infos>(
      parts_, "SessionService/ListSessions", *context,
      [&](const std::string& tenant) -> absl::StatusOr<Question> {
        EBB_TRY(page.status());
        return Question([tenant, page = *page](Dispatcher& dispatcher) -> absl::StatusOr<Infos> {
          return dispatcher.List(tenant, page.after, page.count + 1);  // one more tells whether there is another page
        });
      },
      [response, page](const std::vector<ModelAnswer<Infos>>& answers) {
        std::map<std::string_view, std::pair<const SessionInfo*, const ServedModel*>> by_id;
        for (const ModelAnswer<Infos>& answer : answers) {
          for (const SessionInfo& info : answer.result) by_id[info.request.id] = {&info, answer.model.get()};
        }
        for (const auto& [id, session] : by_id) {
          if (static_cast<size_t>(response->sessions_size()) == page->count) {
            const std::string& last = response->sessions(response->sessions_size() - 1).name();
            response->set_next_page_token(last.substr(last.find('/') + 1));
            break;
          }
          *response->add_sessions() = SessionProto(*session.first, session.second->name());
        }
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* SessionService::DeleteSession(grpc::CallbackServerContext* context,
                                                        const v1::DeleteSessionRequest* request,
                                                        v1::DeleteSessionResponse* response) {
  using Question = absl::AnyInvocable<absl::StatusOr<int64_t>(Dispatcher&)>;
  return Ask<int64_t>(
      parts_, "SessionService/DeleteSession", *context,
      [&](const std::string& tenant) -> absl::StatusOr<OfModel<Question>> {
        EBB_ASSIGN(const std::string id, SessionIdFrom(request->name(), "name"));
        std::optional<uint64_t> expected;
        if (request->has_expected_generation()) expected = request->expected_generation();
        EBB_ASSIGN(ModelLease model, parts_.models.Of(tenant, id));
        return OfModel<Question>{
            std::move(model),
            [tenant, id, expected](Dispatcher& dispatcher) { return dispatcher.Delete(tenant, id, expected); }, id};
      },
      [response](int64_t freed_bytes, const ServedModel& /*model*/) {
        response->set_freed_bytes(static_cast<uint64_t>(freed_bytes));
        return absl::OkStatus();
      });
}

}  // namespace ebb
