#include "server/inference_service.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/text/utf8.h"
#include "policies/status.h"
#include "server/convert.h"
#include "server/convert_edit.h"
#include "server/convert_experiment.h"
#include "server/inference_streams.h"
#include "server/reply.h"
#include "server/resource_name.h"
#include "server/tenant_policies.h"
#include "server/unevicted_scorer.h"

namespace ebb {
namespace {

constexpr size_t kScoredTokensMax = 1 << 16;
constexpr uint32_t kAnswersMax = 16;

template <typename Request>
std::optional<uint32_t> BlockSizeOf(const Request& request) {
  return request.has_block_size() ? std::optional(request.block_size()) : std::nullopt;
}

// The calls of all answers but the first. INVALID_ARGUMENT OUT_OF_RANGE.
absl::StatusOr<std::vector<AnswerBranch>> BranchesFrom(const v1::GenerateRequest& request, Worker& worker) {
  const uint32_t answers = request.has_n() ? request.n() : 1;
  if (answers < 1 || answers > kAnswersMax) {
    return RefuseField("OUT_OF_RANGE", "n", absl::StrFormat("%d is not in [1, %d]", answers, kAnswersMax));
  }
  std::vector<AnswerBranch> branches;
  while (branches.size() + 1 < answers) branches.push_back({.call = worker.NewCallId(), .session = NewSessionId()});
  return branches;
}

template <typename Request>
std::optional<uint64_t> ExpectedOf(const Request& request) {
  return request.has_expected_generation() ? std::optional(request.expected_generation()) : std::nullopt;
}

// Starts on `output` the call that `prepare(tenant)` makes of a request, or ends it with the refusal. Returns `output`,
// which may be gone by then.
template <typename Output, typename Prepare>
Output* Begin(Output* output, const Prepare& prepare) {
  const Rpc& rpc = output->rpc();
  const auto call = [&]() -> absl::StatusOr<ModelCall> {
    EBB_ASSIGN(const std::string tenant, rpc.tenant());
    EBB_ASSIGN(ModelCall made, prepare(tenant));
    made.question.method = rpc.method_name();
    made.question.tenant = tenant;
    made.question.deadline = rpc.deadline();
    return made;
  };
  output->Begin(call());
  return output;
}

}  // namespace

grpc::ServerWriteReactor<v1::PrefillResponse>* InferenceService::Prefill(grpc::CallbackServerContext* context,
                                                                         const v1::PrefillRequest* request) {
  return Begin(new PrefillStream(parts_, "InferenceService/Prefill", *context),
               [&](const std::string& tenant) { return PrefillCall(tenant, *request); });
}

grpc::ServerWriteReactor<v1::DecodeResponse>* InferenceService::Decode(grpc::CallbackServerContext* context,
                                                                       const v1::DecodeRequest* request) {
  return Begin(new DecodeStream(parts_, "InferenceService/Decode", *context),
               [&](const std::string& tenant) { return DecodeCall(tenant, *request); });
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(grpc::CallbackServerContext* context,
                                                                           const v1::GenerateRequest* request) {
  return Begin(new GenerateStream(parts_, "InferenceService/Generate", *context),
               [&](const std::string& tenant) { return GenerateCall(tenant, *request); });
}

grpc::ServerUnaryReactor* InferenceService::Verify(grpc::CallbackServerContext* context,
                                                   const v1::VerifyRequest* request, v1::VerifyResponse* response) {
  return Begin(new VerifyReply(parts_, "InferenceService/Verify", *context, *response),
               [&](const std::string& tenant) { return VerifyCall(tenant, *request); });
}

grpc::ServerUnaryReactor* InferenceService::Accept(grpc::CallbackServerContext* context,
                                                   const v1::AcceptRequest* request, v1::AcceptResponse* response) {
  using Question = absl::AnyInvocable<absl::StatusOr<AcceptOutcome>(Dispatcher&)>;
  return Ask<AcceptOutcome>(
      parts_, "InferenceService/Accept", *context,
      [&](const std::string& tenant) -> absl::StatusOr<OfModel<Question>> {
        EBB_ASSIGN(const std::string id, SessionIdFrom(request->session(), "session"));
        EBB_ASSIGN(ModelLease model, parts_.models.Of(tenant, id));
        return OfModel<Question>{std::move(model),
                                 [=, count = request->count(), expected = ExpectedOf(*request)](
                                     Dispatcher& dispatcher) { return dispatcher.Accept(tenant, id, expected, count); },
                                 id};
      },
      [response](const AcceptOutcome& outcome, const ServedModel& /*model*/) {
        *response->mutable_usage() = UsageProto(outcome.usage);
        response->set_generation(outcome.generation);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* InferenceService::Edit(grpc::CallbackServerContext* context, const v1::EditRequest* request,
                                                 v1::EditResponse* response) {
  return Begin(new EditReply(parts_, "InferenceService/Edit", *context, *response),
               [&](const std::string& tenant) { return EditCall(tenant, *request); });
}

grpc::ServerUnaryReactor* InferenceService::Score(grpc::CallbackServerContext* context, const v1::ScoreRequest* request,
                                                  v1::ScoreResponse* response) {
  return Begin(new ScoreReply(parts_, "InferenceService/Score", *context, *response),
               [&](const std::string& tenant) { return ScoreCall(tenant, *request); });
}

absl::StatusOr<ModelCall> InferenceService::PrefillCall(const std::string& tenant,
                                                        const v1::PrefillRequest& request) const {
  EBB_TRY(CheckSize(parts_, request));
  CallRequest call = {.expected_generation = ExpectedOf(request)};
  EBB_ASSIGN(call.session, SessionIdFrom(request.session(), "session"));
  EBB_ASSIGN(ModelLease model, parts_.models.Of(tenant, call.session));
  const Worker& worker = model->worker();
  EBB_ASSIGN(const SessionView view, worker.Look(tenant, call.session));
  call.made_for = view.id;
  EBB_ASSIGN(call.block_size, BlockSizeFrom(BlockSizeOf(request), view.block_size, view.block_size));
  EBB_ASSIGN(call.prompt, PromptFrom(request.prompt(), worker.tokenizer(), view.log_tail, "prompt"));
  if (ContinuesLog(request.prompt())) call.generation_of_prompt = view.generation;
  return ModelCall{std::move(model), std::move(call)};
}

absl::StatusOr<ModelCall> InferenceService::DecodeCall(const std::string& tenant,
                                                       const v1::DecodeRequest& request) const {
  EBB_TRY(CheckSize(parts_, request));
  CallRequest call = {.expected_generation = ExpectedOf(request), .decodes = true};
  EBB_ASSIGN(call.session, SessionIdFrom(request.session(), "session"));
  EBB_ASSIGN(ModelLease model, parts_.models.Of(tenant, call.session));
  const Worker& worker = model->worker();
  const int32_t vocab = worker.tokenizer().size();
  EBB_ASSIGN(const SessionView view, worker.Look(tenant, call.session));
  call.made_for = view.id;
  EBB_ASSIGN(call.sampling, SamplingFrom(request.sampling(), view.sampling, vocab));
  EBB_ASSIGN(call.stopping, StoppingFrom(request.stopping(), vocab, call.sampling));
  EBB_ASSIGN(call.speculation, SpeculationFrom(request.speculation(), model->draft_name()));
  if (request.has_resume_from()) {
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();  // beyond any log, too
    call.resume_from = static_cast<int64_t>(std::min<uint64_t>(request.resume_from(), kMost));
  }
  return ModelCall{std::move(model), std::move(call)};
}

absl::StatusOr<ModelCall> InferenceService::GenerateCall(const std::string& tenant,
                                                         const v1::GenerateRequest& request) const {
  EBB_TRY(CheckSize(parts_, request));
  if (request.session().empty()) return GenerateOnce(tenant, request);
  const auto only_once = [](const std::string& field) {
    return RefuseField("ONLY_WITHOUT_SESSION", field, "the session has its own; leave it out");
  };
  if (request.has_policy()) return only_once("policy");
  if (!request.model().empty()) return only_once("model");

  CallRequest call = {.expected_generation = ExpectedOf(request), .decodes = true};
  EBB_ASSIGN(call.session, SessionIdFrom(request.session(), "session"));
  EBB_ASSIGN(ModelLease model, parts_.models.Of(tenant, call.session));
  Worker& worker = model->worker();
  const int32_t vocab = worker.tokenizer().size();
  EBB_ASSIGN(const SessionView view, worker.Look(tenant, call.session));
  call.made_for = view.id;
  EBB_ASSIGN(call.sampling, SamplingFrom(request.sampling(), view.sampling, vocab));
  EBB_ASSIGN(call.stopping, StoppingFrom(request.stopping(), vocab, call.sampling));
  EBB_ASSIGN(call.speculation, SpeculationFrom(request.speculation(), model->draft_name()));
  EBB_ASSIGN(call.block_size, BlockSizeFrom(BlockSizeOf(request), view.block_size, view.block_size));
  EBB_ASSIGN(call.prompt, PromptFrom(request.prompt(), worker.tokenizer(), view.log_tail, "prompt"));
  if (ContinuesLog(request.prompt())) call.generation_of_prompt = view.generation;
  EBB_ASSIGN(call.branches, BranchesFrom(request, worker));
  return ModelCall{std::move(model), std::move(call)};
}

// On a throw-away session.
absl::StatusOr<ModelCall> InferenceService::GenerateOnce(const std::string& tenant,
                                                         const v1::GenerateRequest& request) const {
  if (request.has_expected_generation()) {
    return RefuseField("ONLY_WITH_SESSION", "expected_generation", "a throw-away session has none; leave it out");
  }
  EBB_ASSIGN(ModelLease model, parts_.models.Find(request.model()));
  Worker& worker = model->worker();
  SessionRequest session = {.tenant = tenant, .id = NewSessionId()};
  EBB_ASSIGN(session.policy, PolicyFor(parts_, *model, tenant, request.has_policy(), request.policy()));
  EBB_ASSIGN(session.block_size, BlockSizeFrom(BlockSizeOf(request), kDefaultBlockSize, worker.step_tokens_max()));
  CallRequest call = {.block_size = session.block_size, .decodes = true};
  const int32_t vocab = worker.tokenizer().size();
  EBB_ASSIGN(call.sampling, SamplingFrom(request.sampling(), {.seed = SeedFor(session.id)}, vocab));
  EBB_ASSIGN(call.stopping, StoppingFrom(request.stopping(), vocab, call.sampling));
  EBB_ASSIGN(call.speculation, SpeculationFrom(request.speculation(), model->draft_name()));
  EBB_ASSIGN(call.prompt, PromptFrom(request.prompt(), worker.tokenizer(), {}, "prompt"));
  EBB_ASSIGN(call.branches, BranchesFrom(request, worker));
  call.open = std::move(session);
  return ModelCall{std::move(model), std::move(call)};
}

absl::StatusOr<ModelCall> InferenceService::VerifyCall(const std::string& tenant,
                                                       const v1::VerifyRequest& request) const {
  EBB_TRY(CheckSize(parts_, request));
  CallRequest call = {.expected_generation = ExpectedOf(request)};
  EBB_ASSIGN(call.session, SessionIdFrom(request.session(), "session"));
  EBB_ASSIGN(ModelLease model, parts_.models.Of(tenant, call.session));
  const Worker& worker = model->worker();
  const Tokenizer& tokenizer = worker.tokenizer();
  EBB_ASSIGN(const SessionView view, worker.Look(tenant, call.session));
  call.made_for = view.id;
  EBB_ASSIGN(call.sampling, SamplingFrom(request.sampling(), view.sampling, tokenizer.size()));
  EBB_ASSIGN(call.draft, DraftFrom(request, tokenizer));
  call.sampling.logprobs = call.draft->logprobs;
  call.decodes = !call.draft->manual;
  call.stopping = {.max_tokens = 1, .logprobs = true};
  return ModelCall{std::move(model), std::move(call)};
}

absl::StatusOr<ModelCall> InferenceService::EditCall(const std::string& tenant, const v1::EditRequest& request) const {
  EBB_TRY(CheckSize(parts_, request));
  CallRequest call = {.expected_generation = ExpectedOf(request)};
  EBB_ASSIGN(call.session, SessionIdFrom(request.session(), "session"));
  EBB_ASSIGN(ModelLease model, parts_.models.Of(tenant, call.session));
  const Worker& worker = model->worker();
  EBB_ASSIGN(const SessionView view, worker.Look(tenant, call.session));
  call.made_for = view.id;
  EBB_ASSIGN(call.block_size, BlockSizeFrom(BlockSizeOf(request), view.block_size, view.block_size));
  EBB_ASSIGN(call.edit, EditFrom(request, worker.tokenizer()));
  return ModelCall{std::move(model), std::move(call)};
}

absl::StatusOr<ModelCall> InferenceService::ScoreCall(const std::string& tenant,
                                                      const v1::ScoreRequest& request) const {
  EBB_TRY(CheckSize(parts_, request));
  EBB_ASSIGN(ModelLease model, parts_.models.Find(request.model()));
  const Worker& worker = model->worker();
  const Tokenizer& tokenizer = worker.tokenizer();
  CallRequest call;
  if (request.has_context()) {
    EBB_ASSIGN(call.prompt, PromptFrom(request.context(), tokenizer, {}, "context"));
  } else if (tokenizer.adds_bos()) {
    const auto& ids = request.target().tokens().ids();
    const bool has_bos = !ids.empty() && static_cast<int32_t>(ids[0]) == tokenizer.bos();
    if (!has_bos) call.prompt = {*tokenizer.bos()};
  }
  const auto context = static_cast<int32_t>(call.prompt.size());
  EBB_ASSIGN(const std::vector<int32_t> target, PromptFrom(request.target(), tokenizer, call.prompt, "target"));
  if (target.size() > kScoredTokensMax) {
    return RefuseField("TOO_LONG", "target", absl::StrFormat("%d tokens; at most %d", target.size(), kScoredTokensMax));
  }
  call.prompt.insert(call.prompt.end(), target.begin(), target.end());
  call.score_at = std::max(context, 1);

  SessionRequest session = {.tenant = tenant, .id = NewSessionId()};
  if (request.has_policy()) {
    EBB_ASSIGN(session.policy, ValidPolicyFrom(request.policy(), LimitsOf(worker.model())));
  } else {
    const PolicySpec spec = {.scorer = UnevictedScorer(), .budget = static_cast<int32_t>(call.prompt.size())};
    EBB_ASSIGN(session.policy, Resolve(spec, LimitsOf(worker.model())));
  }
  EBB_ASSIGN(session.block_size, BlockSizeFrom(BlockSizeOf(request), kDefaultBlockSize, worker.step_tokens_max()));
  call.block_size = session.block_size;
  call.open = std::move(session);
  return ModelCall{std::move(model), std::move(call)};
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  return Reply(parts_, "InferenceService/Tokenize", *context, [&](Rpc& rpc) -> absl::Status {
    EBB_TRY(CheckSize(parts_, *request));
    EBB_ASSIGN(const ModelLease model, parts_.models.Find(request->model()));
    rpc.About({}, model->name());
    const Tokenizer& tokenizer = model->worker().tokenizer();
    if (request->prompt().has_tokens()) {
      return RefuseField("ALREADY_TOKENS", "prompt.tokens", "there is nothing to tokenize; give text or chat");
    }
    EBB_ASSIGN(const std::vector<int32_t> tokens, PromptFrom(request->prompt(), tokenizer, {}, "prompt"));
    const bool has_begin = tokenizer.adds_bos() && tokens.front() == tokenizer.bos();
    for (size_t i = request->omit_begin() && has_begin ? 1 : 0; i < tokens.size(); ++i) {
      response->add_ids(static_cast<uint32_t>(tokens[i]));
      response->add_pieces(std::string(tokenizer.Piece(tokens[i])));
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  return Reply(parts_, "InferenceService/Detokenize", *context, [&](Rpc& rpc) -> absl::Status {
    EBB_TRY(CheckSize(parts_, *request));
    EBB_ASSIGN(const ModelLease model, parts_.models.Find(request->model()));
    rpc.About({}, model->name());
    const Tokenizer& tokenizer = model->worker().tokenizer();
    EBB_ASSIGN(const std::vector<int32_t> tokens, TokensFrom(request->ids(), tokenizer.size(), "ids"));
    const Special special = request->render_special() ? Special::kParse : Special::kPlain;
    response->set_text(SanitisedUtf8(tokenizer.Decode(tokens, special)));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* InferenceService::ReportOutcome(grpc::CallbackServerContext* context,
                                                          const v1::ReportOutcomeRequest* request,
                                                          v1::ReportOutcomeResponse* response) {
  using Counted = std::optional<Assignment>;
  using Question = absl::AnyInvocable<absl::StatusOr<Counted>(Dispatcher&)>;
  return Ask<Counted>(
      parts_, "InferenceService/ReportOutcome", *context,
      [&](const std::string& tenant) -> absl::StatusOr<OfModel<Question>> {
        EBB_ASSIGN(const std::string id, SessionIdFrom(request->session(), "session"));
        EBB_ASSIGN(TaskOutcome outcome, OutcomeFrom(*request));
        EBB_ASSIGN(ModelLease model, parts_.models.Of(tenant, id));
        return OfModel<Question>{std::move(model),
                                 [tenant, id, outcome = std::move(outcome)](Dispatcher& dispatcher) {
                                   return dispatcher.ReportOutcome(tenant, id, outcome);
                                 },
                                 id};
      },
      [response](const Counted& counted, const ServedModel& /*model*/) {
        if (!counted) return absl::OkStatus();
        response->set_experiment("experiments/" + counted->experiment);
        response->set_arm(counted->arm_name);
        return absl::OkStatus();
      });
}

}  // namespace ebb
