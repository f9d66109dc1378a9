// Every number that the server publishes: one table of families (metrics.cc), and handles to their series.
//
// A new metric is a row of the table and a handle; docs/reference/metrics.md is generated from the table. Rules: prefix
// ebb_, base units, _total for counters; labels are tenant (capped), policy, method, code, reason and states, never a
// session, a request or text; every combination that can be listed exists from the start, at zero, because a ratio over
// a series that appears with its first error is wrong.
//
//   const TenantMetrics& tenant = metrics.tenant("acme");       // once per session
//   tenant.ttft.Observe(first_token - received);                // absl::Duration or seconds
//   metrics.CallEnded(metrics.method("SessionService/GetSession"), status, elapsed, "acme");
//
// Threads: any thread may use any handle, without a lock. tenant() takes one, and so does CallEnded for an error.

#ifndef EBB_SERVER_METRICS_H_
#define EBB_SERVER_METRICS_H_

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ebb/v1/usage.pb.h"
#include "engine/engine.h"
#include "engine/eviction_census.h"
#include "server/device_metrics.h"
#include "server/metric_family.h"
#include "server/quota.h"
#include "server/refused_connections.h"

namespace ebb {

class Metrics;

// Every family, in the order in which /metrics shows them.
std::span<const MetricRow> MetricTable();

struct MetricsOptions {
  std::string version = {}, revision = {}, backend = {}, grpc_version = {}, model = {};  // labels of ebb_build_info
  // Labels of ebb_cache_config_info; a slot holds K and V of one token in one lane.
  int64_t pages = 0, page_bytes = 0;
  int32_t lanes = 0, head_dim = 0;
  int32_t step_tokens_max = 0;
  std::optional<DeviceUse> device = {};   // that computes sessions
  std::vector<std::string> methods = {};  // every "InferenceService/Generate" that may be called
  std::vector<std::string> tenants = {};  // those configured; `default` is always there
  size_t tenants_max = 64;                // distinct labels; further tenants share `other`
  // Of a model beside others: those of the server, which outlive these and say who has a label. Null: these are they.
  Metrics* server = nullptr;
};

// Tokens of drafts.
struct DraftMetrics {
  Counter& drafted;   // proposed and run
  Counter& accepted;  // of these, kept; part of completion_tokens
};

struct TenantMetrics {
  std::string label;       // its name, or `other`
  Histogram& queue_wait;   // received .. first step
  Histogram& ttft;         // received .. first token written
  Histogram& inter_token;  // between tokens written to the stream
  Counter& prompt_tokens;
  Counter& completion_tokens;
  Counter& step_seconds;       // its share of steps' time, by its tokens in them
  Counter& in_time;            // requests that met both targets of DispatcherOptions
  Counter& late;               // requests whose deadline passed before anything came, past the first of these
  Counter& prefix_hits;        // prompts that began with blocks that were known
  Counter& prefix_tokens;      // of these blocks
  DraftMetrics client_drafts;  // by who made them
  DraftMetrics lookup_drafts;
  DraftMetrics model_drafts;
  Counter& edit_recomputed;  // tokens
  Counter& edit_reused;      // likewise, of the longest lane
  Gauge& sessions;           // open ones: Add(1), Add(-1)
  Counter& expired;          // sessions whose time to live was over
  Counter& forks;            // sessions that began as branches
  Gauge& queue_depth;        // admitted requests that have not run a row: likewise
  Gauge& watchers;           // WatchEvictions calls: likewise
  Gauge& weight;
  Counter& watch_events;
  Counter& watch_events_lost;
  std::array<Gauge*, kQuotas.size()>
      quota_used;  // by Quota: Add. Null of tokens; of a model beside others, of snapshots
  std::array<Gauge*, kQuotas.size()> quota_limit;  // 0: none. Null of a model beside others
  bool is_shared = false;                          // the limits, by tenants past tenants_max
};

struct PolicyMetrics {
  std::array<Counter*, kStateOrigins> changes;  // of sessions to this policy, by StateOrigin
  Counter& evictions;         // steps of a session, and Evict and SetPolicy calls, that evicted something
  Counter& evicted_tokens;    // of the lane that lost most at each of these
  Counter& evicted_slots;     // over all lanes
  Counter& nan_scores;        // over all lanes
  Counter& choosing_seconds;  // of steps
  Histogram& ages;            // of evicted slots, tokens
  Histogram& mass;            // attention mass lost by a measured step, 0 .. 1
  Histogram& error;           // relative change of attention's output by a measured step
  Histogram& cache_tokens;    // of a session's longest lane, whenever a call on it ends
  Histogram& shadow_kl;       // of a session's next-token distribution from its shadow's, nats
  Counter& shadow_tokens;     // tokens after which the two were compared
  Counter& shadow_agreed;     // of these, those with the same likeliest next token
};

// Of one arm of an experiment.
struct ArmMetrics {
  Counter& sessions;   // that were opened in it
  Counter& ok;         // calls on these that run the model, by how they ended
  Counter& cancelled;  // by the caller, or because the session was deleted
  Counter& failed;     // for any other reason
};

// A quantity by state. reserved: promised to sessions; used: holds live tokens, part of reserved; free: for new
// sessions.
struct CacheMetrics {
  Gauge& reserved;
  Gauge& used;
  Gauge& free;
};

// Arena pages as the page pool counts them, and as its sessions do.
struct PageMetrics {
  Gauge& free;   // the pool's
  Gauge& owned;  // the sessions' leases, summed, what they share once: with `free` always all of them
  Gauge& shared;
  Gauge& kept;  // for prompts that begin alike; in free and owned, too
};

// Time of calls that are over. blocked, by a slow reader, may be part of the others.
struct PhaseMetrics {
  Counter& queue;
  Counter& prefill;
  Counter& decode;
  Counter& blocked;
};

// Shadows that ended before their sessions, or never began.
struct ShadowDropMetrics {
  Counter& pages;    // a session needed its pages
  Counter& length;   // its session outgrew quality.shadow_tokens_max
  Counter& no_room;  // too few pages were free for it to begin
};

// Caches of the draft model.
struct DraftCacheMetrics {
  Gauge& caches;
  Gauge& reserved_pages;
  Gauge& free_pages;
  Histogram& seconds;       // of the drafts of one step, all sessions'
  Counter& drops_pages;     // another session needed its pages
  Counter& drops_length;    // what it holds would leave before it caught up, or it has no positions left
  Counter& drafts_no_room;  // that were not made, since every cache was in use
};

// What the worker writes once per step. A step is mixed when it holds both prompt blocks and decodes.
struct WorkerMetrics {
  Histogram& prefill_seconds;
  Histogram& decode_seconds;
  Histogram& mixed_seconds;
  Gauge& requests_limit;                                          // that may wait or run
  Histogram& step_tokens;                                         // prompt and decode together
  Gauge& step_tokens_paced;                                       // beside decodes
  Histogram& step_rows;                                           // sessions
  std::array<Counter*, EvictionCensus::kQuarters> evicted_slots;  // by quarter of the layers
  Gauge& requests_running;                                        // have run a row and are not over
  Gauge& busy_seconds;                                            // Worker::busy_for, set by who shows it
  CacheMetrics slots;
  CacheMetrics bytes;
  PageMetrics pages;
  Counter& page_copies;
  PhaseMetrics phases;
  Gauge& shadows;  // that run
  ShadowDropMetrics shadow_drops;
  DraftCacheMetrics drafts;
  Counter& shadow_steps_without;   // shadows, since requests waited
  Counter& past_context_sessions;  // a session's first position past the trained context counts once
  Counter& gpu_sessions_lost;
};

// Of the store's thread.
struct StoreMetrics {
  Counter& saved_bytes;
  Counter& restored_bytes;
  Histogram& save_seconds;     // checksums and the disk; copying the session is part of a step's time
  Histogram& restore_seconds;  // from the disk until the session is open
};

// Of experiments that outlive the server.
struct ExperimentFileMetrics {
  Counter& written;
  Counter& failed;     // to be written
  Counter& set_aside;  // at the start
};

struct JournalMetrics {
  Counter& record_bytes;
  Counter& snapshot_bytes;
  Histogram& commit_seconds;
  Counter& failures;  // of sessions
  Counter& brought_back;
  Counter& set_aside;
  Counter& left;  // in the store, for another start
  Histogram& recovery_seconds;
  // Of a store that servers share.
  Counter& lease_renewed;
  Counter& lease_late;    // it was over
  Counter& lease_failed;  // the store did not answer
  Counter& fenced;        // sessions
  Counter& taken;         // likewise
  Counter& not_taken;     // likewise
};

// Sessions that leave their pages to others, and come back.
struct SwapMetrics {
  Gauge& sessions;    // swapped now: Add(1), Add(-1)
  Gauge& file_bytes;  // of their files
  Counter& out;       // sessions, as is `in`
  Counter& in;
  Counter& out_bytes;
  Counter& in_bytes;
  Histogram& out_seconds;  // from the first piece of the copy until the pages are free
  Histogram& in_seconds;   // from the disk until the session is there; waiting for pages included
  Counter& out_failures;   // it stayed in memory
  Counter& in_failures;    // it stayed swapped
};

// Of a configuration that is read again while the server runs.
struct ReloadMetrics {
  Counter& ok;      // also when nothing had changed
  Counter& failed;  // nothing was changed
  Gauge& is_failing;
  Gauge& last_good;  // seconds since the epoch
};

struct MethodMetrics {
  Histogram& seconds;
  std::vector<Counter*> handled;  // by code
};

class Metrics {
 public:
  explicit Metrics(const MetricsOptions& options);

