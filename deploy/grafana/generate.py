#!/usr/bin/env python3
"""Writes the Grafana dashboards in deploy/grafana/dashboards from the tables below.

    deploy/grafana/generate.py            writes them
    deploy/grafana/generate.py --check    writes nothing; exits 1 and names those that differ

In a query `@` stands for the matchers of the variables $job, $instance and, of a family that each model has, $model, and `[$]` for the interval
of a rate.
"""
import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.dont_write_bytecode = True
from reference import generated  # noqa: E402

MATCH = 'job=~"$job",instance=~"$instance"'
# Families of the server as a whole, which no model has as its own; tests/e2e/dashboards_test.py holds this against a server with two.
OF_SERVER = re.compile(r"ebb_(build_info|rpc_\w+|refusals_total|errors_total|auth_failures_total|connections_refused_total|certificate_\w+|store_\w+|"
                       r"quota_limit|config_\w+|log_\w+|models|experiment_\w+)$")
SOURCE = {"type": "prometheus", "uid": "$datasource"}
COLUMNS, HEIGHT = 3, 8  # panels side by side, and how tall each is
SCHEMA = 39  # of Grafana 11 and later


def quantiles(metric, legend="", by="", match="", shares=(0.5, 0.9, 0.99)):
    return [(f"histogram_quantile({share}, sum by ({by + ', ' if by else ''}le) (rate({metric}_bucket{{@{match}}}[$])))",
             f"{legend}{' ' if legend else ''}p{round(share * 100)}") for share in shares]


def share_of_all(part, whole):
    """Of each label's rate in the sum of another."""
    return f"{part} / on () group_left () {whole}"


def mean(metric):
    return f"sum(rate({metric}_sum{{@}}[$])) / sum(rate({metric}_count{{@}}[$]))"


def of_budget(share):
    """How many times what may fail."""
    return share + ' / ebb:error_budget:ratio{job=~"$job"}'


