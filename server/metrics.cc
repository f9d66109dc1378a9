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

// OpenTelemetry's GenAI conventions: time to first token, then doubled for long prompts.
constexpr double kTtft[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160};
// Likewise, time per output token; below 10 ms for small models.
constexpr double kInterToken[] = {.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5};
constexpr double kStep[] = {.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10};
constexpr double kRows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
constexpr double kLengths[] = {16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};
constexpr double kLosses[] = {1e-6, 1e-5, 1e-4, .0003, .001, .003, .01, .03, .1, .2, .3, .5, .75, 1};
constexpr double kDivergences[] = {1e-6, 1e-5, 1e-4, .001, .003, .01, .03, .1, .3, 1, 3, 10};
// EvictionCensus::ages.
constexpr double kAges[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};
static_assert(std::size(kAges) + 1 == EvictionCensus::kAgeClasses);
constexpr double kTokens[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};

// Refusals under load, which alerts watch; other reasons appear with their first refusal.
constexpr std::string_view kLoadReasons[] = {"NO_PAGES", "QUEUE_FULL", "DRAINING", "SLOW_READER", "SESSION_BUSY"};
// Of UNAUTHENTICATED and PERMISSION_DENIED: identity.cc.
constexpr std::string_view kAuthReasons[] = {"NO_CREDENTIAL", "BAD_CREDENTIAL", "NAMELESS_CERTIFICATE", "OTHER_TENANT",
                                             "ADMIN_ONLY"};
constexpr std::string_view kErrorReasons[] = {"UNKNOWN", "INTERNAL", "DATA_LOSS"};

// By StateOrigin.
constexpr std::array<std::string_view, kStateOrigins> kStates = {"none",        "carried",        "rebuilt",
                                                                 "from_scores", "from_attention", "empty"};

constexpr auto kC = MetricKind::kCounter;
constexpr auto kG = MetricKind::kGauge;
constexpr auto kH = MetricKind::kHistogram;

