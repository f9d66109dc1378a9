#include "server/served_model.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "engine/gpu/placed_engine.h"
#include "policies/status.h"
#include "server/folder_store.h"
#include "server/log.h"
#include "server/saved_session.h"
#include "server/tenant_policies.h"
#include "server/version.h"

namespace ebb {
namespace {

std::string ServedName(const ServerOptions& options, const ModelConfig& config) {
  if (!options.model_name.empty()) return options.model_name;
  return NameOfModel(config, options.engine.model_path);
}

std::unique_ptr<Metrics> MetricsFor(const ServerOptions& options, const Engine& engine,
                                    const ServedModel::Shared& shared) {
  MetricsOptions metrics = {.version = std::string(Version()),
                            .revision = std::string(Revision()),
                            .backend = engine.fingerprint(),
                            .grpc_version = grpc::Version(),
                            .model = ServedName(options, engine.config()),
                            .pages = engine.memory().pages_total,
                            .page_bytes = engine.memory().page_bytes,
                            .lanes = engine.config().layers * engine.config().kv_heads,
                            .head_dim = engine.config().head_dim,
                            .step_tokens_max = engine.step_tokens_max(),
                            .device = engine.device_use(),
                            .methods = shared.methods,
                            .server = shared.server_metrics};
  const std::shared_ptr<const TenantTable> tenants = shared.tenants.get();  // may be replaced meanwhile
  for (const auto& [tenant, _] : tenants->listed) metrics.tenants.push_back(tenant);
  return std::make_unique<Metrics>(metrics);
}

// Of sessions that name no policy, where their tenant has none of its own.
KvType DefaultKvType(const ServerOptions& options, const ModelConfig& model) {
  const auto tenants = WithPolicies({.unlisted = options.work.tenants.unlisted}, LimitsOf(model));
  return tenants.ok() && tenants->unlisted.default_policy ? tenants->unlisted.default_policy->kv_type
                                                          : PolicySpec().kv_type;
}

void LogDevice(const Engine& engine, const ServerOptions& options) {
  const std::optional<DeviceUse> device = engine.device_use();
  if (!device) return;
  LogInfo("gpu",
          {{"kind", device->name},
           {"device", device->description},
           {"weight_bytes", device->weight_bytes},
           {"pages", device->pages_total},
           {"page_bytes", device->page_bytes}},
          "a GPU computes the sessions that it can");
  LogInfo("gpu_products", {{"by", device->products}}, "what multiplies prompts with BF16 weights");
  const KvType usual = DefaultKvType(options, engine.config());
  if (usual == options.device.kv_type) return;
  LogWarn("gpu_kv_type", {{"gpu", NameOf(options.device.kv_type)}, {"sessions", NameOf(usual)}},
          "sessions that name no policy have another type of K and V than model.gpu_kv_type, so that the CPU computes "
          "them: set that, or cache.kv_dtype of their policies (tenant_defaults.policy)");
}

void LogPacks(const PackReport& packs) {
  if (packs.path.empty()) return;
  for (const std::string& trouble : {packs.ignored, packs.not_written}) {
    if (!trouble.empty()) LogWarn("packed_weights", {{"file", packs.path}}, trouble);
  }
  LogInfo("packed_weights",
          {{"file", packs.path}, {"read", packs.read}, {"packed", packs.packed}, {"written", packs.written}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServedModel>> ServedModel::Open(const ServerOptions& options, const Shared& shared) {
  EBB_ASSIGN(std::unique_ptr<Engine> engine, options.device.kind.empty()
                                                 ? Engine::Open(options.engine)
                                                 : OpenPlacedEngine(options.engine, options.device));
  LogDevice(*engine, options);
  LogPacks(engine->packs());
  DraftModel draft;
  if (!options.draft.path.empty()) {
    EBB_ASSIGN(draft, OpenDraftModel(options.draft, options.engine, engine->tokenizer()));
    LogPacks(draft.engine->packs());
  }
  std::unique_ptr<Metrics> metrics = MetricsFor(options, *engine, shared);
  EBB_ASSIGN(Stores stores, OpenStores(options, *metrics));
  return std::unique_ptr<ServedModel>(
      new ServedModel(options, shared, std::move(engine), std::move(draft), std::move(metrics), std::move(stores)));
}

absl::StatusOr<std::vector<SessionName>> ServedModel::SessionsKept(const ServerOptions& options) {
  std::vector<SessionName> names;
  if (options.durability == Durability::kOff || options.store_dir.empty()) return names;
  EBB_ASSIGN(const auto kept, SnapshotStore::Open(options.store_dir, options.snapshots_max));
  EBB_ASSIGN(names, NamesKept(*kept));
  if (options.durability < Durability::kStep) return names;
  EBB_ASSIGN(const auto journaled, SessionFiles::Open(options.store_dir));
  EBB_ASSIGN(const std::vector<SessionName> all, journaled->Names());
  names.insert(names.end(), all.begin(), all.end());
  return names;
}

absl::StatusOr<ServedModel::Stores> ServedModel::OpenStores(const ServerOptions& options, Metrics& metrics) {
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
    EBB_ASSIGN(stores.shared, RedisStore::Open(shared, metrics.journal()));
  } else if (options.durability >= Durability::kStep) {
    EBB_ASSIGN(stores.files, SessionFiles::Open(options.store_dir));
  }
  return stores;
}

ServedModel::ServedModel(const ServerOptions& options, const Shared& shared, std::unique_ptr<Engine> engine,
                         DraftModel draft, std::unique_ptr<Metrics> metrics, Stores stores)
    : id_(shared.id),
      name_(ServedName(options, engine->config())),
      durability_(options.durability),
      draft_(std::move(draft)),
      metrics_(std::move(metrics)),
      files_(std::move(stores.files)),
      swap_(std::move(stores.swap)),
      recovery_(files_ != nullptr && engine->device_use() ? std::make_unique<Recovery>(*files_, metrics_->journal())
                                                          : nullptr),
      redis_(stores.shared.get()),
      folder_health_(files_ == nullptr ? nullptr : std::make_unique<FolderHealth>(options.store_dir + "/journals")),
      journal_(MakeJournal(options, std::move(stores.shared))),
      worker_(std::move(engine), WorkFor(options, shared), *metrics_),
      store_(MakeStore(std::move(stores.snapshots), shared)) {
  if (recovery_ != nullptr) recovery_->Start(worker_);
}

ServedModel::~ServedModel() {
  if (recovery_ != nullptr) recovery_->Stop();  // while the worker is there
}

// Null where nothing is kept. Clients' snapshots are all in the main model's.
std::unique_ptr<Store> ServedModel::MakeStore(std::unique_ptr<SnapshotStore> files, const Shared& shared) const {
  if (files == nullptr) return nullptr;
  if (shared.server_metrics == nullptr) {
    files->Watch([uses = shared.tenant_uses, &metrics = *metrics_](const std::string& tenant, int64_t bytes) {
      uses->SetSnapshots(tenant, bytes, metrics.tenant(tenant));
    });
  }
  return std::make_unique<Store>(std::move(files));
}

// Null where sessions are not journaled.
std::unique_ptr<Journal> ServedModel::MakeJournal(const ServerOptions& options,
                                                  std::unique_ptr<SessionStore> shared) const {
  const Sync sync = options.durability == Durability::kSync ? Sync::kInputs : Sync::kNone;
  std::unique_ptr<SessionStore> store = std::move(shared);
  if (files_ != nullptr) store = std::make_unique<FolderStore>(*files_, sync, *folder_health_, metrics_->journal());
  return store == nullptr ? nullptr : std::make_unique<Journal>(std::move(store), &SnapshotOf, metrics_->journal());
}

DispatcherOptions ServedModel::WorkFor(const ServerOptions& options, const Shared& shared) {
  DispatcherOptions work = options.work;
  work.tenants = *shared.tenants.get();
  work.journal = journal_.get();
  if (recovery_ != nullptr) work.recover = [this](const SessionName& name) { recovery_->Add(name); };
  work.draft_engine = draft_.engine.get();
  work.draft_policy = draft_.policy;
  work.swap = {.folder = swap_.get(), .seal = &SnapshotOf, .load = &LoadSession};
  work.experiments = shared.experiments;
  work.clock = shared.clock;
  work.tenant_uses = shared.tenant_uses;
  work.session_names = &shared.names;
  work.model = id_;
  return work;
}

absl::StatusOr<KeptSessions> ServedModel::BringBack() {
  KeptSessions sum;
  if (durability_ == Durability::kOff) return sum;
  if (store_ != nullptr) {
    EBB_ASSIGN(sum, BringBackSessions(worker_, *store_, metrics_->store()));
  }
  if (files_ != nullptr) {
    EBB_ASSIGN(const KeptSessions journaled,
               BringBackJournals(worker_, *files_, *journal_, metrics_->journal(), swap_ != nullptr));
    sum.kept += journaled.kept;
    sum.failed += journaled.failed;
  }
  return sum;
}

void ServedModel::Keep() {
  if (durability_ != Durability::kDrain) return;
  const KeptSessions sum = KeepSessions(worker_, *store_, metrics_->store());
  LogInfo("kept", {{"model", name_}, {"sessions", sum.kept}, {"failed", sum.failed}},
          "the next server begins with them");
}

}  // namespace ebb
