// One RPC from arrival to end: who calls, until when, what it is answered; one access line and its metrics.
//
// Unary calls come in two kinds: what a callback can answer at once (Reply), and what the worker is asked (Ask). Both
// check and convert the request on gRPC's thread, so that the worker sees only what is in range.

#ifndef EBB_SERVER_RPC_H_
#define EBB_SERVER_RPC_H_

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "policies/status.h"
#include "server/call.h"
#include "server/clock.h"
#include "server/dispatcher.h"
#include "server/identity.h"
#include "server/metrics.h"
#include "server/models.h"
#include "server/open_streams.h"
#include "server/reload.h"
#include "server/store.h"
#include "server/takeover.h"
#include "server/tenant_settings.h"
#include "server/tenants.h"
#include "server/trace_context.h"

namespace ebb {

// What the services share. All of it outlives them.
struct ServiceParts {
  Models& models;
  Metrics& metrics;  // of the main model and of the server
  OpenStreams& streams;
  const Identity& identity;
  Clock clock = {};                     // the models', too
  size_t stream_buffer = 64;            // messages a stream may hold back
  int64_t request_bytes_max = 4 << 20;  // of all requests but PlanEviction's
  Store* store = nullptr;               // of all models' snapshots; null: none are kept
  Takeover* takeover = nullptr;         // null: no other server has sessions of these clients
  const CurrentTenants* tenants = nullptr;
  TenantSettings* tenant_settings = nullptr;  // never null where services are
  Reloader* reloader = nullptr;               // likewise
  Experiments* experiments = nullptr;         // never null where services are
};

// The tenant's limits, now.
TenantLimits LimitsOf(const ServiceParts& parts, const std::string& tenant);

// CANCELLED CALL_CANCELLED when whoever asked is gone, or no longer waits: nothing more is to be done for them. Any
// thread, until the call is finished.
absl::Status CheckWaits(const grpc::CallbackServerContext& context);

// RESOURCE_EXHAUSTED REQUEST_TOO_LARGE above ServiceParts.request_bytes_max. gRPC has one limit for all requests, which
// PlanEviction's are let through, so every other method that takes lists or texts asks this before anything else.
absl::Status CheckSize(const ServiceParts& parts, const google::protobuf::Message& request);

class Rpc {
 public:
  // `method` is a name of AllMethods().
  Rpc(const ServiceParts& parts, std::string_view method, const grpc::CallbackServerContext& context);

  // Of the caller, once it is known and may call the method; else the refusal, of Identity::Of.
  const absl::StatusOr<std::string>& tenant() const { return tenant_; }
  std::string method_name() const;  // without its service
  absl::Time received() const { return received_; }
  absl::Time deadline() const { return deadline_; }

  // For the access line: which session it is about, by its id, and which model. Either may be empty.
  void About(std::string_view session, std::string_view model);
  // Likewise: what ran for it. Adds up.
  void Ran(const CallUsage& usage);

  // The call is over: logs and counts it; a refusal carries the caller's trace id. Once.
  grpc::Status Finish(const absl::Status& status);

 private:
  // What is not here may be at another server.
  absl::Status SeekElsewhere(const absl::Status& status) const;

