// ebbd: reads the configuration, starts the server, waits for a signal, drains.
//
// Exit codes: 0 after a drain or when asked for help; 1 when it cannot start; 2 for a configuration that is wrong, in
// a key or in how keys go together.

#include <grpc/grpc.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "engine/model/calibration_file.h"
#include "engine/model/head_gates_file.h"
#include "policies/status.h"
#include "server/address.h"
#include "server/config.h"
#include "server/config_file.h"
#include "server/drain.h"
#include "server/library_logs.h"
#include "server/live_config.h"
#include "server/log.h"
#include "server/low_priority.h"
#include "server/server.h"
#include "server/version.h"

namespace ebb {
namespace {

constexpr char kBuiltInModel[] = "models/ebb-tiny-q8_0.gguf";

enum ExitCode { kDone = 0, kCannotStart = 1, kBadConfig = 2 };

bool IsLoopback(std::string_view host) { return host == "127.0.0.1" || host == "::1" || host == "localhost"; }

int Fail(ExitCode code, const absl::Status& status) {
  std::fprintf(stderr, "ebbd: %s\n", std::string(status.message()).c_str());
  return code;
}

// Of what was found out after each key was read by itself.
int FailToStart(const absl::Status& status) {
  return Fail(GetRefusal(status).reason == "BAD_VALUE" ? kBadConfig : kCannotStart, status);
}

// The model that comes with Ebb: in the folder where ebbd is started, or where a build or an installation puts it.
absl::StatusOr<std::string> FindBuiltInModel() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  const std::vector<fs::path> places = {kBuiltInModel, folder / "../.." / kBuiltInModel,
                                        folder / "../share/ebb" / kBuiltInModel};
  std::string looked;
  for (const fs::path& place : places) {
    if (fs::exists(place, error)) return place.lexically_normal().string();
    looked += absl::StrFormat("%s%s", looked.empty() ? "" : ", ", place.lexically_normal().string());
  }
  return Refuse(absl::StatusCode::kNotFound,
                absl::StrFormat("the built-in model is not there; name a model with --model (looked for %s)", looked),
                {.reason = "NO_MODEL"});
}

// REQUIRES: one of the key's choices.
Durability DurabilityFrom(std::string_view choice) {
  if (choice == "drain") return Durability::kDrain;
  if (choice == "step") return Durability::kStep;
  return choice == "sync" ? Durability::kSync : Durability::kOff;
}

absl::StatusOr<RedisStoreOptions> SharedStoreFrom(const config::v1::Store& config) {
  if (config.durability() != "step") {
    return RefuseField("BAD_VALUE", "store.durability",
                       absl::StrFormat("%s: store.redis takes step alone; what Redis has synced it does not say",
                                       config.durability()));
  }
  RedisStoreOptions options = {.prefix = config.redis_prefix(),
                               .lease = ToDuration(config.lease()),
                               .patience = ToDuration(config.redis_patience())};
  EBB_ASSIGN(options.redis.address, ParseAddress(config.redis()));
  const std::string& file = config.redis_password_file();
  if (!file.empty() && ReadRedisPassword(file).empty()) {
    return RefuseField("BAD_VALUE", "store.redis_password_file",
                       absl::StrFormat("%s: a password is expected on its first line", file));
  }
  options.redis.password_file = file;
  return options;
}

absl::Status SetAccess(const config::v1::Config& config, ServerOptions& options) {
  const std::string& mode = config.auth().mode();
  options.auth = {.token = mode.starts_with("token"),
                  .certificate = mode.ends_with("mtls"),
                  .token_file = config.auth().token_file(),
                  .reload = ToDuration(config.auth().reload())};
  const config::v1::Tls& tls = config.tls();
  if (!tls.cert().empty()) {
    options.tls = {
        .cert = tls.cert(), .key = tls.key(), .client_ca = tls.client_ca(), .reload = ToDuration(tls.reload())};
  }
  if (config.server().reflection() != "auto") options.reflection = config.server().reflection() == "on";
  const auto goes_with = [](const char* key, const std::string& what) { return RefuseField("BAD_VALUE", key, what); };
  if (options.auth.token && options.auth.token_file.empty()) {
    return goes_with("auth.token_file", "auth.mode asks for tokens, and it is empty");
  }
  if (!options.auth.token && !options.auth.token_file.empty()) {
    return goes_with("auth.token_file",
                     absl::StrFormat("auth.mode is %s, which asks for no token: leave it out, or set %s", mode,
                                     options.auth.certificate ? "token+mtls" : "token"));
  }
  if (options.auth.certificate && tls.client_ca().empty()) {
    return goes_with("tls.client_ca", "auth.mode asks for client certificates, and it is empty");
  }
  if (tls.cert().empty() != tls.key().empty()) return goes_with("tls.key", "it goes with tls.cert: set both or none");
  if (tls.cert().empty() && !tls.client_ca().empty()) return goes_with("tls.cert", "tls.client_ca needs it");
  return absl::OkStatus();
}

// A page has no client certificate to show: where callers need one there is no console, unless it is asked for, which
// is refused. REQUIRES: the listening addresses and what SetAccess sets are set.
absl::Status SetConsole(const config::v1::Server& config, ServerOptions& options) {
  const auto cannot = [&](const char* why) { return RefuseField("BAD_VALUE", "server.console", why); };
  if (config.console() == "off") return absl::OkStatus();
  if (config.console() == "auto") {
    const bool local = options.http_listen && IsLoopback(options.http_listen->host);
    if (!local || options.auth.certificate) return absl::OkStatus();
  }
  if (!options.http_listen) return cannot("on: it is served on server.http_listen, which is empty");
  if (options.auth.certificate) return cannot("on: auth.mode asks for a client certificate, which a page cannot show");
  options.console = ConsoleOptions{.hosts = absl::StrSplit(config.console_hosts(), ',', absl::SkipWhitespace())};
  for (std::string& host : options.console->hosts) host = std::string(absl::StripAsciiWhitespace(host));
  options.console->hosts.push_back(options.http_listen->host);
  return absl::OkStatus();
}

void WarnOfConsole(const ServerOptions& options) {
  if (!options.console || IsLoopback(options.http_listen->host)) return;
  const std::string http = FormatAddress(*options.http_listen);
  if (options.auth.on()) {
    LogWarn("tokens_in_the_clear", {{"http", http}},
            "the console's tokens come without TLS: who reads the network has them; let only a proxy reach the port");
  } else {
    LogWarn("console_is_open", {{"http", http}},
            "whoever reaches the HTTP port may use the server under any tenant's name; set auth.mode to token");
  }
}

// Its callers have no client certificate to show. REQUIRES: what SetAccess sets is set.
absl::Status SetOpenAi(const config::v1::OpenAi& config, ServerOptions& options) {
  if (config.listen().empty()) return absl::OkStatus();
  if (options.auth.certificate) {
    return RefuseField("BAD_VALUE", "openai.listen",
                       "auth.mode asks for a client certificate, which a caller of this port cannot show");
  }
  const bool tls = config.tls() == "on";
  if (tls && !options.tls) {
    return RefuseField("BAD_VALUE", "openai.tls", "it takes the certificate of tls.cert, and there is none");
  }
  options.openai = {.tls = tls,
                    .requests_max = static_cast<int>(config.requests_max()),
                    .session_ttl = ToDuration(config.session_ttl())};
  EBB_ASSIGN(options.openai->listen, ParseAddress(config.listen()));
  return absl::OkStatus();
}

KvType KvTypeFrom(const std::string& name) {
  static constexpr std::pair<std::string_view, KvType> kTypes[] = {
      {"f32", KvType::kF32}, {"f16", KvType::kF16}, {"int8", KvType::kInt8}, {"fp8", KvType::kFp8}};
  for (const auto& [known, type] : kTypes) {
    if (name == known) return type;
  }
  return KvType::kBf16;
}

ProductsBy ProductsFrom(const std::string& name) {
  return name == "own" ? ProductsBy::kOwn : name == "library" ? ProductsBy::kLibrary : ProductsBy::kAuto;
}

absl::StatusOr<ServerOptions> OptionsFrom(const config::v1::Config& config) {
  LiveConfig live = LiveFrom(config);
  ServerOptions options = {.message_bytes_max = static_cast<int64_t>(config.server().message_size_max()),
                           .plan_bytes_max = static_cast<int64_t>(config.server().plan_size_max()),
                           .stream_buffer = config.server().stream_buffer(),
                           .connection_age_max = ToDuration(config.server().connection_age_max()),
                           .of_an_address = live.of_an_address,
                           .keepalive = ToDuration(config.server().keepalive()),
                           .model_name = config.model().name(),
                           .store_dir = config.store().dir(),
                           .snapshots_max = static_cast<int32_t>(config.store().snapshots_max()),
                           .durability = DurabilityFrom(config.store().durability())};
  if (!config.store().redis().empty()) {
    EBB_ASSIGN(options.shared_store, SharedStoreFrom(config.store()));
  } else if (options.durability != Durability::kOff && options.store_dir.empty()) {
    return RefuseField("BAD_VALUE", "store.durability",
                       absl::StrFormat("%s keeps sessions in store.dir, which is empty", config.store().durability()));
  }
  options.swap_bytes_max = static_cast<int64_t>(config.cache().swap_max());
  if (options.swap_bytes_max > 0 && options.store_dir.empty()) {
    return RefuseField("BAD_VALUE", "cache.swap_max", "sessions are swapped to store.dir, which is empty");
  }
  EBB_ASSIGN(options.listen, ParseAddress(config.server().listen()));
  if (!config.server().http_listen().empty()) {
    EBB_ASSIGN(options.http_listen, ParseAddress(config.server().http_listen()));
  }
  if (!config.server().health_listen().empty()) {
    EBB_ASSIGN(options.health_listen, ParseAddress(config.server().health_listen()));
  }
  options.stall_timeout = ToDuration(config.server().stall_timeout());
  if (!config.server().endpoint().empty()) {
    EBB_ASSIGN(options.endpoint, ParseAddress(config.server().endpoint()));
  }
  EBB_TRY(SetAccess(config, options));
  EBB_TRY(SetConsole(config.server(), options));
  EBB_TRY(SetOpenAi(config.openai(), options));
  options.engine = {.model_path = config.model().path(),
                    .calibration_path = config.model().calibration(),
                    .head_gates_path = config.model().head_gates(),
                    .threads = static_cast<int32_t>(config.model().threads()),
                    .arena_bytes = static_cast<int64_t>(config.cache().arena()),
                    .prefix_share = config.cache().prefix_share(),
                    .step_tokens_max = static_cast<int32_t>(config.scheduling().step_tokens_max()),
                    .accuracy = config.model().accuracy() == "exact" ? Accuracy::kExact : Accuracy::kFast,
                    .isa = config.model().isa(),
                    .pack_cache = config.model().pack_cache()};
  if (options.engine.model_path.empty()) {
    EBB_ASSIGN(options.engine.model_path, FindBuiltInModel());
  }
  options.device = {.kind = DeviceKind(config.model().worker()),
                    .folder = config.model().gpu_libraries(),
                    .device = static_cast<int32_t>(config.model().gpu_device()),
                    .arena_bytes = static_cast<int64_t>(config.model().gpu_arena()),
                    .kv_type = KvTypeFrom(config.model().gpu_kv_type()),
                    .products = ProductsFrom(config.model().gpu_products())};
  EngineOptions& engine = options.engine;
  if (engine.calibration_path.empty()) engine.calibration_path = CalibrationPath(engine.model_path);
  if (engine.head_gates_path.empty()) engine.head_gates_path = HeadGatesPath(engine.model_path);
  options.draft = {.path = config.model().draft(),
                   .budget = static_cast<int32_t>(config.model().draft_budget()),
                   .arena_bytes = static_cast<int64_t>(config.model().draft_arena())};
  options.models = std::move(live.models);
  options.work = {.live = live.work, .step_rows_max = static_cast<int32_t>(config.scheduling().rows_max())};
  options.work.tenants = std::move(live.tenants);
  if (!config.experiments().file().empty()) {
    options.experiments = {.path = config.experiments().file(), .reload = ToDuration(config.experiments().reload())};
  }
  return options;
}

// Every connection is a file, and what the shell allows by default is few.
void AllowFiles() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// What of a configuration a running server takes.
ConfigFile::Steps StepsOf(Server& server) {
  return {.check =
              [&server](const config::v1::Config& now) {
                const LiveConfig live = LiveFrom(now);
                EBB_TRY(server.CheckModels(live.models));
                return server.CheckTenants(live.tenants);
              },
          .take =
              [&server](const config::v1::Config& now) {
                const LiveConfig live = LiveFrom(now);
                EBB_TRY(server.SetTenants(live.tenants));
                EBB_TRY(server.SetModels(live.models, live.drain_timeout));
                server.SetLive(live.work);
                server.SetConnectionLimits(live.of_an_address);
                SetLogLevel(live.log_level);
                return absl::OkStatus();
              }};
}

// gRPC, begun before anything that uses it, so that its timers and executors have the priority meant for them.
class GrpcLibrary {
 public:
  GrpcLibrary() { AtLowPriority(grpc_init); }
  ~GrpcLibrary() { grpc_shutdown(); }
  GrpcLibrary(const GrpcLibrary&) = delete;
  GrpcLibrary& operator=(const GrpcLibrary&) = delete;
};

int Serve(const CommandLine& line, const LoadedConfig& loaded) {
  const config::v1::Config& config = loaded.config;
  const auto log = StartLog({.level = LiveFrom(config).log_level,
                             .format = ParseLogFormat(config.log().format()).value_or(LogFormat::kText)});
  if (!log.ok()) return Fail(kCannotStart, log.status());
  const LibraryLogs library_logs;
  for (const std::string& warning : loaded.warnings) LogWarn("config", {}, warning);
  auto options = OptionsFrom(config);
  if (!options.ok()) return FailToStart(options.status());
  const GrpcLibrary grpc_library;
  const auto server = Server::Start(*options);
  if (!server.ok()) return FailToStart(server.status());
  std::optional<ConfigFile> file;
  if (!line.config_file.empty()) {
    file.emplace(line, ReadVariables(environ), loaded, StepsOf(**server));
    (*server)->AddLiveFile(file->AsLiveFile());
  }

  const std::string listen = FormatAddress((*server)->address());
  const auto http = (*server)->http_address();
  const auto health = (*server)->health_address();
  const auto openai = (*server)->openai_address();
  LogInfo("listening",
          {{"grpc", listen},
           {"http", http ? FormatAddress(*http) : ""},
           {"console", options->console ? absl::StrFormat("http://%s/console", FormatAddress(*http)) : ""},
           {"health", health ? FormatAddress(*health) : ""},
           {"openai", openai ? FormatAddress(*openai) : ""},
           {"model", options->engine.model_path},
           {"calibration", options->engine.calibration_path},
           {"head_gates", options->engine.head_gates_path},
           {"draft", options->draft.path}},
          "the server takes calls");
  if (options->auth.token && !options->tls && !IsLoopback(options->listen.host)) {
    LogWarn(
        "tokens_in_the_clear", {{"grpc", listen}},
        "tokens come without TLS: who reads the network has them; set tls.cert, or let only a proxy reach the port");
  }
  const bool wants_certificates = options->tls && !options->tls->client_ca.empty();
  if (!options->auth.on() && !wants_certificates && !IsLoopback(options->listen.host)) {
    LogWarn("grpc_is_open", {{"grpc", listen}},
            "whoever reaches the port may use the server under any tenant's name, and as an admin; set auth.mode");
  }
  WarnOfConsole(*options);
  if (openai && !IsLoopback(openai->host)) {
    if (options->auth.on() && !options->openai->tls) {
      LogWarn("tokens_in_the_clear", {{"openai", FormatAddress(*openai)}},
              "tokens come to openai.listen without TLS: who reads the network has them; set openai.tls, or let only a "
              "proxy reach the port");
    } else if (!options->auth.on()) {
      LogWarn("openai_is_open", {{"openai", FormatAddress(*openai)}},
              "whoever reaches openai.listen may use the server under any tenant's name; set auth.mode to token");
    }
  }
  const int signal = WaitForStopSignal([&] { (*server)->Reload(); });
  LogInfo("draining", {{"signal", signal}}, "running calls may finish; another signal stops them at once");
  const config::v1::Config in_force = file ? file->in_force() : config;
  (*server)->Drain(LiveFrom(in_force).drain_timeout);
  LogInfo("stopped");
  return kDone;
}

int Main(const std::vector<std::string>& arguments) {
  const auto line = ParseCommandLine(arguments);
  if (!line.ok()) return Fail(kBadConfig, line.status());
  if (line->action == CommandLine::Action::kHelp) {
    std::fputs(ConfigHelp().c_str(), stdout);
    return kDone;
  }
  if (line->action == CommandLine::Action::kVersion) {
    std::printf("ebbd %s (%s)\n", std::string(Version()).c_str(), std::string(Revision()).c_str());
    return kDone;
  }
  const auto loaded = LoadConfig(*line, ReadVariables(environ));
  if (!loaded.ok()) return Fail(kBadConfig, loaded.status());
  if (line->action == CommandLine::Action::kPrintConfig) {
    std::fputs(ExplainConfig(*loaded).c_str(), stdout);
    return kDone;
  }
  return Serve(*line, *loaded);
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) {
  // Debian's Abseil looks for cycles at every lock of a mutex that another is held at, gRPC's among them, and all
  // threads take turns at it. Tests do without this, so that they would find one.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  ebb::HoldSignals();  // before there is another thread
  signal(SIGPIPE, SIG_IGN);
  ebb::AllowFiles();
  return ebb::Main({argv + 1, argv + argc});
}
