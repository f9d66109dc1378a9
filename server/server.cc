#include "server/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
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
#include "server/folder_store.h"
#include "server/http_port.h"
#include "server/inference_service.h"
#include "server/journal.h"
#include "server/kept_sessions.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/open_streams.h"
#include "server/openai_front.h"
#include "server/plan_eviction.h"
#include "server/rpc.h"
#include "server/saved_session.h"
#include "server/session_service.h"
#include "server/store.h"
#include "server/swap_folder.h"
#include "server/takeover.h"
#include "server/tenant_policies.h"
#include "server/tenant_settings.h"
#include "server/transport_limits.h"
#include "server/version.h"
#include "server/worker.h"

namespace ebb {
namespace {

constexpr absl::Duration kFlush = absl::Seconds(5);  // for streams to be written when their calls are over
// For answers to short calls, and for clients to hang up by themselves; idle ones may not notice for seconds.
constexpr absl::Duration kLastWords = absl::Milliseconds(250);

// The four services of ebb.v1, as protobuf describes them.
std::vector<const google::protobuf::ServiceDescriptor*> AllServices() {
  return {v1::CreateSessionRequest::descriptor()->file()->service(0),
          v1::PrefillRequest::descriptor()->file()->service(0), v1::EvictRequest::descriptor()->file()->service(0),
          v1::GetStatusRequest::descriptor()->file()->service(0)};
}

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

std::string ModelName(const ServerOptions& options, const ModelConfig& config) {
  if (!options.model_name.empty()) return options.model_name;
  return NameOfModel(config, options.engine.model_path);
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

MetricsOptions MetricsFor(const ServerOptions& options, const Engine& engine) {
  MetricsOptions metrics = {.version = std::string(Version()),
                            .revision = std::string(Revision()),
                            .backend = engine.fingerprint(),
                            .grpc_version = grpc::Version(),
                            .model = ModelName(options, engine.config()),
                            .pages = engine.memory().pages_total,
                            .page_bytes = engine.memory().page_bytes,
                            .lanes = engine.config().layers * engine.config().kv_heads,
                            .head_dim = engine.config().head_dim,
                            .step_tokens_max = engine.step_tokens_max(),
                            .queue_max = options.work.queue_max,
                            .methods = AllMethods()};
  for (const auto& [tenant, limits] : options.work.tenants) metrics.tenants.push_back(tenant);
  return metrics;
}

// What outlives the server, each null where there is none. Sessions are journaled in one of the last two.
struct Stores {
  std::unique_ptr<SnapshotStore> snapshots = {};
  std::unique_ptr<SessionFiles> files = {};
  std::unique_ptr<RedisStore> shared = {};
  std::unique_ptr<SwapFolder> swap = {};
};

// gRPC's reflection puts itself into every server of a process that is linked to it.
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments* /*arguments*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins, [](const auto& plugin) {
      return dynamic_cast<grpc::reflection::ProtoServerReflectionPlugin*>(plugin.get()) != nullptr;
    });
  }
};

class RunningServer final : public Server {
 public:
  // Who is let in, and how: `tls` may be null.
  struct Door {
    std::unique_ptr<Identity> identity;
    std::unique_ptr<ServerTls> tls;
  };

  RunningServer(const ServerOptions& options, Door door, std::unique_ptr<Engine> engine, DraftModel draft,
                std::unique_ptr<Metrics> metrics, Stores stores)
      : identity_(std::move(door.identity)),
        tls_(std::move(door.tls)),
        tenants_(options.work.tenants),
        tenant_settings_(options.work.tenants,
                         [this](std::shared_ptr<const TenantTable> table) {
                           tenants_.set(table);
                           worker_.SetTenants(std::move(table));
                         }),
        model_name_(ModelName(options, engine->config())),
        context_(engine->config().context),
        durability_(options.durability),
        store_dir_(options.store_dir),
        draft_(std::move(draft)),
        owned_metrics_(std::move(metrics)),
        files_(std::move(stores.files)),
        swap_(std::move(stores.swap)),
        shared_(stores.shared.get()),
        journal_(MakeJournal(options, std::move(stores.shared))),
        worker_(std::move(engine), WorkFor(options), metrics_),
        takeover_(shared_ == nullptr ? nullptr : std::make_unique<Takeover>(*shared_, worker_, metrics_.journal())),
        store_(stores.snapshots == nullptr ? nullptr : std::make_unique<Store>(std::move(stores.snapshots))),
        parts_{worker_,
               metrics_,
               streams_,
               *identity_,
               model_name_,
               options.stream_buffer,
               options.message_bytes_max,
               store_.get(),
               takeover_.get(),
               draft_.name,
               &tenants_,
               &tenant_settings_,
               options.reloader,
               &experiments_} {
    metrics_.reload().last_good.Set(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  }

  ~RunningServer() override { Stop(absl::ZeroDuration()); }

  // Before anybody calls.
  void BringBack() {
    if (durability_ == Durability::kOff) return;
    KeptSessions sum;
    if (store_ != nullptr) sum = BringBackSessions(worker_, *store_, metrics_.store());
    KeptSessions journaled;
    if (files_ != nullptr)
      journaled = BringBackJournals(worker_, *files_, *journal_, metrics_.journal(), swap_ != nullptr);
    if (takeover_ != nullptr) journaled = takeover_->Round();
    sum.kept += journaled.kept;
    sum.failed += journaled.failed;
    LogInfo("brought_back", {{"sessions", sum.kept}, {"failed", sum.failed}}, "from the server before this one");
  }

  absl::Status ReadExperiments(const std::optional<ExperimentFileOptions>& options) {
    if (!options) return absl::OkStatus();
    EBB_ASSIGN(experiment_file_, ExperimentFile::Open(*options, worker_, experiments_));
    return absl::OkStatus();
  }

  absl::Status Listen(const ServerOptions& options) {
    EBB_TRY(ReadExperiments(options.experiments));
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    if (!options.reflection.value_or(!identity_->on())) builder.SetOption(std::make_unique<WithoutReflection>());
    SetTransportLimits(LimitsFor(options), builder);
    EBB_ASSIGN(acceptor_, Acceptor::Listen(options.listen));
    door_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        tls_ == nullptr ? grpc::InsecureServerCredentials() : tls_->credentials());
    builder.RegisterService(&sessions_);
    builder.RegisterService(&inference_);
    builder.RegisterService(&eviction_);
    builder.RegisterService(&admin_);
    server_ = builder.BuildAndStart();
    EBB_CHECK(server_ != nullptr);  // the port is ours already
    acceptor_->Start(
        [this](int listener, OpenFile connection) {
          grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters taken;
          taken.listener_fd = listener;
          taken.fd = connection.Release();
          door_->HandleNewConnection(&taken);
        },
        metrics_.connections_refused());
    SetServing(true);
    if (takeover_ != nullptr) takeover_->Start(FormatAddress(options.endpoint.value_or(address())));
    EBB_TRY(ListenOpenAi(options));
    if (!options.http_listen) return absl::OkStatus();
    EBB_ASSIGN(http_, HttpPort::Start(*options.http_listen, PagesFor(options)));
    return absl::OkStatus();
  }

  Address address() const override { return acceptor_->address(); }
  std::optional<Address> http_address() const override {
    return http_ == nullptr ? std::nullopt : std::optional(http_->address());
  }

  std::optional<Address> openai_address() const override {
    return openai_ == nullptr ? std::nullopt : std::optional(openai_->address());
  }

  absl::Status SetTenants(const TenantTable& tenants) override {
    EBB_ASSIGN(TenantTable table, WithPolicies(tenants, LimitsOf(worker_.model())));
    tenant_settings_.Configure(std::move(table));
    return absl::OkStatus();
  }

  void CountReload(const absl::Status& status) override {
    const ReloadMetrics& reload = metrics_.reload();
    (status.ok() ? reload.ok : reload.failed).Add();
    reload.is_failing.Set(status.ok() ? 0 : 1);
    if (status.ok()) reload.last_good.Set(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  }

  void Drain(absl::Duration patience) override {
    draining_ = true;
    SetServing(false);
    if (takeover_ != nullptr) takeover_->Stop();
    worker_.Drain(patience);
    worker_.WaitUntilIdle();
    streams_.WaitUntilNone(kFlush);
    Stop(kLastWords);
    Keep();
  }

  // Of a server that cannot listen: what it brought back is the next one's.
  void GiveUp() {
    Stop(absl::ZeroDuration());
    Keep();
  }

 private:
  HttpPages PagesFor(const ServerOptions& options) {
    HttpPages pages = {.metrics = [this] { return MetricsPage(); },
                       .ready = [this] { return draining_ ? absl::UnavailableError("draining") : absl::OkStatus(); }};
    if (!options.console) return pages;
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);  // what the services answer has bounds of its own
    console_ = std::make_unique<Console>(server_->InProcessChannel(arguments), *identity_, *options.console);
    pages.console = {.add_to = [this](httplib::Server& http) { console_->AddTo(http); },
                     .threads = Console::kCallsMax,
                     .body_bytes_max = Console::kBodyBytesMax,
                     .posts = Console::kApi};
    return pages;
  }

  absl::Status ListenOpenAi(const ServerOptions& options) {
    if (!options.openai) return absl::OkStatus();
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);  // what the services answer has bounds of its own
    EBB_ASSIGN(openai_, OpenAiFront::Start(*options.openai,
                                           {.model = model_name_,
                                            .context = context_,
                                            .body_bytes_max = static_cast<size_t>(options.message_bytes_max),
                                            .tls = options.openai->tls ? tls_.get() : nullptr,
                                            .refused = [this](const absl::Status& why) { metrics_.CountRefusal(why); }},
                                           server_->InProcessChannel(arguments)));
    return absl::OkStatus();
  }

  void SetServing(bool serving) {
    grpc::HealthCheckServiceInterface& health = *server_->GetHealthCheckService();
    health.SetServingStatus(serving);
    for (const auto* service : AllServices()) health.SetServingStatus(service->full_name(), serving);
  }

  // Null where sessions are not journaled.
  std::unique_ptr<Journal> MakeJournal(const ServerOptions& options, std::unique_ptr<SessionStore> shared) const {
    const Sync sync = options.durability == Durability::kSync ? Sync::kInputs : Sync::kNone;
    std::unique_ptr<SessionStore> store = std::move(shared);
    if (files_ != nullptr) store = std::make_unique<FolderStore>(*files_, sync, metrics_.journal());
    return store == nullptr ? nullptr : std::make_unique<Journal>(std::move(store), &SnapshotOf, metrics_.journal());
  }
  DispatcherOptions WorkFor(const ServerOptions& options) {
    DispatcherOptions work = options.work;
    work.journal = journal_.get();
    work.draft_engine = draft_.engine.get();
    work.draft_policy = draft_.policy;
    work.swap = {.folder = swap_.get(), .seal = &SnapshotOf, .load = &LoadSession};
    work.experiments = &experiments_;
    return work;
  }

  void Keep() {
    if (durability_ != Durability::kDrain) return;
    const KeptSessions sum = KeepSessions(worker_, *store_, metrics_.store());
    LogInfo("kept", {{"sessions", sum.kept}, {"failed", sum.failed}}, "the next server begins with them");
  }

  std::string MetricsPage() {
    if (tls_ != nullptr) metrics_.SetCertificateEnd(tls_->certificate_end());
    std::error_code none;
    if (const auto space = std::filesystem::space(store_dir_, none); !none) {
      metrics_.SetStoreSpace(static_cast<int64_t>(space.available), static_cast<int64_t>(space.capacity));
    }
    return metrics_.Serialize() + ExperimentMetrics(experiments_.List());
  }

  // Once gRPC is down, no call is left and the worker may go.
  void Stop(absl::Duration patience) {
    if (server_ == nullptr) return;
    acceptor_->Stop();
    server_->Shutdown(absl::ToChronoTime(absl::Now() + patience));
    server_->Wait();
    openai_.reset();
    http_.reset();
    console_.reset();
    server_.reset();
  }

  const std::unique_ptr<Identity> identity_;
  const std::unique_ptr<ServerTls> tls_;
  CurrentTenants tenants_;
  TenantSettings tenant_settings_;
  const std::string model_name_;
  const int32_t context_;  // tokens that the model was trained with
  const Durability durability_;
  const std::string store_dir_;
  const DraftModel draft_;
  const std::unique_ptr<Metrics> owned_metrics_;
  Metrics& metrics_ = *owned_metrics_;
  OpenStreams streams_;
  const std::unique_ptr<SessionFiles> files_;
  const std::unique_ptr<SwapFolder> swap_;
  RedisStore* const shared_;  // the journal's; null where it is no server's but this one's
  const std::unique_ptr<Journal> journal_;
  Experiments experiments_;
  Worker worker_;
  std::unique_ptr<ExperimentFile> experiment_file_;
  const std::unique_ptr<Takeover> takeover_;
  const std::unique_ptr<Store> store_;
  const ServiceParts parts_;
  SessionService sessions_{parts_};
  InferenceService inference_{parts_};
  EvictionService eviction_{parts_};
  AdminService admin_{parts_};
  std::atomic<bool> draining_ = false;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> door_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Console> console_;
  std::unique_ptr<OpenAiFront> openai_;
  std::unique_ptr<HttpPort> http_;
};

void LogPacks(const PackReport& packs) {
  if (packs.path.empty()) return;
  for (const std::string& trouble : {packs.ignored, packs.not_written}) {
    if (!trouble.empty()) LogWarn("packed_weights", {{"file", packs.path}}, trouble);
  }
  LogInfo("packed_weights",
          {{"file", packs.path}, {"read", packs.read}, {"packed", packs.packed}, {"written", packs.written}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& given) {
  ServerOptions options = given;
  RunningServer::Door door;  // first, since it is quickly said what is wrong with it
  EBB_ASSIGN(door.identity, Identity::Open(options.auth));
  if (options.tls) {
    EBB_ASSIGN(door.tls, ServerTls::Open(*options.tls));
  }
  EBB_ASSIGN(std::unique_ptr<Engine> engine, Engine::Open(options.engine));
  LogPacks(engine->packs());
  EBB_ASSIGN(options.work.tenants, WithPolicies(options.work.tenants, LimitsOf(engine->config())));
  DraftModel draft;
  if (!options.draft.path.empty()) {
    EBB_ASSIGN(draft, OpenDraftModel(options.draft, options.engine, engine->tokenizer()));
    LogPacks(draft.engine->packs());
  }
  auto metrics = std::make_unique<Metrics>(MetricsFor(options, *engine));
  Stores stores;
  if (!options.store_dir.empty()) {
    EBB_ASSIGN(stores.snapshots, SnapshotStore::Open(options.store_dir, options.snapshots_max));
  }
  if (options.swap_bytes_max > 0) {
    EBB_ASSIGN(stores.swap, SwapFolder::Open(options.store_dir, options.swap_bytes_max));
  }
  if (options.shared_store) {
    RedisStoreOptions shared = *options.shared_store;
    shared.endpoint = FormatAddress(options.endpoint.value_or(options.listen));
    EBB_ASSIGN(stores.shared, RedisStore::Open(shared, metrics->journal()));
  } else if (options.durability >= Durability::kStep) {
    EBB_ASSIGN(stores.files, SessionFiles::Open(options.store_dir));
  }
  auto server = std::make_unique<RunningServer>(options, std::move(door), std::move(engine), std::move(draft),
                                                std::move(metrics), std::move(stores));
  server->BringBack();
  if (const absl::Status listening = server->Listen(options); !listening.ok()) {
    server->GiveUp();
    return listening;
  }
  return server;
}

}  // namespace ebb