# (title, what it means and what to do, unit, kind, queries with their legends); kinds are below.
SERVICE = {
    "At a glance": [
        ("Servers", "Servers that are scraped. Fewer than you run: see EbbDown.", "short", "stat", [("count(ebb_build_info{@})", "")]),
        ("Calls without fault", "Share of calls over three days that did not fail for the server's fault; 99.9 % is promised, unless the rules say otherwise.", "percentunit",
         "stat", [('1 - ebb:request_errors:ratio_rate3d{job=~"$job"}', "{{job}}")]),
        ("First tokens in time", "Share of requests of the last hour whose first token came within 2.5 seconds; 99 % is promised, unless the rules say otherwise.",
         "percentunit", "stat", [('1 - ebb:ttft_slow:ratio_rate1h{job=~"$job"}', "{{job}}")]),
        ("Speed of burning the error budget", "1 uses up the budget of 30 days in 30 days; above 14.4 somebody is called.", "short", "lines",
         [(of_budget('ebb:request_errors:ratio_rate1h{job=~"$job"}'), "{{job}}, 1 h"),
          (of_budget('ebb:request_errors:ratio_rate6h{job=~"$job"}'), "{{job}}, 6 h")]),
        ("Error budget left", "Of 30 days, or as long as Prometheus remembers; below 0 the promise is broken.", "percentunit", "stat",
         [("1 - " + of_budget('sum_over_time(ebb:request_errors:rate5m{job=~"$job"}[30d]) / sum_over_time(ebb:requests:rate5m{job=~"$job"}[30d])'), "{{job}}")]),
        ("What runs", "Version, model, and the processor's instruction set, of each server.", "none", "table", [("ebb_build_info{@}", "")]),
        ("Uptime", "Since each server started. Sessions end with their server, unless store.durability keeps them.", "s", "stat",
         [("time() - process_start_time_seconds{@}", "{{instance}}")]),
    ],
    "What callers see": [
        ("RPCs by method and code", "Calls that ended, per second.", "reqps", "lines",
         [("sum by (method, code) (rate(ebb_rpc_handled_total{@}[$])) > 0", "{{method}} {{code}}")]),
        ("RPCs by code", "Calls that ended, by gRPC code. INTERNAL, UNKNOWN and DATA_LOSS are the server's fault.", "reqps", "stack",
         [("sum by (code) (rate(ebb_rpc_handled_total{@}[$])) > 0", "{{code}}")]),
        ("Time to first token", "From a request's arrival to its first token on the stream.", "s", "lines", quantiles("ebb_ttft_seconds")),
        ("Time between tokens", "Of one request, as written to its stream. Long prompts of others show here: scheduling.inter_token_target.", "s",
         "lines", quantiles("ebb_inter_token_seconds")),
        ("Requests in time", "Goodput: those that met both scheduling.ttft_target and scheduling.inter_token_target, and all that had a first token.",
         "reqps", "lines", [("sum(rate(ebb_requests_in_time_total{@}[$]))", "in time"), ("sum(rate(ebb_ttft_seconds_count{@}[$]))", "all")]),
        ("Length of calls", "From arrival to end, of calls that run the model.", "s", "heatmap",
         [('sum by (le) (increase(ebb_rpc_seconds_bucket{@,method=~"InferenceService/.*"}[$]))', "{{le}}")]),
        ("How answers end", "By finish reason.", "ops", "stack", [("sum by (reason) (rate(ebb_finished_total{@}[$]))", "{{reason}}")]),
        ("Refusals", "Calls refused for what they ask, a limit or the load, by reason; docs/reference/errors.md says what to do about each.",
         "reqps", "stack", [("sum by (reason) (rate(ebb_refusals_total{@}[$]))", "{{reason}}")]),
        ("Faults", "Calls that failed for the server's fault. Should be 0; the log has a line for each.", "reqps", "stack",
         [("sum by (reason) (rate(ebb_errors_total{@}[$]))", "{{reason}}")]),
        ("Tokens", "Read, written, and written thanks to accepted drafts, per second.", "ops", "lines",
         [("sum(rate(ebb_prompt_tokens_total{@}[$]))", "prompt"), ("sum(rate(ebb_completion_tokens_total{@}[$]))", "generated"),
          ("sum(rate(ebb_accepted_draft_tokens_total{@}[$]))", "of accepted drafts")]),
    ],
    "What the server does": [
        ("Prompts that begin alike", "Blocks at a prompt's beginning that an earlier session had run: their share of all prompt tokens, which did not go "
         "through the model. 0 without cache.prefix_share.", "percentunit", "lines",
         [("sum(rate(ebb_prefix_reused_tokens_total{@}[$])) / (sum(rate(ebb_prefix_reused_tokens_total{@}[$])) + "
           "sum(rate(ebb_prompt_tokens_total{@}[$])))", "taken over")]),
        ("Drafts by who made them", "Tokens drafted, and those accepted. Where few are, drafting costs more than it saves.", "ops", "lines",
         [("sum by (source) (rate(ebb_drafted_tokens_total{@}[$]))", "{{source}} drafted"),
          ("sum by (source) (rate(ebb_accepted_draft_tokens_total{@}[$]))", "{{source}} accepted")]),
        ("Draft model at work", "Share of the time in which it drafts.", "percentunit", "lines", [("sum(rate(ebb_draft_seconds_sum{@}[$]))", "drafts")]),
        ("Draft model's memory", "Pages of model.draft_arena that its caches reserve, and free ones.", "short", "stack",
         [("sum by (state) (ebb_draft_pages{@})", "{{state}}")]),
        ("Draft model's caches", "One for each session that it drafts for, or lately did.", "short", "lines", [("sum(ebb_draft_caches{@})", "caches")]),
        ("Draft caches that ended early", "pages: another session's needed the room. Often: enlarge model.draft_arena.", "ops", "stack",
         [("sum by (reason) (rate(ebb_draft_cache_drops_total{@}[$]))", "{{reason}}"),
          ("sum(rate(ebb_drafts_without_room_total{@}[$]))", "drafts without room")]),
        ("Waiting for the first step", "From a request's arrival to its first step.", "s", "lines",
         quantiles("ebb_queue_wait_seconds", shares=(0.5, 0.99))),
        ("Where requests spend their time", "Mean number of requests in each phase. blocked: their readers are slow.", "short", "stack",
         [("sum by (phase) (rate(ebb_request_phase_seconds_total{@}[$]))", "{{phase}}")]),
        ("Requests that run or wait", "Against the limit, scheduling.queue_max.", "percentunit", "lines",
         [('ebb:queue:ratio{@}', "{{instance}}")]),
        ("Engine at work", "Share of the time in which steps run, mean over servers. Near 1: it does what it can.", "percentunit", "stack",
         [(share_of_all("sum by (phase) (rate(ebb_step_seconds_sum{@}[$]))", "count(ebb_build_info{@})"), "{{phase}}")]),
        ("Worker busy with one thing", "How long each model's worker has been at what it does, a step at most. What grows with the time is stuck: see EbbStepStalled.",
         "s", "lines", [("max by (instance, model) (ebb_worker_busy_seconds{@})", "{{instance}} {{model}}")]),
        ("Step time", "One step of the engine serves every row of its batch.", "s", "lines", quantiles("ebb_step_seconds")),
        ("Step size", "Mean sessions and tokens of a step.", "short", "lines",
         [(mean("ebb_step_rows"), "sessions"), (mean("ebb_step_tokens"), "tokens"), ("max(ebb_step_tokens_paced{@})", "tokens that answers have time for")]),
        ("Step fill", "Mean share of scheduling.step_tokens_max that steps use. Near 1: prompts wait for room.", "percentunit", "lines",
         [(f"{mean('ebb_step_tokens')} / max(ebb_step_tokens_limit{{@}})", "used")]),
    ],
    "GPU": [
        ("GPU up", "0 since the GPU failed: the CPU computes all sessions until the next start. See EbbGpuFailed. None where no GPU computes.", "short", "lines",
         [("ebb_gpu_up{@}", "{{instance}} {{model}}")]),
        ("What computes", "The GPU and its driver, by model that it computes for.", "none", "table", [("ebb_gpu_info{@}", "")]),
        ("GPU's memory", "Weights, K and V of the caches that are there, and room for more of them.", "bytes", "stack",
         [("sum by (use) (ebb_gpu_memory_bytes{@})", "{{use}}")]),
        ("Caches on the GPU", "Sessions whose caches are there.", "short", "lines", [("sum(ebb_gpu_sessions{@})", "caches")]),
        ("Sessions left to the CPU", "Sessions that came to be the CPU's though there is a GPU, by why. kv_type and size follow from model.gpu_kv_type and "
         "model.gpu_arena; worker_reason of a session says it in full.", "ops", "lines",
         [("sum by (reason) (rate(ebb_gpu_sessions_on_cpu_total{@}[$]))", "{{reason}}")]),
        ("Caches that moved", "Copied to the GPU to run there, and home since others wanted the room or the host was asked about them. If both grow with the "
         "load, model.gpu_arena is too small for who runs.", "ops", "lines",
         [("sum by (direction) (rate(ebb_gpu_cache_moves_total{@}[$]))", "{{direction}}")]),
        ("GPU's steps", "decode: each session brings one token; prefill: all others.", "ops", "lines",
         [("sum by (phase) (rate(ebb_gpu_steps_total{@}[$]))", "{{phase}}")]),
        ("Steps without room", "Memory was lacking. halved: the GPU computed them as two; parted: smaller at once, since a larger one was short lately; unrecorded: "
         "launched, not replayed; cpu: one session alone, which the CPU computed, far slower; unpinned: the host pins no memory. If the others stay, lower "
         "model.gpu_arena or scheduling.step_tokens_max.", "ops", "lines",
         [("sum by (then) (rate(ebb_gpu_short_steps_total{@}[$]))", "{{then}}")]),
        ("GPU at work", "Share of the time from a step's start until its results were there, mean over GPUs. Near 1: it does what it can.", "percentunit", "stack",
         [(share_of_all("sum by (phase) (rate(ebb_gpu_step_seconds_total{@}[$]))", "count(ebb_gpu_up{@})"), "{{phase}}")]),
        ("Bandwidth of decode", "Weights, K and V that decode steps read, by their time. A device's memory gives a ceiling; little of it: too few sessions a "
         "step, or a host that is waited for.", "Bps", "lines",
         [('sum by (instance, model) (rate(ebb_gpu_decode_bytes_total{@}[$])) / '
           '(sum by (instance, model) (rate(ebb_gpu_step_seconds_total{@,phase="decode"}[$])) > 0)', "{{instance}} {{model}}")]),
        ("Replayed steps", "Share of decode steps that were replayed from a recording. Low where the number of sessions changes at each step.", "percentunit",
         "lines", [('sum(rate(ebb_gpu_replays_total{@}[$])) / (sum(rate(ebb_gpu_steps_total{@,phase="decode"}[$])) > 0)', "replayed")]),
        ("Rows of logits", "kept: a step left the row on the GPU and yielded its largest few; copied: whole, for sampling without top_k, log-probabilities, "
         "drafts; fetched: kept, and needed whole later.", "ops", "lines", [("sum by (fate) (rate(ebb_gpu_logits_rows_total{@}[$]))", "{{fate}}")]),
    ],
    "Process": [
        ("CPU", "Cores in use.", "short", "lines", [("rate(process_cpu_seconds_total{@}[$])", "{{instance}}")]),
        ("Memory", "Resident: weights, cache and the rest.", "bytes", "lines", [("process_resident_memory_bytes{@}", "{{instance}}")]),
        ("File descriptors", "Share of those the process may open; each connection is one.", "percentunit", "lines",
         [("process_open_fds{@} / process_max_fds{@}", "{{instance}}")]),
        ("Room on the disk", "Free, and the size, of the file system of store.dir. None without it. See EbbDiskFillingIn4h.", "bytes", "lines",
         [("ebb_store_free_bytes{@}", "{{instance}} free"), ("ebb_store_size_bytes{@}", "{{instance}} size")]),
        ("Configuration refused", "1 as long as a changed configuration is not taken: see EbbConfigRefused.", "short", "lines",
         [("ebb_config_failing{@}", "{{instance}}")]),
        ("Age of the configuration", "Since it was last read and taken.", "s", "stat", [("time() - ebb_config_last_good_timestamp_seconds{@}", "{{instance}}")]),
        ("Refused for who calls", "Calls without a credential, with a wrong one, or with one that does not allow them; and connections "
         "that were closed since too many were open.", "ops", "stack",
         [("sum by (reason) (rate(ebb_auth_failures_total{@}[$]))", "{{reason}}"),
          ("sum(rate(ebb_connections_refused_total{@}[$]))", "connections")]),
        ("Certificate ends in", "Of the gRPC port, by server. None without TLS.", "s", "lines",
         [("ebb_certificate_end_timestamp_seconds{@} - time()", "{{instance}}")]),
        ("Dropped log lines", "The reader of stderr is slow.", "ops", "lines", [("rate(ebb_log_lines_dropped_total{@}[$])", "{{instance}}")]),
    ],
}

