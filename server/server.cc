#include "server/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/acceptor.h"
#include "server/admin_service.h"
#include "server/console.h"
#include "server/eviction_service.h"
#include "server/experiment_metrics.h"
#include "server/folder_health.h"
#include "server/grpc_servers.h"
#include "server/health_checks.h"
#include "server/health_port.h"
#include "server/http_port.h"
#include "server/inference_service.h"
#include "server/kept_experiments.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/model_header.h"
#include "server/model_options.h"
#include "server/models.h"
#include "server/open_streams.h"
#include "server/openai_front.h"
#include "server/plan_eviction.h"
#include "server/reload.h"
#include "server/repeater.h"
#include "server/rpc.h"
#include "server/served_model.h"
#include "server/services.h"
#include "server/session_names.h"
#include "server/session_service.h"
#include "server/takeover.h"
#include "server/tenant_policies.h"
#include "server/tenant_settings.h"
#include "server/transport_limits.h"

namespace ebb {
namespace {

constexpr ModelId kMainModel = 1;
// For answers to short calls, and for clients to hang up by themselves; idle ones may not notice for seconds.
constexpr absl::Duration kLastWords = absl::Milliseconds(250);
constexpr absl::Duration kRenewHealthEvery = absl::Seconds(1);

// "InferenceService/Generate", and so on.
std::vector<std::string> AllMethods() {
  std::vector<std::string> methods;
  for (const auto* service : AllServices()) {
    for (int i = 0; i < service->method_count(); ++i) {
      methods.push_back(service->name() + "/" + service->method(i)->name());
    }
  }
  return methods;
}

TransportLimits LimitsFor(const ServerOptions& options) {
  // gRPC has one limit for the requests of all methods: it lets in what PlanEviction may send, and CheckSize refuses
  // what is too large for the others. An answer to a plan is shorter than the plan, but for the frame of each row.
  const int64_t request = std::max(options.message_bytes_max, options.plan_bytes_max);
  return {.request_bytes_max = request,
          .answer_bytes_max = request + (kPlanRowsMax << 6),
          .connection_age_max = options.connection_age_max,
          .keepalive = options.keepalive};
}

absl::Status NoRoomFor(const std::string& model, const char* what) {
  return Refuse(absl::StatusCode::kResourceExhausted,
                absl::StrFormat("the system has no more %s for the model '%s'", what, model), {.reason = "NO_MEMORY"});
}

std::string HealthName(const std::string& model) { return "models/" + model; }

class RunningServer final : public Server {
 public:
  // Who is let in, and how: `tls` may be null.
  struct Door {
    std::unique_ptr<Identity> identity;
    std::unique_ptr<ServerTls> tls;
  };

  RunningServer(const ServerOptions& options, Door door)
      : options_(options),
        identity_(std::move(door.identity)),
        tls_(std::move(door.tls)),
        tenants_(options.work.tenants),
        tenant_settings_(options.work.tenants,
                         [this](std::shared_ptr<const TenantTable> table) {
                           tenants_.set(table);
                           for (const ModelLease& model : models_->Loaded()) model->worker().SetTenants(table);
                         }),
        live_(options.work.live) {}

  ~RunningServer() override {
    StopCalls(absl::ZeroDuration());
    ClosePorts();
    if (models_) models_->Join();
  }