const std::vector<MetricRow>& Table() {
  // clang-format off
  static const std::vector<MetricRow> table = {
      // name, kind, unit, labels, buckets, help
      {"ebb_build_info", kG, "", {"version", "revision", "backend", "grpc_version", "model"}, {},
       "Always 1; its labels say what runs."},
      {"ebb_cache_config_info", kG, "", {"pages", "page_bytes", "lanes", "head_dim"}, {},
       "Always 1; its labels say how the memory for K and V is cut. A session has the same number of lanes, one per layer and KV head."},
      {"ebb_rpc_handled_total", kC, "calls", {"method", "code"}, {},
       "Calls that ended, by gRPC status code."},
      {"ebb_rpc_seconds", kH, "seconds", {"method"}, kTtft,
       "From a call's arrival to its end."},
      {"ebb_refusals_total", kC, "calls", {"reason"}, {},
       "Calls answered with an error that the request, a limit or the load explains, by ErrorInfo reason."},
      {"ebb_auth_failures_total", kC, "calls", {"reason"}, {},
       "Of these refusals, calls whose caller showed no credential, a wrong one, or one that does not allow the call. Handshakes of TLS that fail are no calls: a client without a certificate is not counted."},
      {"ebb_certificate_end_timestamp_seconds", kG, "seconds", {}, {},
       "When the server's certificate in use ends (the first of tls.cert), since the epoch. Absent without TLS."},
      {"ebb_connections_refused_total", kC, "connections", {}, {},
       "Connections to the gRPC port that were closed at once, since almost all files that the process may open are open."},
      {"ebb_errors_total", kC, "calls", {"reason"}, {},
       "Calls that failed for a fault of the server (UNKNOWN, INTERNAL, DATA_LOSS), by ErrorInfo reason."},
      {"ebb_finished_total", kC, "generations", {"reason"}, {},
       "Generations that ended, by finish reason."},
      {"ebb_queue_wait_seconds", kH, "seconds", {"tenant"}, kTtft,
       "From a request's arrival to its first step."},
      {"ebb_ttft_seconds", kH, "seconds", {"tenant"}, kTtft,
       "Time to first token: from a request's arrival to its first token written to the stream."},
      {"ebb_inter_token_seconds", kH, "seconds", {"tenant"}, kInterToken,
       "Time between two tokens of a request, as written to the stream."},
      {"ebb_requests_in_time_total", kC, "requests", {"tenant"}, {},
       "Requests that ended well, their first token within scheduling.ttft_target and the others, on average, within scheduling.inter_token_target of each other: goodput."},
      {"ebb_prompt_tokens_total", kC, "tokens", {"tenant"}, {},
       "Prompt tokens that went through the model."},
      {"ebb_prefix_hits_total", kC, "prompts", {"tenant"}, {},
       "Prompts that began with blocks which an earlier session had run (cache.prefix_share)."},
      {"ebb_prefix_reused_tokens_total", kC, "tokens", {"tenant"}, {},
       "Tokens of these blocks: prompt tokens that did not go through the model."},
      {"ebb_completion_tokens_total", kC, "tokens", {"tenant"}, {},
       "Tokens generated."},
      {"ebb_drafted_tokens_total", kC, "tokens", {"tenant", "source"}, {},
       "Tokens of drafts that were verified, by who made them: client (Verify), ngram (prompt lookup), model (the draft model)."},
      {"ebb_accepted_draft_tokens_total", kC, "tokens", {"tenant", "source"}, {},
       "Of these, tokens that were accepted; they count as generated, too."},
      {"ebb_draft_caches", kG, "caches", {}, {},
       "Caches of the draft model, one for each session that it drafts for or lately did."},
      {"ebb_draft_pages", kG, "pages", {"state"}, {},
       "Pages of model.draft_arena: reserved by these caches, and free."},
      {"ebb_draft_seconds", kH, "seconds", {}, kStep,
       "Time in which the draft model made the drafts of one step, of all sessions together."},
      {"ebb_draft_cache_drops_total", kC, "caches", {"reason"}, {},
       "Caches of the draft model that ended before their sessions. pages: another session's needed the room; length: the session went on for longer than model.draft_budget without drafts, or the model has no more learned positions; another begins."},
      {"ebb_drafts_without_room_total", kC, "drafts", {}, {},
       "Drafts that were not made, since every cache of the draft model was in use."},
      {"ebb_edit_recomputed_tokens_total", kC, "tokens", {"tenant"}, {},
       "Tokens that went through the model for edits."},
      {"ebb_edit_reused_tokens_total", kC, "tokens", {"tenant"}, {},
       "Tokens of edited sessions, of the longest lane, whose keys and values stayed."},
      {"ebb_sessions", kG, "sessions", {"tenant"}, {},
       "Open sessions, swapped ones included."},
      {"ebb_expired_sessions_total", kC, "sessions", {"tenant"}, {},
       "Sessions deleted since nobody called them for their ttl."},
      {"ebb_swapped_sessions", kG, "sessions", {}, {},
       "Sessions whose cache is in a file, and not in memory, since others wanted their pages."},
      {"ebb_swap_file_bytes", kG, "bytes", {}, {},
       "Bytes of these files; cache.swap_max is the limit."},
      {"ebb_swaps_total", kC, "sessions", {"direction"}, {},
       "Sessions that left memory (out) and came back (in)."},
      {"ebb_swap_bytes_total", kC, "bytes", {"direction"}, {},
       "Bytes that were written and read for that."},
      {"ebb_swap_seconds", kH, "seconds", {"direction"}, kStep,
       "out: from the first piece of the copy until the pages are free; in: from the read until the session is there, with what it waits for pages meanwhile."},
      {"ebb_swap_failures_total", kC, "sessions", {"direction"}, {},
       "out: a session stayed in memory, since its file could not be written or cache.swap_max is reached; in: it stayed swapped, since its file could not be read or is damaged."},
      {"ebb_tenant_weight", kG, "", {"tenant"}, {},
       "What a tenant's share is in proportion to, while others want theirs. 0: it has not called yet."},
      {"ebb_tenant_step_seconds_total", kC, "seconds", {"tenant"}, {},
       "Its share of the time of steps, by its tokens in them: what it costs."},
      {"ebb_quota_used", kG, "things", {"tenant", "quota"}, {},
       "What a tenant has of a quota: sessions, forks (open branches), calls, cache_bytes, watchers. Tokens are counted above, by the minute."},
      {"ebb_quota_limit", kG, "things", {"tenant", "quota"}, {},
       "How much of it the tenant may have; 0: no limit of its own. tokens_per_minute and snapshot_bytes, too."},
      {"ebb_queue_depth", kG, "requests", {"tenant"}, {},
       "Admitted requests that have not run yet."},
      {"ebb_requests_running", kG, "requests", {}, {},
       "Requests that have run and are not over."},
      {"ebb_requests_limit", kG, "requests", {}, {},
       "Requests that may wait or run at once; one more is refused with QUEUE_FULL."},
      {"ebb_request_phase_seconds_total", kC, "seconds", {"phase"}, {},
       "Time of requests that are over: in the queue, in prefill, in decode; blocked: held up by a slow reader, in whichever phase."},
      {"ebb_step_seconds", kH, "seconds", {"phase"}, kStep,
       "Time of one step of the engine; mixed steps hold prompt blocks and decodes."},
      {"ebb_step_tokens", kH, "tokens", {}, kTokens,
       "Tokens of one step, prompt and decode together."},
      {"ebb_step_tokens_limit", kG, "tokens", {}, {},
       "Most tokens of one step."},
      {"ebb_step_rows", kH, "sessions", {}, kRows,
       "Sessions that share one step."},
      {"ebb_policy_changes_total", kC, "changes", {"policy", "state"}, {},
       "Policies put in force on live sessions by SetPolicy, by the new one, and by what its scorer began with: none (it keeps no state), carried, rebuilt (from keys and values), from_scores (of the old one), from_attention (of the newest token), empty."},
      {"ebb_policy_tokens_total", kC, "tokens", {"policy", "tenant"}, {},
       "Tokens that entered caches, by the policy in force and whose they were."},
      {"ebb_evictions_total", kC, "evictions", {"policy"}, {},
       "Steps of a session, and Evict and SetPolicy calls, that evicted tokens."},
      {"ebb_evicted_tokens_total", kC, "tokens", {"policy"}, {},
       "Tokens that left, of the lane that lost most at each eviction."},
      {"ebb_evicted_slots_total", kC, "slots", {"policy"}, {},
       "Slots freed by eviction, all lanes."},
      {"ebb_layers_evicted_slots_total", kC, "slots", {"quarter"}, {},
       "Slots freed by eviction, by quarter of the model's layers: 1 has the first."},
      {"ebb_eviction_seconds_total", kC, "seconds", {"policy"}, {},
       "Part of the steps' time in which threads scored and chose who leaves: of all threads, divided by their number. What scorers are told by attention is not in it."},
      {"ebb_evicted_age_tokens", kH, "tokens", {"policy"}, kAges,
       "Age of evicted slots' tokens, in tokens of the session from them on. Of every Evict and SetPolicy call that evicts, and of every quality.measure_every-th step of a session that does."},
      {"ebb_eviction_attention_mass_lost", kH, "ratio", {"policy"}, kLosses,
       "Share of the newest token's attention that left with the tokens evicted at once: mean over a session's lanes. Of every Evict and SetPolicy call that evicts, and of every quality.measure_every-th step of a session that does."},
      {"ebb_eviction_output_error", kH, "ratio", {"policy"}, kLosses,
       "How far the newest token's attention output moved by the same evictions, |X - X'| / |X|: mean over a session's lanes."},
      {"ebb_shadow_kl_divergence", kH, "nats", {"policy"}, kDivergences,
       "KL(full || evicted): how far a session's next-token distribution is from that of its unevicted shadow, after each step that both have run."},
      {"ebb_shadow_tokens_total", kC, "tokens", {"policy"}, {},
       "Tokens after which a session was compared with its shadow."},
      {"ebb_shadow_top1_agreement_total", kC, "tokens", {"policy"}, {},
       "Of these, those after which both hold the same next token for the likeliest."},
      {"ebb_shadows", kG, "shadows", {}, {},
       "Unevicted shadows of sampled sessions that run (quality.shadow_share)."},
      {"ebb_shadow_drops_total", kC, "shadows", {"reason"}, {},
       "Shadows that ended before their sessions. pages: a session needed their pages; length: longer than quality.shadow_tokens_max; no_room: never began, since too few pages were free."},
      {"ebb_shadow_steps_without_total", kC, "steps", {}, {},
       "Steps that shadows stayed out of, since requests waited for their first step."},
      {"ebb_experiment_sessions_total", kC, "sessions", {"experiment", "arm"}, {},
       "Sessions that were opened in an arm of an experiment. The first 64 experiments have names, further ones share `other`."},
      {"ebb_experiment_calls_total", kC, "calls", {"experiment", "arm", "result"}, {},
       "Calls that ran the model on these sessions: ok; cancelled, by the caller or since the session was deleted; failed, for any other reason."},
      // These are of experiments that run, and are worked out at a scrape: experiment_metrics.h.
      {"ebb_experiment_units", kG, "units", {"experiment", "arm"}, {},
       "Units (end users, or sessions without one) of an arm of an experiment that runs."},
      {"ebb_experiment_start_timestamp_seconds", kG, "seconds", {"experiment"}, {},
       "When the experiment was started, since the epoch."},
      {"ebb_experiment_expected_share", kG, "", {"experiment", "arm"}, {},
       "Share of the experiment's units that the arm's weight asks for."},
      {"ebb_experiment_sample_ratio_p", kG, "", {"experiment"}, {},
       "How probable a split of units as uneven as this is, if the weights are what decides, at whatever time one looks. Below 0.001: something else does, and no difference means anything."},
      {"ebb_experiment_decision", kG, "", {"experiment", "decision"}, {},
       "1 for what the numbers allow to be said of the metric that decides, 0 for the others: collecting, favours_arm, favours_control, no_difference, broken_sample_ratio."},
      {"ebb_experiment_value", kG, "", {"experiment", "arm", "metric", "stat"}, {},
       "What an arm shows in a metric: estimate, and low and high of an interval that holds at every look. Absent while too few units show it."},
      {"ebb_experiment_effect", kG, "", {"experiment", "arm", "metric", "stat"}, {},
       "Difference of an arm from the control in a metric, likewise. Zero is within low and high as long as nothing is said."},
      {"ebb_watchers", kG, "calls", {"tenant"}, {},
       "WatchEvictions calls that run."},
      {"ebb_watch_events_total", kC, "events", {"tenant"}, {},
       "Evictions told to watchers, once for each."},
      {"ebb_watch_events_lost_total", kC, "events", {"tenant"}, {},
       "Evictions that a watcher lost because it read too slowly."},
      {"ebb_nan_scores_total", kC, "scores", {"policy"}, {},
       "Keep scores that were not a number; such a token leaves first."},
      {"ebb_cache_slots", kG, "slots", {"state"}, {},
       "Slots of all lanes: reserved by sessions, used by live tokens, free for new sessions. What branches of a session share is reserved once, and used by each."},
      {"ebb_cache_bytes", kG, "bytes", {"state"}, {},
       "Memory for K and V, by the same states as ebb_cache_slots."},
      {"ebb_session_cache_tokens", kH, "tokens", {"policy"}, kLengths,
       "Live tokens in a session's longest lane, whenever a call on it ends."},
      {"ebb_kv_pages", kG, "pages", {"state"}, {},
       "Pages of memory for K and V: free as the page pool counts them, owned as its sessions do, a page that several share once; shared by several; kept for prompts that begin alike, whoever else counts them."},
      {"ebb_kv_pages_limit", kG, "pages", {}, {},
       "All pages; minus free, minus owned is what leaked, and stays 0."},
      {"ebb_page_copies_total", kC, "pages", {}, {},
       "Pages copied since a session was to write to one that it shares with a branch."},
      {"ebb_session_forks_total", kC, "sessions", {"tenant"}, {},
       "Branches of sessions: of ForkSession, and of Generate with more than one answer."},
      {"ebb_snapshot_bytes_total", kC, "bytes", {"operation"}, {},
       "Bytes of sessions that were saved and restored."},
      {"ebb_snapshot_seconds", kH, "seconds", {"operation"}, kStep,
       "save: checksums and the disk, without the copy that the worker makes between steps; restore: from the disk until the session is open."},
      {"ebb_store_free_bytes", kG, "bytes", {}, {},
       "Room on the file system of store.dir for who is not root. Absent without store.dir."},
      {"ebb_store_size_bytes", kG, "bytes", {}, {},
       "Size of that file system."},
      {"ebb_journal_bytes_total", kC, "bytes", {"kind"}, {},
       "Bytes written to journals: records of what sessions do, and the snapshots that take their place."},
      {"ebb_journal_commit_seconds", kH, "seconds", {}, kStep,
       "Writing, and syncing where it has to be, what a step's sessions did; what clients are told of it waits for that."},
      {"ebb_journal_failures_total", kC, "sessions", {}, {},
       "Sessions whose journal could not be written; they take no more writes."},
      {"ebb_recovered_sessions_total", kC, "sessions", {"result"}, {},
       "Journaled sessions at the start, and those that a GPU lost: ok; set_aside, since they can never be opened here; left, since they cannot be now."},
      {"ebb_recovery_seconds", kH, "seconds", {}, kStep,
       "Bringing one session back: its snapshot read, its journal run again."},
      {"ebb_lease_renewals_total", kC, "renewals", {"result"}, {},
       "Of this server's lease in a store that servers share: ok; late, since it was over, so that others may have taken sessions; failed, since the store did not answer."},
      {"ebb_fenced_sessions_total", kC, "sessions", {}, {},
       "Sessions that this server was about to write to, or went on with after a pause, when another had taken them."},
      {"ebb_taken_sessions_total", kC, "sessions", {"result"}, {},
       "Sessions of servers that are gone, or were drained: ok, they are served here; failed, they could not be opened, and wait for another."},
      {"ebb_past_context_sessions_total", kC, "sessions", {}, {},
       "Sessions that used a position past the model's trained context; their quality may suffer."},
      {"ebb_gpu_sessions_lost_total", kC, "sessions", {}, {},
       "Sessions whose caches went with a GPU that failed; those that are journaled come back (ebb_recovered_sessions_total)."},
      {"ebb_models", kG, "models", {"state"}, {},
       "Models of the server: loading; serving; unloading, whose calls may finish; failed, as the log and ListModels say why."},
      {"ebb_config_reloads_total", kC, "reloads", {"result"}, {},
       "Times that the configuration was read again since its file had changed or somebody asked: ok, or failed, which changed nothing."},
      {"ebb_config_failing", kG, "", {}, {},
       "1 as long as the last of them failed: the server runs with the configuration before."},
      {"ebb_config_last_good_seconds", kG, "seconds", {}, {},
       "When the configuration in force was last read, since the epoch."},
      {"ebb_log_lines_dropped_total", kC, "lines", {}, {},
       "Log lines dropped because the reader of stderr was slow."},
      {"process_cpu_seconds_total", kC, "seconds", {}, {},
       "User and system time of the process."},
      {"process_start_time_seconds", kG, "seconds", {}, {},
       "When the process started, since the epoch."},
      {"process_resident_memory_bytes", kG, "bytes", {}, {},
       "Resident memory of the process."},
      {"process_virtual_memory_bytes", kG, "bytes", {}, {},
       "Virtual memory of the process."},
      {"process_open_fds", kG, "files", {}, {},
       "Open file descriptors of the process."},
      {"process_max_fds", kG, "files", {}, {},
       "Open file descriptors that the process may have."},
  };
  // clang-format on
  return table;
}

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
      .step_tokens = set["ebb_step_tokens"].histogram(),
      .step_rows = set["ebb_step_rows"].histogram(),
      .evicted_slots = {&layers.counter({"1"}), &layers.counter({"2"}), &layers.counter({"3"}), &layers.counter({"4"})},
      .requests_running = set["ebb_requests_running"].gauge(),
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
          .last_good = set["ebb_config_last_good_seconds"].gauge()};
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