  // Valid as long as this object; past tenants_max those of `other`. A tenant of a model beside others takes one of the
  // server's labels, by which its refusals are counted there.
  const TenantMetrics& tenant(std::string_view name);
  // Valid likewise; past the first 64 experiments that of `other`.
  const ArmMetrics& arm(std::string_view experiment, std::string_view arm);
  // REQUIRES: a name of ScorerRegistry().
  const PolicyMetrics& policy(std::string_view scorer) const;
  // Tokens that entered caches of the tenant under the policy. Takes a lock. REQUIRES: the same.
  Counter& policy_tokens(std::string_view scorer, const TenantMetrics& tenant);
  // REQUIRES: one of MetricsOptions::methods.
  const MethodMetrics& method(std::string_view name) const;
  const WorkerMetrics& worker() const { return worker_; }
  const StoreMetrics& store() const { return store_; }
  const ExperimentFileMetrics& experiment_files() const { return experiment_files_; }
  const JournalMetrics& journal() const { return journal_; }
  const SwapMetrics& swap() const { return swap_; }
  // Null where no GPU computes sessions.
  DeviceMetrics* device() { return device_ ? &*device_ : nullptr; }
  const ReloadMetrics& reload() const { return *reload_; }  // REQUIRES: no model's beside others

  // A call is over. Counts code and time; an error of ours (UNKNOWN, INTERNAL, DATA_LOSS) or a refusal (the rest,
  // CANCELLED apart) also by its reason, the one that ToGrpc sends; UNAUTHENTICATED and PERMISSION_DENIED once more.
  // `tenant`: whose it was, empty where nobody knows. One that no model's tenant() was ever asked for is counted as
  // `other`.
  void CallEnded(const MethodMetrics& method, const absl::Status& status, absl::Duration elapsed,
                 std::string_view tenant);
  // The part of it that is about why; nothing for OK.
  void CountRefusal(const absl::Status& status, std::string_view tenant);