  // Before anybody calls.
  absl::Status OpenMain() {
    EBB_ASSIGN(main_, ServedModel::Open(options_, SharedBy(kMainModel)));
    // Before sessions are taken out of the folder, which a server that gives up could lose.
    EBB_ASSIGN(kept_experiments_, KeptExperiments::Open(options_.store_dir, main_->shared_store(), experiments_,
                                                        main_->worker(), metrics().experiment_files()));
    EBB_ASSIGN(TenantTable tenants, WithPolicies(options_.work.tenants, LimitsOf(main_->worker().model())));
    models_.emplace(
        *main_, names_,
        Models::Steps{
            .sessions = [this](const std::string& name, const ModelSpec& spec) { return SessionsOf(name, spec); },
            .open = [this](const std::string& name, const ModelSpec& spec,
                           ModelId id) { return OpenBeside(name, spec, id); },
            .joined =
                [this] {
                  tenant_settings_.Renew();
                  TellLive();
                },
            .changed = [this](const std::string& name,
                              ModelState state) { SetServing(HealthName(name), state == ModelState::kServing); }});
    tenant_settings_.Configure(std::move(tenants));
    if (main_->shared_store() != nullptr) {
      takeover_ = std::make_unique<Takeover>(*main_->shared_store(), main_->worker(), main_->metrics().journal());
    }
    parts_.emplace(ServiceParts{.models = *models_,
                                .metrics = main_->metrics(),
                                .streams = streams_,
                                .identity = *identity_,
                                .clock = clock_,
                                .stream_buffer = options_.stream_buffer,
                                .request_bytes_max = options_.message_bytes_max,
                                .store = main_->store(),
                                .takeover = takeover_.get(),
                                .tenants = &tenants_,
                                .tenant_settings = &tenant_settings_,
                                .reloader = &reloader_,
                                .experiments = &experiments_});
    services_.emplace(*parts_);
    metrics().reload().last_good.Set(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
    return CheckTable(options_.models);
  }

  absl::Status BringBack() {
    if (options_.durability == Durability::kOff) return absl::OkStatus();
    EBB_ASSIGN(KeptSessions sum, main_->BringBack());
    if (takeover_ != nullptr) {
      const KeptSessions taken = takeover_->Round();
      sum.kept += taken.kept;
      sum.failed += taken.failed;
    }
    LogInfo("brought_back", {{"sessions", sum.kept}, {"failed", sum.failed}}, "from the server before this one");
    return absl::OkStatus();
  }

  absl::Status ReadExperiments() {
    if (kept_experiments_ != nullptr) kept_experiments_->BringBack(options_.experiments.has_value());
    if (options_.experiments) {
      EBB_ASSIGN(experiment_file_, ExperimentFile::Open(*options_.experiments, main_->worker(), experiments_));
    }
    if (kept_experiments_ != nullptr) kept_experiments_->Start();
    return absl::OkStatus();
  }

  absl::Status Listen() {
    const ServerOptions& options = options_;
    EBB_TRY(ReadExperiments());
    StartReloading();
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    EBB_ASSIGN(acceptor_, Acceptor::Listen(options.listen, "server.listen", {.of_an_address = options.of_an_address}));
    servers_ = std::make_unique<GrpcServers>(LimitsFor(options),
                                             tls_ == nullptr ? grpc::InsecureServerCredentials() : tls_->credentials(),
                                             [&](grpc::ServerBuilder& builder) {
                                               if (!options.reflection.value_or(!identity_->on()))
                                                 LeaveOutReflection(builder);
                                               builder.RegisterService(&services_->sessions);
                                               builder.RegisterService(&services_->inference);
                                               builder.RegisterService(&services_->eviction);
                                               builder.RegisterService(&services_->admin);
                                             });
    RenewHealth();
    WatchStoreSpace();
    health_renewal_.emplace(kRenewHealthEvery, [this] { RenewHealth(); });
    models_->Configure(options_.models, absl::ZeroDuration());
    servers_->Open(*acceptor_, metrics().connections_refused());
    if (takeover_ != nullptr) takeover_->Start(FormatAddress(options.endpoint.value_or(address())));
    EBB_TRY(ListenOpenAi(options));
    if (options.health_listen) {
      EBB_ASSIGN(health_, HealthPort::Start(*options.health_listen, Checks(), metrics().connections_refused()));
    }
    if (options.http_listen) {
      EBB_ASSIGN(http_, HttpPort::Start(*options.http_listen, PagesFor(options), metrics().connections_refused()));
    }
    return absl::OkStatus();
  }

  // The experiments first: they alone may still be refused when they are taken, by their worker.
  void StartReloading() {
    if (experiment_file_ != nullptr) {
      const ExperimentFileOptions& of = *options_.experiments;
      AddLiveFile({.path = of.path, .every = of.reload, .read = [this] { return experiment_file_->Read(); }});
    }
    if (options_.auth.token) {
      const AuthOptions& of = options_.auth;
      AddLiveFile({.path = of.token_file, .every = of.reload, .read = [this] { return identity_->Read(); }});
    }
    if (tls_ != nullptr) {
      AddLiveFile({.path = options_.tls->cert, .every = options_.tls->reload, .read = [this] { return tls_->Read(); }});
    }
    reloader_.Start([this](const absl::Status& status, bool any_failing) { CountReload(status, any_failing); });
  }

  Address address() const override { return acceptor_->address(); }
  std::optional<Address> http_address() const override {
    return http_ == nullptr ? std::nullopt : std::optional(http_->address());
  }

  std::optional<Address> health_address() const override {
    return health_ == nullptr ? std::nullopt : std::optional(health_->address());
  }

  std::optional<Address> openai_address() const override {
    return openai_ == nullptr ? std::nullopt : std::optional(openai_->address());
  }

  absl::Status CheckTenants(const TenantTable& tenants) const override {
    return WithPolicies(tenants, LimitsOf(main_->worker().model())).status();
  }

  absl::Status SetTenants(const TenantTable& tenants) override {
    EBB_ASSIGN(TenantTable table, WithPolicies(tenants, LimitsOf(main_->worker().model())));
    tenant_settings_.Configure(std::move(table));
    return absl::OkStatus();
  }

  void SetLive(const LiveOptions& live) override {
    {
      const std::lock_guard lock(live_mutex_);
      live_ = live;
    }
    TellLive();
  }

  void SetConnectionLimits(const ConnectionLimits& of_an_address) override { acceptor_->SetLimits(of_an_address); }

  absl::Status CheckModels(const ModelTable& models) const override {
    EBB_TRY(CheckTable(models));
    for (const auto& [name, spec] : models) {
      if (models_->Leaves(name, spec)) continue;
      const absl::Status header = CheckModelHeader(spec.path);
      if (header.ok()) continue;
      return RefuseField("BAD_VALUE", absl::StrFormat("models.%s.path", name), std::string(header.message()));
    }
    return absl::OkStatus();
  }

  absl::Status SetModels(const ModelTable& models, absl::Duration patience) override {
    EBB_TRY(CheckTable(models));
    models_->Configure(models, patience);
    return absl::OkStatus();
  }

  void AddLiveFile(LiveFile file) override { reloader_.Add(std::move(file)); }

  void Reload() override {
    reloader_.Ask([](const absl::StatusOr<Reloaded>& reloaded) {
      const std::string reason = GetRefusal(reloaded.status()).reason;  // bad files are in the log already
      if (reason != "NO_CONFIG_FILE" && reason != "QUEUE_FULL") return;
      LogError("config_not_taken", {{"reason", reason}}, std::string(reloaded.status().message()));
    });
  }

  void Drain(absl::Duration patience) override {
    draining_ = true;
    RenewHealth();
    if (takeover_ != nullptr) takeover_->Stop();
    models_->StopAll(patience);
    main_->worker().Drain(patience);
    servers_->SendAway();  // who comes back now comes after the workers know
    main_->worker().WaitUntilIdle();
    models_->WaitUntilDrained();
    streams_.WaitUntilNone(kFlush);
    StopCalls(kLastWords);
    main_->Keep();  // before anything that a client may hold up
    models_->Join();
    if (kept_experiments_ != nullptr) kept_experiments_->Finish();
    ClosePorts();
  }

  // Of a server that cannot listen: what it brought back is the next one's.
  void GiveUp() {
    StopCalls(absl::ZeroDuration());
    ClosePorts();
    main_->Keep();
    models_->Join();
  }

 private:
  void CountReload(const absl::Status& status, bool any_failing) {
    const ReloadMetrics& reload = metrics().reload();
    (status.ok() ? reload.ok : reload.failed).Add();
    reload.is_failing.Set(any_failing ? 1 : 0);
    if (!any_failing) reload.last_good.Set(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  }

  struct Services {
    explicit Services(const ServiceParts& parts) : sessions(parts), inference(parts), eviction(parts), admin(parts) {}

    SessionService sessions;
    InferenceService inference;
    EvictionService eviction;
    AdminService admin;
  };

  // What gRPC's health service was told.
  struct Told {
    bool alive = false;
    bool ready = false;
    bool draining = false;
    bool operator==(const Told&) const = default;
  };

  Metrics& metrics() const { return main_->metrics(); }

  // Once more, too, when there is a model that was not there yet: it began with what the server was started with.
  void TellLive() {
    const std::lock_guard lock(live_mutex_);  // whoever tells last tells what is in force
    for (const ModelLease& model : models_->Loaded()) model->worker().SetLive(live_);
  }

  // Whatever their files are like: a server starts, and goes on, while one of its models cannot be loaded.
  absl::Status CheckTable(const ModelTable& models) const {
    EBB_TRY(CheckSpecs(models, options_));
    if (!models.contains(main_->name())) return absl::OkStatus();
    return RefuseField("BAD_VALUE", absl::StrFormat("models.%s", main_->name()),
                       "the name is that of the main model, `model`");
  }

  // Of a server the main model alone counts calls, and has experiments.
  ServedModel::Shared SharedBy(ModelId id) {
    const bool is_main = id == kMainModel;
    return {.id = id,
            .names = names_,
            .tenants = tenants_,
            .tenant_uses = tenant_uses_,
            .clock = clock_,
            .experiments = is_main ? &experiments_ : nullptr,
            .methods = is_main ? AllMethods() : std::vector<std::string>(),
            .server_metrics = is_main ? nullptr : &metrics()};
  }

  absl::StatusOr<std::vector<SessionName>> SessionsOf(const std::string& name, const ModelSpec& spec) const {
    EBB_ASSIGN(const ServerOptions options, OptionsOf(options_, name, spec));
    return ServedModel::SessionsKept(options);
  }

  // What it cannot have of the system it is refused, and nobody else ends for it.
  absl::StatusOr<std::unique_ptr<ServedModel>> OpenBeside(const std::string& name, const ModelSpec& spec, ModelId id) {
    try {
      return LoadBeside(name, spec, id);
    } catch (const std::bad_alloc&) {
      return NoRoomFor(name, "memory");
    } catch (const std::system_error&) {  // of std::thread
      return NoRoomFor(name, "threads");
    }
  }

  absl::StatusOr<std::unique_ptr<ServedModel>> LoadBeside(const std::string& name, const ModelSpec& spec, ModelId id) {
    EBB_ASSIGN(const ServerOptions options, OptionsOf(options_, name, spec));
    EBB_ASSIGN(std::unique_ptr<ServedModel> model, ServedModel::Open(options, SharedBy(id)));
    EBB_ASSIGN(const KeptSessions sum, model->BringBack());
    if (options.durability != Durability::kOff) {
      LogInfo("brought_back", {{"model", name}, {"sessions", sum.kept}, {"failed", sum.failed}});
    }
    return model;
  }

  HealthChecks Checks() {
    return {.alive = [this] { return CheckAlive(); }, .ready = [this] { return CheckReady(); }};
  }

  // A worker that is stuck holds all of its model's sessions, and no call of theirs would ever be refused.
  absl::Status CheckAlive() const {
    if (options_.stall_timeout == absl::ZeroDuration()) return absl::OkStatus();
    for (const ModelView& view : models_->List()) {
      if (view.model == nullptr) continue;
      const absl::Duration busy = view.model->worker().busy_for();
      if (busy <= options_.stall_timeout) continue;
      return absl::UnavailableError(
          absl::StrFormat("the worker of '%s' has been at one step for %s, longer than server.stall_timeout, %s",
                          view.name, absl::FormatDuration(busy), absl::FormatDuration(options_.stall_timeout)));
    }
    return absl::OkStatus();
  }

  // That a Redis is away makes no server unready: it is away for all of them, and clients had nobody left to tell them.
  absl::Status CheckReady() const {
    if (draining_) return absl::UnavailableError("draining");
    for (const ModelView& view : models_->List()) {
      if (view.model == nullptr || view.model->folder_health() == nullptr) continue;
      EBB_TRY(view.model->folder_health()->Check());
    }
    return absl::OkStatus();
  }

  HttpPages PagesFor(const ServerOptions& options) {
    HttpPages pages = {.metrics = [this] { return MetricsPage(); }, .health = Checks()};
    if (!options.console) return pages;
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);  // what the services answer has bounds of its own
    console_ = std::make_unique<Console>(servers_->InProcessChannel(arguments), *identity_, *options.console,
                                         [this](const absl::Status& why) { metrics().CountRefusal(why, {}); });
    pages.console = {.add_to = [this](HttpServer& http) { console_->AddTo(http); },
                     .threads = Console::kThreads,
                     .body_bytes_max = Console::kBodyBytesMax,
                     .posts = Console::kApi};
    return pages;
  }

  absl::Status ListenOpenAi(const ServerOptions& options) {
    if (!options.openai) return absl::OkStatus();
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);  // what the services answer has bounds of its own
    EBB_ASSIGN(openai_, OpenAiFront::Start(*options.openai,
                                           {.models = [this] { return ServedNow(); },
                                            .body_bytes_max = static_cast<size_t>(options.message_bytes_max),
                                            .tls = options.openai->tls ? tls_.get() : nullptr,
                                            .tenant = [this](const auto&... by) { return identity_->TenantBy(by...); },
                                            .refused = [this](const auto&... why) { metrics().CountRefusal(why...); }},
                                           servers_->InProcessChannel(arguments), metrics().connections_refused()));
    return absl::OkStatus();
  }