EVICTION = {
    "Cache": [
        ("Pages reserved", "Share of the pages that sessions have reserved, and what live tokens take of the whole. With all reserved, new sessions are refused "
         "with NO_PAGES.", "percentunit", "lines",
         [("ebb:pages_reserved:ratio{@}", "{{instance}}"),
          ('sum by (instance) (ebb_cache_bytes{@,state="used"}) / sum by (instance) (ebb_cache_bytes{@,state=~"reserved|free"})', "{{instance}} live")]),
        ("Memory for K and V", "reserved by sessions, of which used by live tokens, and free.", "bytes", "lines",
         [("sum by (state) (ebb_cache_bytes{@})", "{{state}}")]),
        ("Leaked pages", "Neither free nor owned. Must be 0.", "short", "stat",
         [('sum(ebb_kv_pages_limit{@}) - sum(ebb_kv_pages{@,state=~"free|owned"})', "")]),
        ("Open sessions", "Each has reserved what it may come to need.", "short", "lines", [("sum(ebb_sessions{@})", "sessions")]),
        ("Not let in", "Sessions and calls refused for want of pages or room in the queue, or for a tenant's quota.", "reqps", "stack",
         [('sum by (reason) (rate(ebb_refusals_total{@,reason=~"NO_PAGES|QUEUE_FULL|SESSIONS_FULL|TENANT_.*"}[$]))', "{{reason}}")]),
        ("Tokens that a session holds", "Live tokens of the longest lane whenever a call ends, by policy: its budget, once it is full.", "short",
         "lines", quantiles("ebb_session_cache_tokens", "{{policy}}", "policy", ',policy=~"$policy"', (0.5, 0.99))),
        ("Swapped sessions", "Open sessions whose cache is on disk, since nobody used them and others wanted their pages.", "short", "lines",
         [("sum(ebb_swapped_sessions{@})", "sessions")]),
        ("Swaps", "Sessions that left memory and came back; failed: they stayed where they were. If in grows with the load, memory is too small.",
         "ops", "lines", [("sum by (direction) (rate(ebb_swaps_total{@}[$]))", "{{direction}}"),
                          ("sum by (direction) (rate(ebb_swap_failures_total{@}[$]))", "{{direction}} failed")]),
        ("Time of swaps", "To leave, and to come back.", "s", "lines",
         quantiles("ebb_swap_seconds", "{{direction}}", "direction", shares=(0.5, 0.99))),
        ("Bytes swapped", "On disk now, of cache.swap_max.", "bytes", "lines", [("sum(ebb_swap_file_bytes{@})", "on disk")]),
        ("Sessions that expired", "Deleted since nobody called them for their ttl.", "ops", "lines",
         [("sum(rate(ebb_expired_sessions_total{@}[$]))", "sessions")]),
        ("Shared pages", "Pages that several sessions have in common, and those kept for prompts that begin alike, which leave when others need room.",
         "short", "lines", [('sum by (state) (ebb_kv_pages{@,state=~"shared|kept"})', "{{state}}")]),
        ("Branches", "Branches opened, and pages copied since a session was to write to one it shares.", "ops", "lines",
         [("sum(rate(ebb_session_forks_total{@}[$]))", "branches"), ("sum(rate(ebb_page_copies_total{@}[$]))", "pages copied")]),
    ],
    "Who leaves": [
        ("Evicted tokens", "Of the lane that lost most at each eviction, by policy.", "ops", "stack",
         [('sum by (policy) (rate(ebb_evicted_tokens_total{@,policy=~"$policy"}[$]))', "{{policy}}")]),
        ("Evicted for each token that enters", "0 while conversations fit their budgets, 1 when every new token takes another's slot.",
         "short", "lines", [('sum by (policy) (rate(ebb_evicted_tokens_total{@,policy=~"$policy"}[$])) / '
                             '(sum by (policy) (rate(ebb_policy_tokens_total{@,policy=~"$policy"}[$])) > 0)', "{{policy}}")]),
        ("Layers that evict", "Slots freed, by quarter of the model's layers from the first. As many as each has layers, unless budgets differ by layer (pyramid, ada, duo).",
         "ops", "stack", [("sum by (quarter) (rate(ebb_layers_evicted_slots_total{@}[$]))", "quarter {{quarter}}")]),
        ("Age of who leaves", "In tokens of the session since. Of one evicting step in quality.measure_every, and of calls that evict.", "short",
         "heatmap", [('sum by (le) (increase(ebb_evicted_age_tokens_bucket{@,policy=~"$policy"}[$]))', "{{le}}")]),
        ("Slots freed", "All lanes, by policy.", "ops", "stack",
         [('sum by (policy) (rate(ebb_evicted_slots_total{@,policy=~"$policy"}[$]))', "{{policy}}")]),
        ("Evictions", "Steps of a session that evicted, and Evict and SetPolicy calls that did.", "ops", "stack",
         [('sum by (policy) (rate(ebb_evictions_total{@,policy=~"$policy"}[$]))', "{{policy}}")]),
        ("Policy changes", "Policies put in force on live sessions, by the new one.", "ops", "stack",
         [('sum by (policy) (rate(ebb_policy_changes_total{@,policy=~"$policy"}[$]))', "{{policy}}")]),
        ("What a new policy starts from", "State of its scorer at SetPolicy: empty ones have yet to see who matters, and the former chooses meanwhile.",
         "ops", "stack", [('sum by (state) (rate(ebb_policy_changes_total{@,policy=~"$policy"}[$]))', "{{state}}")]),
        ("Scores that are no numbers", "Should be 0: such tokens leave first.", "ops", "lines",
         [('sum by (policy) (rate(ebb_nan_scores_total{@,policy=~"$policy"}[$]))', "{{policy}}")]),
    ],
    "What it costs": [
        ("Attention mass lost", "Share of the newest token's attention that left at once. Measured in one of quality.measure_every evicting steps.",
         "percentunit", "lines", quantiles("ebb_eviction_attention_mass_lost", "{{policy}}", "policy", ',policy=~"$policy"', (0.5, 0.99))),
        ("Time to choose who leaves", "Share of the steps' time, by policy. What attention tells scorers on its way is not in it.", "percentunit", "stack",
         [(share_of_all('sum by (policy) (rate(ebb_eviction_seconds_total{@,policy=~"$policy"}[$]))', "sum(rate(ebb_step_seconds_sum{@}[$]))"),
           "{{policy}}")]),
        ("Output error", "How far the newest token's attention output moved, |X - X'| / |X|.", "percentunit", "lines",
         quantiles("ebb_eviction_output_error", "{{policy}}", "policy", ',policy=~"$policy"', (0.5, 0.99))),
        ("Divergence from a full cache", "Mean KL(full || evicted) of sampled sessions, in nats. Needs quality.shadow_share above 0.", "short",
         "lines", [('sum by (policy) (rate(ebb_shadow_kl_divergence_sum{@,policy=~"$policy"}[$])) / '
                    'sum by (policy) (rate(ebb_shadow_kl_divergence_count{@,policy=~"$policy"}[$]))', "{{policy}}")]),
        ("Agreement with a full cache", "Share of tokens after which a sampled session and its shadow hold the same next one for the likeliest.",
         "percentunit", "lines", [('sum by (policy) (rate(ebb_shadow_top1_agreement_total{@,policy=~"$policy"}[$])) / '
                                   'sum by (policy) (rate(ebb_shadow_tokens_total{@,policy=~"$policy"}[$]))', "{{policy}}")]),
        ("Shadows", "Unevicted twins of sampled sessions that run.", "short", "lines", [("sum(ebb_shadows{@})", "shadows")]),
        ("Shadows that ended early", "By reason: pages were needed, longer than quality.shadow_tokens_max, no room to begin.", "ops", "stack",
         [("sum by (reason) (rate(ebb_shadow_drops_total{@}[$]))", "{{reason}}")]),
    ],
    "Snapshots": [
        ("Time of snapshots", "To save one, and to restore one.", "s", "lines",
         quantiles("ebb_snapshot_seconds", "{{operation}}", "operation", shares=(0.5, 0.99))),
        ("Bytes of snapshots", "Saved and restored.", "Bps", "lines",
         [("sum by (operation) (rate(ebb_snapshot_bytes_total{@}[$]))", "{{operation}}")]),
        ("Journals", "What tokens wait for before they are told, where store.durability is step or sync.", "s", "lines",
         quantiles("ebb_journal_commit_seconds", "commit", shares=(0.5, 0.99))),
        ("Bytes of journals", "Records of what sessions do, and the snapshots that take their place.", "Bps", "lines",
         [("sum by (kind) (rate(ebb_journal_bytes_total{@}[$]))", "{{kind}}")]),
        ("Journals that failed", "Sessions that take no more writes. Should be 0: see EbbJournalFailing.", "ops", "lines",
         [("sum(rate(ebb_journal_failures_total{@}[$]))", "sessions")]),
        ("Sessions brought back at the start", "From their journals. set_aside and left did not come back: see EbbSessionsNotRecovered.", "short", "stat",
         [("sum by (result) (max_over_time(ebb_recovered_sessions_total{@}[$]))", "{{result}}")]),
        ("Time to bring one back", "Its snapshot read, its journal run again; mean since the server started.", "s", "stat",
         [("sum(max_over_time(ebb_recovery_seconds_sum{@}[$])) / sum(max_over_time(ebb_recovery_seconds_count{@}[$]))", "")]),
        ("Sessions that moved here", "From servers that are gone, where servers share a store; failed: left to others.", "ops", "lines",
         [("sum by (result) (rate(ebb_taken_sessions_total{@}[$]))", "{{result}}")]),
        ("Leases in trouble", "Renewals that came late or failed, and sessions that another server had taken meanwhile. Should be 0.", "ops", "lines",
         [('sum by (result) (rate(ebb_lease_renewals_total{@,result!="ok"}[$]))', "{{result}}"),
          ("sum(rate(ebb_fenced_sessions_total{@}[$]))", "fenced")]),
        ("Sessions past the trained context", "They used a position that the model was not trained for; COMPACTED positions avoid it.", "ops",
         "lines", [("sum(rate(ebb_past_context_sessions_total{@}[$]))", "sessions")]),
    ],
}