  // Of the server's certificate. Before that, and without TLS, there is no such series.
  void SetCertificateEnd(absl::Time end);
  // Of the file system of the store. Before that, and without a store in a folder, there are no such series.
  void SetStoreSpace(int64_t free_bytes, int64_t size_bytes);
  // Models by state, one of kModelStateNames.
  Gauge& models(std::string_view state) { return set_["ebb_models"].gauge({state}); }
  // By all ports.
  RefusedConnections connections_refused();

  // Generations by why they ended.
  Counter& finished(v1::FinishReason reason) const;

  // What /metrics answers, in Prometheus' text format (kContentType). `others`, of models beside the one that these are
  // of, have the label `model`.
  struct OfModel {
    std::string model = {};
    const Metrics* metrics = nullptr;
  };
  std::string Serialize(std::span<const OfModel> others = {});
  static constexpr char kContentType[] = "text/plain; version=0.0.4; charset=utf-8";

 private:
  TenantMetrics MakeTenant(std::string_view label);
  std::string_view LabelFor(std::string_view tenant);
  std::string_view LabelLocked(std::string_view tenant);
  Counter& RefusalsLocked(std::string_view tenant, std::string_view reason);
  void ShowRefusals(std::string_view tenant);  // those of load, at zero; locked

  MetricSet set_;
  const size_t tenants_max_;
  Metrics* const server_;  // null: it is this
  WorkerMetrics worker_;
  StoreMetrics store_;
  ExperimentFileMetrics experiment_files_;
  JournalMetrics journal_;
  SwapMetrics swap_;
  std::optional<ReloadMetrics> reload_;
  std::optional<DeviceMetrics> device_;
  std::map<int, Counter*> finished_;
  std::map<std::string, PolicyMetrics, std::less<>> policies_;
  std::map<std::string, MethodMetrics, std::less<>> methods_;
  mutable std::mutex mutex_;                   // guards those below
  std::set<std::string, std::less<>> labels_;  // of tenants, of all models; but for `other`
  std::map<std::string, TenantMetrics, std::less<>> tenants_;
  std::set<std::string, std::less<>> reasons_;
  std::map<std::pair<std::string, std::string>, Counter*> refusals_;  // by tenant's label and reason
  std::set<std::string, std::less<>> experiments_;
  std::map<std::pair<std::string, std::string>, ArmMetrics> arms_;
};

}  // namespace ebb

#endif  // EBB_SERVER_METRICS_H_