  const ServiceParts& parts_;
  const std::string_view method_;
  absl::StatusOr<std::string> tenant_;
  std::string session_ = {};  // as HashForLog
  std::string model_ = {};
  int64_t tokens_in_ = 0, tokens_out_ = 0;
  TraceContext trace_ = {};
  absl::Time received_ = {};
  absl::Time deadline_ = absl::InfiniteFuture();
};

// Answers at once: `answer(rpc)` checks the request, fills the response and says how it went.
template <typename Answer>
grpc::ServerUnaryReactor* Reply(const ServiceParts& parts, std::string_view method,
                                grpc::CallbackServerContext& context, const Answer& answer) {
  Rpc rpc(parts, method, context);
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  const absl::Status status = rpc.tenant().ok() ? answer(rpc) : rpc.tenant().status();
  reactor->Finish(rpc.Finish(status));
  return reactor;
}

// What is to be asked, and of which model.
template <typename Question>
struct OfModel {
  ModelLease model = {};
  Question question = {};
  std::string session = {};  // id of the one that it is about; empty: of none, or the question says it
};

using ModelCall = OfModel<CallRequest>;

// What `prepare` makes of the request for its tenant, or why it is refused.
template <typename Prepared, typename Prepare>
absl::StatusOr<Prepared> PrepareFor(const Rpc& rpc, const Prepare& prepare) {
  EBB_ASSIGN(const std::string tenant, rpc.tenant());
  return prepare(tenant);
}

// What was asked of a model is over.
template <typename Result, typename Fill>
grpc::Status FinishAsked(Rpc& rpc, absl::StatusOr<Result>& result, Fill& fill, const ServedModel& model) {
  if (!result.ok()) return rpc.Finish(result.status());
  if constexpr (requires { result->usage; }) rpc.Ran(result->usage);
  return rpc.Finish(fill(*result, model));
}

// Asks a model's worker. `prepare(tenant)`, called here and now, checks the request and returns OfModel of the
// question, a callable (Dispatcher&) -> StatusOr<Result>; `fill(result, model)`, called on the worker's thread, fills
// the response and may still refuse. `effort` as Worker::Ask.
template <typename Result, typename Prepare, typename Fill>
grpc::ServerUnaryReactor* Ask(const ServiceParts& parts, std::string_view method, grpc::CallbackServerContext& context,
                              const Prepare& prepare, Fill fill, Effort effort = Effort::kShort) {
  using Asked = OfModel<absl::AnyInvocable<absl::StatusOr<Result>(Dispatcher&)>>;
  Rpc rpc(parts, method, context);
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  absl::StatusOr<Asked> asked = PrepareFor<Asked>(rpc, prepare);
  if (!asked.ok()) {
    reactor->Finish(rpc.Finish(asked.status()));
    return reactor;
  }
  rpc.About(asked->session, asked->model->name());
  Worker& worker = asked->model->worker();
  worker.Ask<Result>(
      std::move(asked->question),
      [rpc, reactor, fill = std::move(fill), model = asked->model](absl::StatusOr<Result> result) mutable {
        reactor->Finish(FinishAsked(rpc, result, fill, *model));
      },
      effort);
  return reactor;
}

// The same for work on a session's cache: the question is a callable (Dispatcher&, Asker<Result>), which hands the
// asker on. A caller that is gone by then ends the work.
template <typename Result, typename Prepare, typename Fill>
grpc::ServerUnaryReactor* Undertake(const ServiceParts& parts, std::string_view method,
                                    grpc::CallbackServerContext& context, const Prepare& prepare, Fill fill) {
  using Asked = OfModel<absl::AnyInvocable<void(Dispatcher&, Asker<Result>)>>;
  Rpc rpc(parts, method, context);
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  absl::StatusOr<Asked> asked = PrepareFor<Asked>(rpc, prepare);
  if (!asked.ok()) {
    reactor->Finish(rpc.Finish(asked.status()));
    return reactor;
  }
  rpc.About(asked->session, asked->model->name());
  Worker& worker = asked->model->worker();
  worker.Undertake<Result>(
      std::move(asked->question),
      {.answer =
           [rpc, reactor, fill = std::move(fill), model = asked->model](absl::StatusOr<Result> result) mutable {
             reactor->Finish(FinishAsked(rpc, result, fill, *model));
           },
       .is_gone = [&context] { return context.IsCancelled(); }});
  return reactor;
}

// What a model answered.
template <typename Result>
struct ModelAnswer {
  ModelLease model = {};
  Result result = {};
};

// Asks every model that is loaded, one after another.
template <typename Result>
class EachModel {
 public:
  using Question = std::function<absl::StatusOr<Result>(Dispatcher&)>;
  using Done = absl::AnyInvocable<void(absl::StatusOr<std::vector<ModelAnswer<Result>>>)>;

  // `done` gets all answers, by a worker's thread, or the first refusal.
  static void Ask(std::vector<ModelLease> models, Question question, Done done) {
    (new EachModel(std::move(models), std::move(question), std::move(done)))->Next();
  }

 private:
  EachModel(std::vector<ModelLease> models, Question question, Done done)
      : models_(std::move(models)), question_(std::move(question)), done_(std::move(done)) {}

  void Next() {
    if (answers_.size() == models_.size()) {
      done_(std::move(answers_));
      delete this;
      return;
    }
    const ModelLease& model = models_[answers_.size()];
    model->worker().template Ask<Result>([this](Dispatcher& dispatcher) { return question_(dispatcher); },
                                         [this, &model](absl::StatusOr<Result> result) {
                                           if (!result.ok()) {
                                             done_(result.status());
                                             delete this;
                                             return;
                                           }
                                           answers_.push_back({model, *std::move(result)});
                                           Next();
                                         });
  }

  const std::vector<ModelLease> models_;
  const Question question_;
  Done done_;
  std::vector<ModelAnswer<Result>> answers_ = {};
};

// The same for an RPC: `prepare(tenant)` returns the question, and `fill(answers)` gets one for each model, the main
// model's first.
template <typename Result, typename Prepare, typename Fill>
grpc::ServerUnaryReactor* AskAll(const ServiceParts& parts, std::string_view method,
                                 grpc::CallbackServerContext& context, const Prepare& prepare, Fill fill) {
  using Question = typename EachModel<Result>::Question;
  Rpc rpc(parts, method, context);
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  absl::StatusOr<Question> question = PrepareFor<Question>(rpc, prepare);
  if (!question.ok()) {
    reactor->Finish(rpc.Finish(question.status()));
    return reactor;
  }
  EachModel<Result>::Ask(parts.models.Loaded(), *std::move(question),
                         [rpc, reactor, fill = std::move(fill)](auto answers) mutable {
                           const absl::Status status = answers.ok() ? fill(*answers) : answers.status();
                           reactor->Finish(rpc.Finish(status));
                         });
  return reactor;
}

}  // namespace ebb

#endif  // EBB_SERVER_RPC_H_