std::span<const MetricRow> MetricTable() { return Table(); }

Metrics::Metrics(const MetricsOptions& options)
    : set_(MetricTable()),
      tenants_max_(std::max<size_t>(options.tenants_max, 1)),
      whole_server_(options.whole_server),
      worker_(MakeWorker(set_)),
      store_(MakeStore(set_)),
      journal_(MakeJournal(set_)),
      swap_(MakeSwap(set_)),
      finished_(MakeFinished(set_)) {
  const auto text = [](int64_t number) { return absl::StrFormat("%d", number); };
  set_["ebb_cache_config_info"]
      .gauge({text(options.pages), text(options.page_bytes), text(options.lanes), text(options.head_dim)})
      .Set(1);
  set_["ebb_kv_pages_limit"].gauge().Set(static_cast<double>(options.pages));
  set_["ebb_step_tokens_limit"].gauge().Set(options.step_tokens_max);
  set_["ebb_requests_limit"].gauge().Set(options.queue_max);
  for (const ScorerRow& row : ScorerRegistry()) policies_.emplace(row.name, MakePolicy(set_, row.name));
  for (const std::string& method : options.methods) methods_.emplace(method, MakeMethod(set_, method));
  tenant(kDefaultTenant);
  for (const std::string& name : options.tenants) tenant(name);
  if (!options.whole_server) return;
  reload_.emplace(MakeReload(set_));
  set_["ebb_build_info"]
      .gauge({options.version, options.revision, options.backend, options.grpc_version, options.model})
      .Set(1);
  for (const std::string_view reason : kLoadReasons) set_["ebb_refusals_total"].counter({reason});
  for (const std::string_view reason : kAuthReasons) set_["ebb_auth_failures_total"].counter({reason});
  for (const std::string_view reason : kErrorReasons) set_["ebb_errors_total"].counter({reason});
  for (const char* const state : kModelStateNames) models(state);
  connections_refused();
  arm(kOther, kOther);
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
    if (whole_server_) limits[at] = &set_["ebb_quota_limit"].gauge({label, row.label});
    if (row.quota == Quota::kTokens || row.quota == Quota::kSnapshotBytes) continue;  // others count them
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

const TenantMetrics& Metrics::tenant(std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (const auto at = tenants_.find(name); at != tenants_.end()) return at->second;
  const std::string_view label = tenants_.size() < tenants_max_ ? name : kOther;
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

void Metrics::CallEnded(const MethodMetrics& method, const absl::Status& status, absl::Duration elapsed) {
  method.seconds.Observe(elapsed);
  method.handled[static_cast<size_t>(status.code())]->Add();
  CountRefusal(status);
}

void Metrics::CountRefusal(const absl::Status& status) {
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
  set_[IsOurFault(status.code()) ? "ebb_errors_total" : "ebb_refusals_total"].counter({reason}).Add();
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