def tenants(function, metric):
    text = f'{metric}{{@,tenant=~"$tenant"}}'
    return f"sum by (tenant) ({f'rate({text}[$])' if function == 'rate' else text})"


TOKENS = "(sum by (tenant) (rate(ebb_prompt_tokens_total{@}[$])) + sum by (tenant) (rate(ebb_completion_tokens_total{@}[$])))"
ACTIVE = f"(max by (tenant) (ebb_tenant_weight{{@}}) and on (tenant) {TOKENS} > 0)"  # weights of tenants that are served

TENANTS = {
    "Use": [
        ("Tokens generated", "Per second.", "ops", "stack", [(tenants("rate", "ebb_completion_tokens_total"), "{{tenant}}")]),
        ("Prompt tokens", "Per second.", "ops", "stack", [(tenants("rate", "ebb_prompt_tokens_total"), "{{tenant}}")]),
        ("Share of the tokens", "Of all tokens, read and written. Under saturation, compare with tenants.NAME.weight.", "percentunit", "stack",
         [(share_of_all(TOKENS, f"sum({TOKENS})"), "{{tenant}}")]),
        ("Served against entitled", "Share of the tokens by the share of the weights of those who are served. Under saturation, 1; above it a tenant has what "
         "others leave.", "short", "lines",
         [(f"({share_of_all(TOKENS, f'sum({TOKENS})')}) / on (tenant) ({share_of_all(ACTIVE, f'sum({ACTIVE})')})", "{{tenant}}")]),
        ("What each costs", "Share of the time in steps, by its tokens in them.", "percentunit", "stack",
         [(tenants("rate", "ebb_tenant_step_seconds_total"), "{{tenant}}")]),
        ("Policies most used", "Tokens that entered caches under each, per second; of all tenants chosen the ten that are most.", "ops", "stack",
         [('topk(10, sum by (tenant, policy) (rate(ebb_policy_tokens_total{@,tenant=~"$tenant"}[$])) > 0)', "{{tenant}} {{policy}}")]),
        ("Open sessions", "Against tenants.NAME.sessions_max.", "short", "stack", [(tenants("", "ebb_sessions"), "{{tenant}}")]),
        ("Queue by tenant", "Requests that have not run yet.", "short", "stack", [(tenants("", "ebb_queue_depth"), "{{tenant}}")]),
        ("Branches", "Per second.", "ops", "lines", [(tenants("rate", "ebb_session_forks_total"), "{{tenant}}")]),
        ("Share of each quota", "What a tenant has of what it may have; at 1 more is refused with TENANT_ and the quota's name.", "percentunit", "lines",
         [('sum by (tenant, quota) (ebb_quota_used{@,tenant=~"$tenant"}) / (sum by (tenant, quota) (ebb_quota_limit{@,tenant=~"$tenant"}) > 0)',
           "{{tenant}} {{quota}}")]),
        ("Share of the tokens a minute", "Of tenants.NAME.tokens_per_minute. Above 1 for a while: saved up, or owed.", "percentunit", "lines",
         [('60 * (sum by (tenant) (rate(ebb_prompt_tokens_total{@,tenant=~"$tenant"}[$])) + '
           'sum by (tenant) (rate(ebb_completion_tokens_total{@,tenant=~"$tenant"}[$]))) / '
           '(sum by (tenant) (ebb_quota_limit{@,tenant=~"$tenant",quota="tokens_per_minute"}) > 0)', "{{tenant}}")]),
    ],
    "How they are served": [
        ("Refused", "Calls refused for what they ask, a limit or the load, by reason; docs/reference/errors.md says what to do about each. Those without "
         "a tenant were refused before it was known.", "reqps", "stack",
         [('sum by (tenant, reason) (rate(ebb_refusals_total{@,tenant=~"$tenant"}[$])) > 0', "{{tenant}} {{reason}}")]),
        ("Refused for a quota", "Calls refused since a tenant had all that it may have, by quota.", "reqps",
         "stack", [('sum by (tenant, reason) (rate(ebb_refusals_total{@,reason=~"TENANT_.*",tenant=~"$tenant"}[$]))', "{{tenant}} {{reason}}")]),
        ("Prompt tokens taken over", "Of blocks that an earlier session had run.", "ops", "lines",
         [(tenants("rate", "ebb_prefix_reused_tokens_total"), "{{tenant}}")]),
        ("Time to first token, p99", "From a request's arrival to its first token on the stream.", "s", "lines",
         quantiles("ebb_ttft_seconds", "{{tenant}}", "tenant", ',tenant=~"$tenant"', (0.99,))),
        ("Time between tokens, p99", "Of one request, as written to its stream.", "s", "lines",
         quantiles("ebb_inter_token_seconds", "{{tenant}}", "tenant", ',tenant=~"$tenant"', (0.99,))),
        ("Waiting for the first step, p99", "Long for one tenant alone: it sends more than its weight is good for.", "s", "lines",
         quantiles("ebb_queue_wait_seconds", "{{tenant}}", "tenant", ',tenant=~"$tenant"', (0.99,))),
        ("Drafts", "Tokens drafted, and those accepted. Where few are, drafting costs more than it saves.", "ops", "lines",
         [(tenants("rate", "ebb_drafted_tokens_total"), "{{tenant}} drafted"),
          (tenants("rate", "ebb_accepted_draft_tokens_total"), "{{tenant}} accepted")]),
        ("Edits", "Tokens that went through the model for edits, and those whose keys and values stayed.", "ops", "lines",
         [(tenants("rate", "ebb_edit_recomputed_tokens_total"), "{{tenant}} computed"),
          (tenants("rate", "ebb_edit_reused_tokens_total"), "{{tenant}} reused")]),
        ("Watchers", "WatchEvictions calls that run.", "short", "lines", [(tenants("", "ebb_watchers"), "{{tenant}}")]),
        ("Events told to watchers", "And those that watchers lost because they read too slowly.", "ops", "lines",
         [(tenants("rate", "ebb_watch_events_total"), "{{tenant}} told"), (tenants("rate", "ebb_watch_events_lost_total"), "{{tenant}} lost")]),
    ],
}