  // As the OpenAI API lists them.
  std::vector<OpenAiModel> ServedNow() const {
    std::vector<OpenAiModel> served;
    for (const ModelView& view : models_->List()) {
      if (view.state == ModelState::kServing) served.push_back({.name = view.name, .context = view.model->context()});
    }
    return served;
  }

  // gRPC's own health service says what it was last told, and so can tell those that watch; it is told the answers that
  // the other ports give. A caller of the services needs both.
  void RenewHealth() {
    const bool alive = CheckAlive().ok();
    const bool was_ready = CheckReady().ok();
    const std::lock_guard lock(health_mutex_);
    const bool draining = draining_;
    const bool ready = was_ready && !draining;
    const Told now = {.alive = alive, .ready = ready, .draining = draining};
    if (servers_ == nullptr || told_ == now) return;  // it would repeat itself to all that watch
    told_ = now;
    servers_->SetServing("liveness", alive);
    servers_->SetServing("readiness", ready);
    for (const auto* service : AllServices()) servers_->SetServing(service->full_name(), alive && ready);
    servers_->SetServing(HealthName(main_->name()), !draining);
    // Last: who sees it change finds the others changed. By its name, since without one all are set, those of other
    // models, too.
    servers_->SetServing("", alive && ready);
  }

  void SetServing(const std::string& service, bool serving) {
    const std::lock_guard lock(health_mutex_);
    if (servers_ != nullptr) servers_->SetServing(service, serving && !draining_);
  }

