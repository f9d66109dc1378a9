// The server as a whole: its models, the four services, health, reflection, and the HTTP port.
//
//   EBB_ASSIGN(auto server, Server::Start(options));
//   WaitForStopSignal();
//   server->Drain(absl::Seconds(30));

#ifndef EBB_SERVER_SERVER_H_
#define EBB_SERVER_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/engine.h"
#include "engine/gpu/device_options.h"
#include "server/address.h"
#include "server/address_limit.h"
#include "server/console.h"
#include "server/dispatcher.h"
#include "server/draft_model.h"
#include "server/experiment_file.h"
#include "server/identity.h"
#include "server/live_file.h"
#include "server/openai_front.h"
#include "server/redis_store.h"
#include "server/tenants.h"
#include "server/tls.h"

namespace ebb {

// What of a session outlives the server.
enum class Durability {
  kOff,    // nothing
  kDrain,  // all, over a planned restart
  kStep,   // all that a client was told, when the process is killed: a journal
  kSync,   // likewise when the power is cut
};

// A model beside the one that the server starts with.
struct ModelSpec {
  std::string path = {};
  std::string calibration_path = {}, head_gates_path = {};  // empty: the files beside the model
  int32_t threads = 0;                                      // 0: as many as the process may run on
  int64_t arena_bytes = 256 << 20;                          // of its sessions' K and V
  Accuracy accuracy = Accuracy::kFast;
  std::string worker = {};  // as DeviceOptions' kind, and so on; empty: the CPU alone
  int32_t gpu_device = 0;
  int64_t gpu_arena_bytes = 0;

  bool operator==(const ModelSpec&) const = default;
};
using ModelTable = std::map<std::string, ModelSpec>;  // by resource names

struct ServerOptions {
  Address listen = {.host = "127.0.0.1", .port = 7700};  // port 0: any free one
  std::optional<Address> http_listen = {};
  std::optional<Address> health_listen = {};        // of gRPC's health protocol, without TLS
  absl::Duration stall_timeout = absl::Minutes(5);  // of one step, then the server says it is not alive; zero: never
  std::optional<ConsoleOptions> console = {};       // on http_listen; none: there is none. Not with client certificates
  std::optional<OpenAiOptions> openai = {};         // none: no such port. Not with client certificates
  AuthOptions auth = {};
  std::optional<TlsOptions> tls = {};                     // none: plain HTTP/2
  std::optional<bool> reflection = {};                    // default: where nobody has to say who they are
  int64_t message_bytes_max = 4 << 20;                    // of a request
  int64_t plan_bytes_max = 4 << 20;                       // of a PlanEviction request
  size_t stream_buffer = 64;                              // messages that a stream may hold back
  absl::Duration connection_age_max = absl::Minutes(30);  // zero: never
  ConnectionLimits of_an_address = {};                    // to the gRPC port
  absl::Duration keepalive = absl::Seconds(60);
  std::string model_name = {};                         // empty: what the file calls itself, else its file name
  std::string store_dir = {};                          // empty: nothing outlives the server
  int64_t swap_bytes_max = 0;                          // 0: no session is swapped; else REQUIRES a store
  int32_t snapshots_max = 1000;                        // of a tenant
  Durability durability = Durability::kOff;            // all others REQUIRE a store
  std::optional<RedisStoreOptions> shared_store = {};  // of journals, in the place of store_dir; REQUIRES kStep
  std::optional<Address> endpoint = {};                // where clients reach it; empty: where it listens
  EngineOptions engine = {};
  DeviceOptions device = {};  // that computes beside it; its kind empty: none does
  DraftModelOptions draft = {};
  ModelTable models = {};  // beside it: they are loaded while it takes calls. Not with shared_store
  DispatcherOptions work = {};
  std::optional<ExperimentFileOptions> experiments = {};  // none: only those that AdminService starts
};

class Server {
 public:
  // Serves when it returns, and reads the files of `options` again while it runs. Errors of Identity::Open,
  // ServerTls::Open, ServedModel::Open, WithPolicies, SetModels, KeptExperiments::Open, ExperimentFile::Open,
  // HttpPort::Start, HealthPort::Start and OpenAiFront::Start; UNAVAILABLE PORT_UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);

  virtual ~Server() = default;  // ends every call at once

  virtual Address address() const = 0;  // with the port in use
  virtual std::optional<Address> http_address() const = 0;
  virtual std::optional<Address> health_address() const = 0;
  virtual std::optional<Address> openai_address() const = 0;

  // Any thread. INVALID_ARGUMENT, as WithPolicies, or BAD_VALUE naming the key, where these could never be the
  // server's; of models also where one that would be loaded is no model by its header (CheckModelHeader).
  virtual absl::Status CheckTenants(const TenantTable& tenants) const = 0;
  virtual absl::Status CheckModels(const ModelTable& models) const = 0;
  // Any thread. The weights, quotas and policies of tenants, listed or not, from now on. What CheckTenants refuses
  // changes nothing.
  virtual absl::Status SetTenants(const TenantTable& tenants) = 0;
  // Any thread. Of all models, from now on.
  virtual void SetLive(const LiveOptions& live) = 0;
  // Any thread. How many connections to the gRPC port an address may have and begin, from the next one on.
  virtual void SetConnectionLimits(const ConnectionLimits& of_an_address) = 0;
  // Any thread. Which models there are beside the one that the server started with: those that are new are loaded,
  // those that are gone may finish their calls for `patience`, and whoever watches is told of each. What CheckModels
  // refuses changes nothing, but for a file that is no model: it is found so when it is loaded.
  virtual absl::Status SetModels(const ModelTable& models, absl::Duration patience) = 0;
  // Any thread. `file` is read with those of the options, until Drain. REQUIRES: what is good of it is taken.
  virtual void AddLiveFile(LiveFile file) = 0;
  // Any thread. Has all of them read now, as ReloadConfig; what comes of it is logged.
  virtual void Reload() = 0;

  // Health says NOT_SERVING and nothing new is taken; calls that run may go on for `patience`. Returns when all are
  // over and their streams are written, or a few seconds later, and sessions that are to be kept are in the store.
  virtual void Drain(absl::Duration patience) = 0;
};

}  // namespace ebb

#endif  // EBB_SERVER_SERVER_H_