# metric, its title, unit, what more of it means
TRIAL_METRICS = (
    ("attention_mass_lost", "Attention mass lost", "percentunit", "Less is better: the share of the newest token's attention that an eviction took."),
    ("output_error", "Output error", "percentunit", "Less is better: how far an eviction moved the newest token's attention output."),
    ("shadow_kl", "Divergence from a full cache", "short", "Less is better: nats from the unevicted shadow. Needs quality.shadow_share."),
    ("shadow_agreement", "Agreement with a full cache", "percentunit", "More is better: same likeliest token as the shadow. Needs quality.shadow_share."),
    ("reserved_bytes", "Memory", "bytes", "Less is better: bytes of K and V that a session reserves, over its life."),
    ("score", "Score", "short", "More is better: what callers report of tasks (`ebb experiment report`)."),
    ("thumbs", "Thumbs up", "short", "More is better: what users said, up 1 and down 0."),
    ("time_to_first_token", "Time to first token", "s", "Less is better. Confounded: arms of one server share its time."),
    ("inter_token", "Time between tokens", "s", "Less is better. Confounded: arms of one server share its time."),
)


def trial(metric, name, means):
    """Panels of an experiment's metric, or of its difference from the control: what is estimated, and the interval around it."""
    return [(title + name, f"{means} {words} The interval from low to high holds at every look.", unit, "lines",
             [(f'{metric}{{@,experiment=~"$experiment",arm=~"$arm",metric="{each}"}}', "{{experiment}} {{arm}} {{stat}}, {{instance}}")])
            for each, title, unit, words in TRIAL_METRICS]