  // A disk that does not answer keeps nobody waiting who scrapes: where there are journals in a folder, their thread
  // has looked, else one of its own.
  std::optional<FolderSpace> StoreSpace() {
    if (main_->folder_health() != nullptr) return main_->folder_health()->space();
    const std::lock_guard lock(space_mutex_);
    return space_;
  }

  void WatchStoreSpace() {
    if (options_.store_dir.empty() || main_->folder_health() != nullptr) return;
    LookAtStore();
    space_renewal_.emplace(FolderHealth::kLookEvery, [this] { LookAtStore(); });
  }

  void LookAtStore() {
    std::error_code error;
    const auto space = std::filesystem::space(options_.store_dir, error);
    const std::lock_guard lock(space_mutex_);
    space_.reset();
    if (error) return;
    space_ = {.available = static_cast<int64_t>(space.available), .capacity = static_cast<int64_t>(space.capacity)};
  }

  std::string MetricsPage() {
    if (tls_ != nullptr) metrics().SetCertificateEnd(tls_->certificate_end());
    if (const auto space = StoreSpace()) metrics().SetStoreSpace(space->available, space->capacity);
    std::array<int, kModelStates> counts = {};
    std::vector<Metrics::OfModel> others;
    const std::vector<ModelView> views = models_->List();
    for (const ModelView& view : views) {
      ++counts[static_cast<size_t>(view.state)];
      if (view.model == nullptr) continue;
      Metrics& metrics = view.model->metrics();
      metrics.worker().busy_seconds.Set(absl::ToDoubleSeconds(view.model->worker().busy_for()));
      if (view.model.get() != main_.get()) others.push_back({view.name, &metrics});
    }
    for (size_t i = 0; i < kModelStates; ++i) metrics().models(kModelStateNames[i]).Set(counts[i]);
    return metrics().Serialize(others) + ExperimentMetrics(experiments_.List());
  }

