#include "server/metrics.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "policies/check.h"
#include "policies/registry.h"
#include "policies/status.h"
#include "server/log.h"
#include "server/model_state.h"
#include "server/process_stats.h"

namespace ebb {
namespace {

constexpr int kCodes = 17;              // of google.rpc.Code
constexpr size_t kReasonsMax = 128;     // reasons are ours, but a label must have a bound
constexpr size_t kExperimentsMax = 64;  // likewise, of experiments, each with a few arms
constexpr char kDefaultTenant[] = "default";
constexpr char kOther[] = "other";

// UNAVAILABLE, and no error: it is told when to try again, or where. deploy/prometheus takes them off the errors, for
// which each must be there before its first; tests/e2e/alerts_test.py holds the two together.
constexpr std::string_view kLoadReasons[] = {"DRAINING",      "MODEL_LOADING",      "MODEL_UNLOADING",
                                             "NO_PAGES",      "QUEUE_FULL",         "SESSIONS_FULL",
                                             "SESSION_MOVED", "SESSION_RECOVERING", "WATCHERS_FULL"};
// Of other codes, likewise under load. All further reasons appear with their first refusal.
constexpr std::string_view kBusyReasons[] = {"SLOW_READER", "SESSION_BUSY"};
// Of UNAUTHENTICATED and PERMISSION_DENIED: identity.cc.
constexpr std::string_view kAuthReasons[] = {"NO_CREDENTIAL", "BAD_CREDENTIAL", "NAMELESS_CERTIFICATE", "OTHER_TENANT",
                                             "ADMIN_ONLY"};
constexpr std::string_view kErrorReasons[] = {"UNKNOWN", "INTERNAL", "DATA_LOSS"};

// By StateOrigin.
constexpr std::array<std::string_view, kStateOrigins> kStates = {"none",        "carried",        "rebuilt",
                                                                 "from_scores", "from_attention", "empty"};

bool IsOurFault(absl::StatusCode code) {
  return code == absl::StatusCode::kUnknown || code == absl::StatusCode::kInternal ||
         code == absl::StatusCode::kDataLoss;
}

bool IsAboutTheCaller(absl::StatusCode code) {
  return code == absl::StatusCode::kUnauthenticated || code == absl::StatusCode::kPermissionDenied;
}

CacheMetrics MakeCache(MetricFamily& family) {
  return {family.gauge({"reserved"}), family.gauge({"used"}), family.gauge({"free"})};
}

WorkerMetrics MakeWorker(MetricSet& set) {
  MetricFamily& step = set["ebb_step_seconds"];
  MetricFamily& layers = set["ebb_layers_evicted_slots_total"];
  MetricFamily& pages = set["ebb_kv_pages"];
  MetricFamily& phase = set["ebb_request_phase_seconds_total"];
  MetricFamily& drops = set["ebb_shadow_drops_total"];
  MetricFamily& draft_pages = set["ebb_draft_pages"];
  MetricFamily& draft_drops = set["ebb_draft_cache_drops_total"];
  return {
      .prefill_seconds = step.histogram({"prefill"}),
      .decode_seconds = step.histogram({"decode"}),
      .mixed_seconds = step.histogram({"mixed"}),
      .requests_limit = set["ebb_requests_limit"].gauge(),
      .step_tokens = set["ebb_step_tokens"].histogram(),
      .step_tokens_paced = set["ebb_step_tokens_paced"].gauge(),
      .step_rows = set["ebb_step_rows"].histogram(),
      .evicted_slots = {&layers.counter({"1"}), &layers.counter({"2"}), &layers.counter({"3"}), &layers.counter({"4"})},
      .requests_running = set["ebb_requests_running"].gauge(),
      .busy_seconds = set["ebb_worker_busy_seconds"].gauge(),
      .slots = MakeCache(set["ebb_cache_slots"]),
      .bytes = MakeCache(set["ebb_cache_bytes"]),
      .pages = {pages.gauge({"free"}), pages.gauge({"owned"}), pages.gauge({"shared"}), pages.gauge({"kept"})},
      .page_copies = set["ebb_page_copies_total"].counter(),
      .phases = {phase.counter({"queue"}), phase.counter({"prefill"}), phase.counter({"decode"}),
                 phase.counter({"blocked"})},
      .shadows = set["ebb_shadows"].gauge(),
      .shadow_drops = {drops.counter({"pages"}), drops.counter({"length"}), drops.counter({"no_room"})},
      .drafts = {.caches = set["ebb_draft_caches"].gauge(),
                 .reserved_pages = draft_pages.gauge({"reserved"}),
                 .free_pages = draft_pages.gauge({"free"}),
                 .seconds = set["ebb_draft_seconds"].histogram(),
                 .drops_pages = draft_drops.counter({"pages"}),
                 .drops_length = draft_drops.counter({"length"}),
                 .drafts_no_room = set["ebb_drafts_without_room_total"].counter()},
      .shadow_steps_without = set["ebb_shadow_steps_without_total"].counter(),
      .past_context_sessions = set["ebb_past_context_sessions_total"].counter(),
      .gpu_sessions_lost = set["ebb_gpu_sessions_lost_total"].counter()};
}

StoreMetrics MakeStore(MetricSet& set) {
  MetricFamily& bytes = set["ebb_snapshot_bytes_total"];
  MetricFamily& seconds = set["ebb_snapshot_seconds"];
  return {.saved_bytes = bytes.counter({"save"}),
          .restored_bytes = bytes.counter({"restore"}),
          .save_seconds = seconds.histogram({"save"}),
          .restore_seconds = seconds.histogram({"restore"})};
}

ExperimentFileMetrics MakeExperimentFiles(MetricSet& set) {
  MetricFamily& writes = set["ebb_experiment_file_writes_total"];
  return {.written = writes.counter({"ok"}),
          .failed = writes.counter({"failed"}),
          .set_aside = set["ebb_experiment_files_set_aside_total"].counter()};
}

JournalMetrics MakeJournal(MetricSet& set) {
  MetricFamily& bytes = set["ebb_journal_bytes_total"];
  MetricFamily& recovered = set["ebb_recovered_sessions_total"];
  MetricFamily& lease = set["ebb_lease_renewals_total"];
  MetricFamily& taken = set["ebb_taken_sessions_total"];
  return {.record_bytes = bytes.counter({"records"}),
          .snapshot_bytes = bytes.counter({"snapshots"}),
          .commit_seconds = set["ebb_journal_commit_seconds"].histogram(),
          .failures = set["ebb_journal_failures_total"].counter(),
          .brought_back = recovered.counter({"ok"}),
          .set_aside = recovered.counter({"set_aside"}),
          .left = recovered.counter({"left"}),
          .recovery_seconds = set["ebb_recovery_seconds"].histogram(),
          .lease_renewed = lease.counter({"ok"}),
          .lease_late = lease.counter({"late"}),
          .lease_failed = lease.counter({"failed"}),
          .fenced = set["ebb_fenced_sessions_total"].counter(),
          .taken = taken.counter({"ok"}),
          .not_taken = taken.counter({"failed"})};
}

SwapMetrics MakeSwap(MetricSet& set) {
  MetricFamily& swaps = set["ebb_swaps_total"];
  MetricFamily& bytes = set["ebb_swap_bytes_total"];
  MetricFamily& seconds = set["ebb_swap_seconds"];
  MetricFamily& failures = set["ebb_swap_failures_total"];
  return {.sessions = set["ebb_swapped_sessions"].gauge(),
          .file_bytes = set["ebb_swap_file_bytes"].gauge(),
          .out = swaps.counter({"out"}),
          .in = swaps.counter({"in"}),
          .out_bytes = bytes.counter({"out"}),
          .in_bytes = bytes.counter({"in"}),
          .out_seconds = seconds.histogram({"out"}),
          .in_seconds = seconds.histogram({"in"}),
          .out_failures = failures.counter({"out"}),
          .in_failures = failures.counter({"in"})};
}

ReloadMetrics MakeReload(MetricSet& set) {
  MetricFamily& reloads = set["ebb_config_reloads_total"];
  return {.ok = reloads.counter({"ok"}),
          .failed = reloads.counter({"failed"}),
          .is_failing = set["ebb_config_failing"].gauge(),
          .last_good = set["ebb_config_last_good_timestamp_seconds"].gauge()};
}

PolicyMetrics MakePolicy(MetricSet& set, std::string_view name) {
  std::array<Counter*, kStateOrigins> changes = {};
  for (size_t i = 0; i < changes.size(); ++i) changes[i] = &set["ebb_policy_changes_total"].counter({name, kStates[i]});
  return {.changes = changes,
          .evictions = set["ebb_evictions_total"].counter({name}),
          .evicted_tokens = set["ebb_evicted_tokens_total"].counter({name}),
          .evicted_slots = set["ebb_evicted_slots_total"].counter({name}),
          .nan_scores = set["ebb_nan_scores_total"].counter({name}),
          .choosing_seconds = set["ebb_eviction_seconds_total"].counter({name}),
          .ages = set["ebb_evicted_age_tokens"].histogram({name}),
          .mass = set["ebb_eviction_attention_mass_lost"].histogram({name}),
          .error = set["ebb_eviction_output_error"].histogram({name}),
          .cache_tokens = set["ebb_session_cache_tokens"].histogram({name}),
          .shadow_kl = set["ebb_shadow_kl_divergence"].histogram({name}),
          .shadow_tokens = set["ebb_shadow_tokens_total"].counter({name}),
          .shadow_agreed = set["ebb_shadow_top1_agreement_total"].counter({name})};
}

MethodMetrics MakeMethod(MetricSet& set, std::string_view name) {
  MethodMetrics method = {.seconds = set["ebb_rpc_seconds"].histogram({name}), .handled = {}};
  for (int code = 0; code < kCodes; ++code) {
    const std::string label = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
    method.handled.push_back(&set["ebb_rpc_handled_total"].counter({name, label}));
  }
  return method;
}

// FINISH_REASON_MAX_TOKENS is labelled max_tokens.
std::map<int, Counter*> MakeFinished(MetricSet& set) {
  std::map<int, Counter*> finished;
  const auto* reasons = v1::FinishReason_descriptor();
  for (int i = 0; i < reasons->value_count(); ++i) {
    const absl::string_view name = absl::StripPrefix(reasons->value(i)->name(), "FINISH_REASON_");
    finished[reasons->value(i)->number()] = &set["ebb_finished_total"].counter({absl::AsciiStrToLower(name)});
  }
  return finished;
}

}  // namespace

Metrics::Metrics(const MetricsOptions& options)
    : set_(MetricTable()),
      tenants_max_(std::max<size_t>(options.tenants_max, 1)),
      server_(options.server),
      worker_(MakeWorker(set_)),
      store_(MakeStore(set_)),
      experiment_files_(MakeExperimentFiles(set_)),
      journal_(MakeJournal(set_)),
      swap_(MakeSwap(set_)),
      finished_(MakeFinished(set_)) {
  const auto text = [](int64_t number) { return absl::StrFormat("%d", number); };
  set_["ebb_cache_config_info"]
      .gauge({text(options.pages), text(options.page_bytes), text(options.lanes), text(options.head_dim)})
      .Set(1);
  set_["ebb_kv_pages_limit"].gauge().Set(static_cast<double>(options.pages));
  set_["ebb_step_tokens_limit"].gauge().Set(options.step_tokens_max);
  set_["ebb_step_tokens_paced"].gauge().Set(options.step_tokens_max);
  for (const ScorerRow& row : ScorerRegistry()) policies_.emplace(row.name, MakePolicy(set_, row.name));
  for (const std::string& method : options.methods) methods_.emplace(method, MakeMethod(set_, method));
  tenant(kDefaultTenant);
  for (const std::string& name : options.tenants) tenant(name);
  if (options.device) device_.emplace(set_, *options.device);
  if (server_ != nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    ShowRefusals(kOther);
  }
  reload_.emplace(MakeReload(set_));
  set_["ebb_build_info"]
      .gauge({options.version, options.revision, options.backend, options.grpc_version, options.model})
      .Set(1);
  for (const std::string_view reason : kAuthReasons) set_["ebb_auth_failures_total"].counter({reason});
  for (const std::string_view reason : kErrorReasons) set_["ebb_errors_total"].counter({reason});
  for (const char* const state : kModelStateNames) models(state);
  connections_refused();
  arm(kOther, kOther);
}

RefusedConnections Metrics::connections_refused() {
  MetricFamily& by_reason = set_["ebb_connections_refused_total"];
  return {.files = by_reason.counter({"files"}),
          .at_once = by_reason.counter({"at_once"}),
          .begun = by_reason.counter({"begun"})};
}

TenantMetrics Metrics::MakeTenant(std::string_view label) {
  const auto drafts = [&](std::string_view source) {
    return DraftMetrics{.drafted = set_["ebb_drafted_tokens_total"].counter({label, source}),
                        .accepted = set_["ebb_accepted_draft_tokens_total"].counter({label, source})};
  };
  std::array<Gauge*, kQuotas.size()> used = {};
  std::array<Gauge*, kQuotas.size()> limits = {};
  for (const QuotaRow& row : kQuotas) {
    const auto at = static_cast<size_t>(row.quota);
    if (server_ == nullptr) limits[at] = &set_["ebb_quota_limit"].gauge({label, row.label});
    if (row.quota == Quota::kTokens) continue;                               // counters have them
    if (row.quota == Quota::kSnapshotBytes && server_ != nullptr) continue;  // they are of no model
    used[at] = &set_["ebb_quota_used"].gauge({label, row.label});
  }
  return {.label = std::string(label),
          .queue_wait = set_["ebb_queue_wait_seconds"].histogram({label}),
          .ttft = set_["ebb_ttft_seconds"].histogram({label}),
          .inter_token = set_["ebb_inter_token_seconds"].histogram({label}),
          .prompt_tokens = set_["ebb_prompt_tokens_total"].counter({label}),
          .completion_tokens = set_["ebb_completion_tokens_total"].counter({label}),
          .step_seconds = set_["ebb_tenant_step_seconds_total"].counter({label}),
          .in_time = set_["ebb_requests_in_time_total"].counter({label}),
          .late = set_["ebb_requests_late_total"].counter({label}),
          .prefix_hits = set_["ebb_prefix_hits_total"].counter({label}),
          .prefix_tokens = set_["ebb_prefix_reused_tokens_total"].counter({label}),
          .client_drafts = drafts("client"),
          .lookup_drafts = drafts("ngram"),
          .model_drafts = drafts("model"),
          .edit_recomputed = set_["ebb_edit_recomputed_tokens_total"].counter({label}),
          .edit_reused = set_["ebb_edit_reused_tokens_total"].counter({label}),
          .sessions = set_["ebb_sessions"].gauge({label}),
          .expired = set_["ebb_expired_sessions_total"].counter({label}),
          .forks = set_["ebb_session_forks_total"].counter({label}),
          .queue_depth = set_["ebb_queue_depth"].gauge({label}),
          .watchers = set_["ebb_watchers"].gauge({label}),
          .weight = set_["ebb_tenant_weight"].gauge({label}),
          .watch_events = set_["ebb_watch_events_total"].counter({label}),
          .watch_events_lost = set_["ebb_watch_events_lost_total"].counter({label}),
          .quota_used = used,
          .quota_limit = limits,
          .is_shared = label == kOther};
}

// Of the server's metrics alone.
std::string_view Metrics::LabelLocked(std::string_view tenant) {
  if (labels_.contains(tenant)) return tenant;
  if (labels_.size() >= tenants_max_) return kOther;
  labels_.emplace(tenant);
  ShowRefusals(tenant);
  return tenant;
}

std::string_view Metrics::LabelFor(std::string_view tenant) {
  const std::lock_guard lock(mutex_);
  return LabelLocked(tenant);
}

const TenantMetrics& Metrics::tenant(std::string_view name) {
  const std::lock_guard lock(mutex_);  // before the server's, always
  if (const auto at = tenants_.find(name); at != tenants_.end()) return at->second;
  const std::string_view label = server_ == nullptr ? LabelLocked(name) : server_->LabelFor(name);
  if (const auto at = tenants_.find(label); at != tenants_.end()) return at->second;
  return tenants_.emplace(label, MakeTenant(label)).first->second;
}

const ArmMetrics& Metrics::arm(std::string_view experiment, std::string_view arm) {
  const std::lock_guard lock(mutex_);
  if (experiment != kOther && experiments_.size() < kExperimentsMax) experiments_.emplace(experiment);
  if (!experiments_.contains(experiment)) experiment = arm = kOther;
  const auto key = std::pair(std::string(experiment), std::string(arm));
  if (const auto at = arms_.find(key); at != arms_.end()) return at->second;
  MetricFamily& calls = set_["ebb_experiment_calls_total"];
  return arms_
      .emplace(key, ArmMetrics{.sessions = set_["ebb_experiment_sessions_total"].counter({experiment, arm}),
                               .ok = calls.counter({experiment, arm, "ok"}),
                               .cancelled = calls.counter({experiment, arm, "cancelled"}),
                               .failed = calls.counter({experiment, arm, "failed"})})
      .first->second;
}

const PolicyMetrics& Metrics::policy(std::string_view scorer) const {
  const auto at = policies_.find(scorer);
  EBB_CHECK(at != policies_.end());
  return at->second;
}

Counter& Metrics::policy_tokens(std::string_view scorer, const TenantMetrics& tenant) {
  return set_["ebb_policy_tokens_total"].counter({scorer, tenant.label});
}

const MethodMetrics& Metrics::method(std::string_view name) const {
  const auto at = methods_.find(name);
  EBB_CHECK(at != methods_.end());
  return at->second;
}

Counter& Metrics::finished(v1::FinishReason reason) const {
  const auto at = finished_.find(reason);
  EBB_CHECK(at != finished_.end());
  return *at->second;
}

void Metrics::CallEnded(const MethodMetrics& method, const absl::Status& status, absl::Duration elapsed,
                        std::string_view tenant) {
  method.seconds.Observe(elapsed);
  method.handled[static_cast<size_t>(status.code())]->Add();
  CountRefusal(status, tenant);
}

// Found in a map: a family looks through all of its series, and whoever is refused often would make all wait.
Counter& Metrics::RefusalsLocked(std::string_view tenant, std::string_view reason) {
  Counter*& counter = refusals_[{std::string(tenant), std::string(reason)}];
  if (counter == nullptr) counter = &set_["ebb_refusals_total"].counter({tenant, reason});
  return *counter;
}

void Metrics::ShowRefusals(std::string_view tenant) {
  for (const std::string_view reason : kLoadReasons) RefusalsLocked(tenant, reason);
  for (const std::string_view reason : kBusyReasons) RefusalsLocked(tenant, reason);
}

void Metrics::CountRefusal(const absl::Status& status, std::string_view tenant) {
  if (status.ok() || status.code() == absl::StatusCode::kCancelled) return;
  std::string reason = GetRefusal(status).reason;
  if (reason.empty()) reason = absl::StatusCodeToString(status.code());
  const std::lock_guard lock(mutex_);
  if (reasons_.size() < kReasonsMax) {
    reasons_.insert(reason);
  } else if (!reasons_.contains(reason)) {
    reason = kOther;
  }
  if (IsAboutTheCaller(status.code())) set_["ebb_auth_failures_total"].counter({reason}).Add();
  if (IsOurFault(status.code())) {
    set_["ebb_errors_total"].counter({reason}).Add();
    return;
  }
  // Names that were only ever refused get no series, so that they take none from others.
  RefusalsLocked(tenant.empty() || labels_.contains(tenant) ? tenant : kOther, reason).Add();
}

void Metrics::SetCertificateEnd(absl::Time end) {
  set_["ebb_certificate_end_timestamp_seconds"].gauge().Set(static_cast<double>(absl::ToUnixSeconds(end)));
}

void Metrics::SetStoreSpace(int64_t free_bytes, int64_t size_bytes) {
  set_["ebb_store_free_bytes"].gauge().Set(static_cast<double>(free_bytes));
  set_["ebb_store_size_bytes"].gauge().Set(static_cast<double>(size_bytes));
}

std::string Metrics::Serialize(std::span<const OfModel> others) {
  const ProcessStats process = ReadProcessStats();
  set_["ebb_log_lines_dropped_total"].counter().SetTotal(static_cast<double>(LogLinesDropped()));
  set_["process_cpu_seconds_total"].counter().SetTotal(process.cpu_seconds);
  set_["process_start_time_seconds"].gauge().Set(process.start_time_seconds);
  set_["process_resident_memory_bytes"].gauge().Set(static_cast<double>(process.resident_bytes));
  set_["process_virtual_memory_bytes"].gauge().Set(static_cast<double>(process.virtual_bytes));
  set_["process_open_fds"].gauge().Set(static_cast<double>(process.open_fds));
  set_["process_max_fds"].gauge().Set(static_cast<double>(process.max_fds));
  std::vector<MetricSet::Labelled> labelled;
  for (const OfModel& other : others) {
    labelled.push_back({.label = "model", .value = other.model, .set = other.metrics->set_});
  }
  return set_.Serialize(labelled);
}

}  // namespace ebb