EXPERIMENTS = {
    "May anything be said": [
        ("Decision", "What the numbers allow to be said of the metric that decides, of each server's own sessions. `ebb experiment results NAME` has it all.",
         "none", "table", [('ebb_experiment_decision{@,experiment=~"$experiment"} == 1', "")]),
        ("Sample ratio", "How probable a split of units as uneven as this is. Below 0.001 something but the weights decides who is seen: see "
         "EbbSampleRatioBroken.", "short", "stat", [('ebb_experiment_sample_ratio_p{@,experiment=~"$experiment"}', "{{experiment}}, {{instance}}")]),
        ("Runs for", "Since it was started. Look whenever you like: the intervals allow for it.", "s", "stat",
         [('time() - ebb_experiment_start_timestamp_seconds{@,experiment=~"$experiment"}', "{{experiment}}, {{instance}}")]),
        ("Units", "End users, or sessions without one, of each arm so far.", "short", "lines",
         [('ebb_experiment_units{@,experiment=~"$experiment",arm=~"$arm"}', "{{experiment}} {{arm}}, {{instance}}")]),
        ("Share of the units", "Of each arm, and what its weight asks for.", "percentunit", "lines",
         [('ebb_experiment_units{@,experiment=~"$experiment",arm=~"$arm"} / on (instance, experiment) group_left () '
           'sum by (instance, experiment) (ebb_experiment_units{@,experiment=~"$experiment"})', "{{experiment}} {{arm}}, {{instance}}"),
          ('ebb_experiment_expected_share{@,experiment=~"$experiment",arm=~"$arm"}', "{{experiment}} {{arm}}, asked for")]),
        ("Sessions by arm", "Opened, per second.", "ops", "stack",
         [('sum by (experiment, arm) (rate(ebb_experiment_sessions_total{@,experiment=~"$experiment",arm=~"$arm"}[$]))', "{{experiment}} {{arm}}")]),
    ],
    "Guardrails": [
        (title, f"Share of each arm's calls that run the model. {means} Arms whose shares differ serve their users differently, whatever the metric says.",
         "percentunit", "lines",
         [(f'sum by (experiment, arm) (rate(ebb_experiment_calls_total{{@,experiment=~"$experiment",arm=~"$arm",result="{result}"}}[$])) / '
           'sum by (experiment, arm) (rate(ebb_experiment_calls_total{@,experiment=~"$experiment",arm=~"$arm"}[$]))', "{{experiment}} {{arm}}")])
        for title, result, means in (("Calls that fail", "failed", "With any error."),
                                     ("Calls that are cancelled", "cancelled", "Users who stop an answer may not like it."))],
    "Difference from the control": trial("ebb_experiment_effect", ", difference", "Arm less control; where 0 is outside, the arms differ."),
    "Each arm": trial("ebb_experiment_value", "", "By arm."),
}