  // Once gRPC is down, no call is left and the workers may go.
  void StopCalls(absl::Duration patience) {
    reloader_.Stop();
    if (models_) models_->StopAll(absl::ZeroDuration());
    health_renewal_.reset();
    if (servers_ == nullptr) return;
    acceptor_->Stop();
    servers_->Shutdown(patience);
  }

  // After StopCalls. Answers of HTTP that have begun may still be written, for some seconds.
  void ClosePorts() {
    openai_.reset();
    http_.reset();
    health_.reset();
    console_.reset();
    const std::lock_guard lock(health_mutex_);
    servers_.reset();
  }

  const ServerOptions options_;
  const std::unique_ptr<Identity> identity_;
  const std::unique_ptr<ServerTls> tls_;
  const Clock clock_ = {};
  CurrentTenants tenants_;
  TenantSettings tenant_settings_;
  std::mutex live_mutex_;
  LiveOptions live_;  // under live_mutex_
  OpenStreams streams_;
  Experiments experiments_;
  SessionNames names_;
  const std::shared_ptr<TenantUses> tenant_uses_ = std::make_shared<TenantUses>();
  std::unique_ptr<ServedModel> main_;
  std::optional<Models> models_;
  std::unique_ptr<KeptExperiments> kept_experiments_;  // null: they end with the server
  std::unique_ptr<ExperimentFile> experiment_file_;
  std::unique_ptr<Takeover> takeover_;
  std::optional<const ServiceParts> parts_;
  std::optional<Services> services_;
  std::atomic<bool> draining_ = false;
  std::unique_ptr<Acceptor> acceptor_;
  std::mutex health_mutex_;        // that a model's thread finds servers_ there, or gone
  std::optional<Told> told_ = {};  // as RenewHealth did last
  std::mutex space_mutex_;
  std::optional<FolderSpace> space_ = {};  // under space_mutex_, as of the last look
  std::unique_ptr<GrpcServers> servers_;
  std::unique_ptr<Console> console_;
  std::unique_ptr<OpenAiFront> openai_;
  std::unique_ptr<HealthPort> health_;
  std::unique_ptr<HttpPort> http_;
  std::optional<Repeater> health_renewal_ = {};  // these last: they use what stands above
  std::optional<Repeater> space_renewal_ = {};
  Reloader reloader_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  EBB_TRY(CheckSpecs(options.models, options));
  RunningServer::Door door;  // first, since it is quickly said what is wrong with it
  EBB_ASSIGN(door.identity, Identity::Open(options.auth));
  if (options.tls) {
    EBB_ASSIGN(door.tls, ServerTls::Open(*options.tls));
  }
  auto server = std::make_unique<RunningServer>(options, std::move(door));
  EBB_TRY(server->OpenMain());
  EBB_TRY(server->BringBack());
  if (const absl::Status listening = server->Listen(); !listening.ok()) {
    server->GiveUp();
    return listening;
  }
  return server;
}

}  // namespace ebb