MODEL = ("model", "ebb_kv_pages_limit{@}")
# uid, title, rows, the variables beside job and instance: their names, and series whose label each is.
DASHBOARDS = (
    ("ebb-service", "Ebb / Service", SERVICE, (MODEL,)),
    ("ebb-eviction", "Ebb / KV and eviction", EVICTION, (MODEL, ("policy", "ebb_evictions_total{@}"))),
    ("ebb-experiments", "Ebb / Experiments", EXPERIMENTS, (("experiment", "ebb_experiment_sessions_total{@}"),
                                                           ("arm", 'ebb_experiment_sessions_total{@,experiment=~"$experiment"}'))),
    ("ebb-tenants", "Ebb / Tenants", TENANTS, (MODEL, ("tenant", "ebb_sessions{@}"))),
)

# Of panels by title: a colour from a value on, the first from below all. What is red is what an alert is about.
THRESHOLDS = {
    "Speed of burning the error budget": (("green", None), ("orange", 6), ("red", 14.4)),
    "Error budget left": (("red", None), ("orange", 0), ("green", 0.25)),
    "Worker busy with one thing": (("green", None), ("red", 120)),
    "GPU up": (("red", None), ("green", 1)),
    "File descriptors": (("green", None), ("red", 0.8)),
    "Pages reserved": (("green", None), ("red", 0.95)),
    "Leaked pages": (("green", None), ("red", 1)),
    "Sample ratio": (("red", None), ("green", 0.001)),
}

LINES = {"type": "timeseries", "options": {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
                                           "tooltip": {"mode": "multi", "sort": "desc"}}}
KINDS = {
    "lines": LINES,
    "stack": {**LINES, "custom": {"fillOpacity": 30, "stacking": {"mode": "normal", "group": "A"}}},
    "stat": {"type": "stat", "options": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "graphMode": "area"}},
    "table": {"type": "table", "options": {"showHeader": True}, "target": {"format": "table", "instant": True}},
    "heatmap": {"type": "heatmap", "options": {"calculate": False, "color": {"mode": "scheme", "scheme": "Blues"}},
                "target": {"format": "heatmap"}},
}


def query(text, of_model=True):
    """What Prometheus is asked, but for Grafana's variables."""
    if of_model:
        text = re.sub(r"\b(ebb[\w:]+){@", lambda found: found[0] + ("" if OF_SERVER.match(found[1]) else ',model=~"$model"'), text)
    return text.replace("@", MATCH).replace("[$]", "[$__rate_interval]")


def colours(title, kind):
    """What a panel's thresholds add to its defaults and its options."""
    if title not in THRESHOLDS:
        return {}, {}
    steps = [{"color": colour, "value": value} for colour, value in THRESHOLDS[title]]
    return {"thresholds": {"mode": "absolute", "steps": steps}}, {"colorMode": "value"} if kind == "stat" else {}


def panel(number, at, title, description, unit, kind, queries):
    shape = KINDS[kind]
    targets = [{"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": query(expr), "legendFormat": legend, **shape.get("target", {})}
               for i, (expr, legend) in enumerate(queries)]
    limits, shown = colours(title, kind)
    custom = {**shape.get("custom", {}), **({"thresholdsStyle": {"mode": "line"}} if limits and kind == "lines" else {})}
    return {"id": number, "type": shape["type"], "title": title, "description": description, "datasource": SOURCE, "gridPos": at,
            "fieldConfig": {"defaults": {"unit": unit, "custom": custom, **limits}, "overrides": []},
            "options": {**shape["options"], **({"yAxis": {"unit": unit}} if kind == "heatmap" else {}), **shown},
            "targets": targets}


def panels(rows):
    made, y = [], 0
    for title, cells in rows.items():
        made.append({"id": len(made) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
                     "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
        y += 1
        for i, cell in enumerate(cells):
            at = {"x": i % COLUMNS * 24 // COLUMNS, "y": y + i // COLUMNS * HEIGHT, "w": 24 // COLUMNS, "h": HEIGHT}
            made.append(panel(len(made) + 1, at, *cell))
        y += -(-len(cells) // COLUMNS) * HEIGHT
    return made


def variable(name, series):
    return {"name": name, "type": "query", "datasource": SOURCE, "query": {"query": f"label_values({query(series, False)}, {name})", "refId": name},
            "includeAll": True, "multi": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}, "refresh": 2, "sort": 1}


def annotation(name, expr, title, color):
    return {"name": name, "datasource": SOURCE, "enable": True, "expr": query(expr, False), "titleFormat": title, "iconColor": color, "step": "60s"}


def dashboard(uid, title, rows, extra):
    variables = [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                 variable("job", "ebb_build_info"), variable("instance", 'ebb_build_info{job=~"$job"}'),
                 *(variable(name, series) for name, series in extra)]
    return {
        "uid": uid, "title": title, "tags": ["ebb"], "schemaVersion": SCHEMA, "editable": False, "graphTooltip": 1, "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
        "links": [{"type": "dashboards", "tags": ["ebb"], "title": "Ebb", "asDropdown": True, "keepTime": True, "includeVars": True,
                   "icon": "external link", "tooltip": "", "targetBlank": False}],
        "annotations": {"list": [
            annotation("Policy changes", "sum by (policy) (increase(ebb_policy_changes_total{@}[$])) > 0", "Policy {{policy}}", "blue"),
            annotation("Drains", 'sum by (instance) (increase(ebb_refusals_total{@,reason="DRAINING"}[$])) > 0', "{{instance}} drains", "purple"),
            annotation("Restarts", "resets(process_cpu_seconds_total{@}[$]) > 0", "{{instance}} started", "orange")]},
        "templating": {"list": variables}, "panels": panels(rows),
    }


def main():
    files = {f"deploy/grafana/dashboards/{uid}.json": json.dumps(dashboard(uid, title, rows, extra), indent=1) + "\n"
             for uid, title, rows, extra in DASHBOARDS}
    return generated.settle(files, "--check" in sys.argv[1:], "deploy/grafana/generate.py")


if __name__ == "__main__":
    sys.exit(main())
