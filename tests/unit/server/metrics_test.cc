#include "server/metrics.h"

#include <gmock/gmock.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "policies/registry.h"
#include "policies/status.h"
#include "server/process_stats.h"
#include "tests/support/temporary_folder.h"

namespace ebb {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

MetricsOptions Options() {
  return {.version = "0.1.0",
          .revision = "abc",
          .backend = "cpu-avx2",
          .grpc_version = "1.51.1",
          .model = "quote \" backslash \\ newline \n byte \xFF",
          .pages = 7,
          .page_bytes = 4096,
          .lanes = 24,
          .head_dim = 32,
          .step_tokens_max = 512,
          .methods = {"InferenceService/Generate", "SessionService/GetSession"},
          .tenants = {"acme"},
          .tenants_max = 4};
}

// The value of one series of the text, as text; empty if there is none.
std::string Value(const std::string& text, const std::string& series) {
  const size_t at = ("\n" + text).find("\n" + series + " ");
  if (at == std::string::npos) return "";
  const size_t begin = at + series.size() + 1;
  return text.substr(begin, text.find('\n', begin) - begin);
}

TEST(MetricTable, FollowsPrometheusNaming) {
  for (const MetricRow& row : MetricTable()) {
    SCOPED_TRACE(row.name);
    const std::string name(row.name);
    EXPECT_TRUE(name.starts_with("ebb_") || name.starts_with("process_"));
    EXPECT_EQ(row.kind == MetricKind::kCounter, name.ends_with("_total"));
    EXPECT_EQ(row.kind == MetricKind::kHistogram, !row.buckets.empty());
    EXPECT_THAT(std::string(row.help), EndsWith("."));
    if (row.unit == "seconds" || row.unit == "bytes") {
      EXPECT_THAT(name, HasSubstr("_" + std::string(row.unit)));
    }
    for (const std::string_view label : row.labels) {
      EXPECT_NE(label, "session");
      EXPECT_NE(label, "request");
    }
  }
}

TEST(Metrics, ShowAGpuWhereThereIsOne) {
  EXPECT_EQ(Metrics(Options()).device(), nullptr);
  EXPECT_EQ(Metrics(Options()).Serialize().find("ebb_gpu_up"), std::string::npos);
  MetricsOptions options = Options();
  options.device = DeviceUse{.name = "cuda", .description = "a device", .weight_bytes = 7, .page_bytes = 10};
  Metrics metrics(options);
  DeviceUse use = *options.device;
  use.failed = true;
  use.pages_total = 5, use.pages_free = 3, use.sessions = 2, use.brought = 4, use.fetched = 1;
  use.decode_steps = 8, use.prefill_steps = 9, use.decode_seconds = 0.5, use.prefill_seconds = 0.25;
  use.replays = 6, use.decode_bytes = 100;
  use.short_steps = {.halved = 14, .parted = 16, .unpinned = 17, .unrecorded = 18, .unfit = 15};
  use.rows_kept = 11, use.rows_copied = 12, use.rows_fetched = 13;
  EXPECT_EQ(Value(metrics.Serialize(), "ebb_gpu_up"), "1");
  metrics.device()->Set(use);
  for (const WhyHost why : {WhyHost::kNone, WhyHost::kPolicy, WhyHost::kFailed, WhyHost::kFailed}) {
    metrics.device()->CountOnHost(why);
  }
  const std::string text = metrics.Serialize();
  const std::pair<std::string, std::string> expected[] = {{"ebb_gpu_info{kind=\"cuda\",device=\"a device\"}", "1"},
                                                          {"ebb_gpu_up", "0"},
                                                          {"ebb_gpu_memory_bytes{use=\"weights\"}", "7"},
                                                          {"ebb_gpu_memory_bytes{use=\"cache\"}", "20"},
                                                          {"ebb_gpu_memory_bytes{use=\"cache_free\"}", "30"},
                                                          {"ebb_gpu_sessions", "2"},
                                                          {"ebb_gpu_sessions_on_cpu_total{reason=\"policy\"}", "1"},
                                                          {"ebb_gpu_sessions_on_cpu_total{reason=\"kv_type\"}", "0"},
                                                          {"ebb_gpu_sessions_on_cpu_total{reason=\"failed\"}", "2"},
                                                          {"ebb_gpu_cache_moves_total{direction=\"in\"}", "4"},
                                                          {"ebb_gpu_cache_moves_total{direction=\"out\"}", "1"},
                                                          {"ebb_gpu_steps_total{phase=\"decode\"}", "8"},
                                                          {"ebb_gpu_steps_total{phase=\"prefill\"}", "9"},
                                                          {"ebb_gpu_step_seconds_total{phase=\"decode\"}", "0.5"},
                                                          {"ebb_gpu_step_seconds_total{phase=\"prefill\"}", "0.25"},
                                                          {"ebb_gpu_short_steps_total{then=\"halved\"}", "14"},
                                                          {"ebb_gpu_short_steps_total{then=\"parted\"}", "16"},
                                                          {"ebb_gpu_short_steps_total{then=\"unpinned\"}", "17"},
                                                          {"ebb_gpu_short_steps_total{then=\"unrecorded\"}", "18"},
                                                          {"ebb_gpu_short_steps_total{then=\"cpu\"}", "15"},
                                                          {"ebb_gpu_replays_total", "6"},
                                                          {"ebb_gpu_decode_bytes_total", "100"},
                                                          {"ebb_gpu_logits_rows_total{fate=\"kept\"}", "11"},
                                                          {"ebb_gpu_logits_rows_total{fate=\"copied\"}", "12"},
                                                          {"ebb_gpu_logits_rows_total{fate=\"fetched\"}", "13"}};
  for (const auto& [series, value] : expected) EXPECT_EQ(Value(text, series), value) << series;
}

TEST(Metrics, ShowEverySeriesAtZeroBeforeAnythingHappened) {
  const std::string text = Metrics(Options()).Serialize();
  for (const MetricRow& row : MetricTable()) {
    // Of whoever has a certificate, or a store: 0 would be long ago, or a full disk.
    if (row.name == "ebb_certificate_end_timestamp_seconds" || row.name.starts_with("ebb_store_")) continue;
    // Of a GPU: ShowAGpuWhereThereIsOne.
    if (row.name.starts_with("ebb_gpu_") && row.name != "ebb_gpu_sessions_lost_total") continue;
    // Of tenants, once they use a policy.
    if (row.name == "ebb_policy_tokens_total") continue;
    // Of experiments that run, of which there are none: experiment_metrics_test.cc.
    if (row.name.starts_with("ebb_experiment_") && row.kind == MetricKind::kGauge) continue;
    EXPECT_NE(text.find("# TYPE " + std::string(row.name) + " "), std::string::npos) << row.name;
  }
  EXPECT_EQ(Value(text, "ebb_rpc_handled_total{method=\"SessionService/GetSession\",code=\"DATA_LOSS\"}"), "0");
  // Each of those that deploy/prometheus/ebb.rules.yaml takes off the errors: its first must not look like an error.
  for (const std::string reason :
       {"DRAINING", "MODEL_LOADING", "MODEL_UNLOADING", "NO_PAGES", "QUEUE_FULL", "SESSIONS_FULL", "SESSION_MOVED",
        "SESSION_RECOVERING", "WATCHERS_FULL", "SLOW_READER", "SESSION_BUSY"}) {
    EXPECT_EQ(Value(text, "ebb_refusals_total{tenant=\"default\",reason=\"" + reason + "\"}"), "0") << reason;
    EXPECT_EQ(Value(text, "ebb_refusals_total{tenant=\"acme\",reason=\"" + reason + "\"}"), "0") << reason;
    EXPECT_EQ(Value(text, "ebb_refusals_total{tenant=\"other\",reason=\"" + reason + "\"}"), "0") << reason;
  }
  EXPECT_EQ(Value(text, "ebb_worker_busy_seconds"), "0");
  EXPECT_EQ(Value(text, "ebb_requests_late_total{tenant=\"acme\"}"), "0");
  EXPECT_EQ(Value(text, "ebb_errors_total{reason=\"INTERNAL\"}"), "0");
  EXPECT_EQ(Value(text, "ebb_sessions{tenant=\"default\"}"), "0");
  EXPECT_EQ(Value(text, "ebb_sessions{tenant=\"acme\"}"), "0");
  EXPECT_EQ(Value(text, "ebb_finished_total{reason=\"max_tokens\"}"), "0");
  EXPECT_EQ(Value(text, "ebb_cache_bytes{state=\"free\"}"), "0");
  EXPECT_EQ(Value(text, "ebb_request_phase_seconds_total{phase=\"blocked\"}"), "0");
  EXPECT_EQ(Value(text, "ebb_cache_config_info{pages=\"7\",page_bytes=\"4096\",lanes=\"24\",head_dim=\"32\"}"), "1");
  EXPECT_EQ(Value(text, "ebb_kv_pages_limit"), "7");
  EXPECT_EQ(Value(text, "ebb_step_tokens_limit"), "512");
  for (const ScorerRow& row : ScorerRegistry()) {
    EXPECT_EQ(Value(text, "ebb_evicted_slots_total{policy=\"" + std::string(row.name) + "\"}"), "0");
  }
}

TEST(Metrics, CountUnderTheirLabels) {
  Metrics metrics(Options());
  const TenantMetrics& acme = metrics.tenant("acme");
  acme.prompt_tokens.Add(17);
  acme.sessions.Add(1);
  acme.ttft.Observe(absl::Milliseconds(20));
  acme.ttft.Observe(absl::Seconds(1000));
  metrics.worker().bytes.used.Set(4096);
  metrics.finished(v1::FINISH_REASON_STOP).Add();
  const std::string text = metrics.Serialize();
  EXPECT_EQ(Value(text, "ebb_prompt_tokens_total{tenant=\"acme\"}"), "17");
  EXPECT_EQ(Value(text, "ebb_prompt_tokens_total{tenant=\"default\"}"), "0");
  EXPECT_EQ(Value(text, "ebb_sessions{tenant=\"acme\"}"), "1");
  EXPECT_EQ(Value(text, "ebb_ttft_seconds_bucket{tenant=\"acme\",le=\"0.01\"}"), "0");
  EXPECT_EQ(Value(text, "ebb_ttft_seconds_bucket{tenant=\"acme\",le=\"0.02\"}"), "1") << "bounds are included";
  EXPECT_EQ(Value(text, "ebb_ttft_seconds_bucket{tenant=\"acme\",le=\"160\"}"), "1");
  EXPECT_EQ(Value(text, "ebb_ttft_seconds_bucket{tenant=\"acme\",le=\"+Inf\"}"), "2");
  EXPECT_EQ(Value(text, "ebb_ttft_seconds_count{tenant=\"acme\"}"), "2");
  EXPECT_EQ(Value(text, "ebb_ttft_seconds_sum{tenant=\"acme\"}"), "1000.02");
  EXPECT_EQ(Value(text, "ebb_cache_bytes{state=\"used\"}"), "4096");
  EXPECT_EQ(Value(text, "ebb_finished_total{reason=\"stop\"}"), "1");
}

TEST(Metrics, ManyObservationsAtOnceAreAsManyOneByOne) {
  EvictionCensus census;
  Metrics one(Options()), all(Options());
  for (const int64_t age : {1, 2, 3, 4, 5, 131072, 131073, 1 << 30}) {
    census.AddAge(age, 2);
    for (int lane = 0; lane < 2; ++lane) one.policy("h2o").ages.Observe(static_cast<double>(age));
  }
  all.policy("h2o").ages.ObserveAll(census.ages, static_cast<double>(census.age_sum));
  EXPECT_EQ(all.Serialize().substr(0, all.Serialize().find("process_")),
            one.Serialize().substr(0, one.Serialize().find("process_")));
  EXPECT_EQ(Value(all.Serialize(), "ebb_evicted_age_tokens_bucket{policy=\"h2o\",le=\"4\"}"), "8");
}

TEST(Metrics, PutExperimentsPastTheCapUnderOther) {
  Metrics metrics(Options());
  for (int i = 0; i < 100; ++i) metrics.arm("e" + std::to_string(i), "control").failed.Add();
  const std::string text = metrics.Serialize();
  const auto failed = [&](const std::string& of) {
    return Value(text, "ebb_experiment_calls_total{experiment=\"" + of + "\",result=\"failed\"}");
  };
  EXPECT_EQ(failed("e63\",arm=\"control"), "1");
  EXPECT_EQ(failed("e64\",arm=\"control"), "");
  EXPECT_EQ(failed("other\",arm=\"other"), "36");
}

TEST(Metrics, PutTenantsPastTheCapUnderOther) {
  Metrics metrics(Options());
  for (int i = 0; i < 1000; ++i) metrics.tenant("tenant-" + std::to_string(i)).completion_tokens.Add();
  metrics.tenant("acme").completion_tokens.Add();
  const std::string text = metrics.Serialize();
  EXPECT_EQ(Value(text, "ebb_completion_tokens_total{tenant=\"tenant-0\"}"), "1");
  EXPECT_EQ(Value(text, "ebb_completion_tokens_total{tenant=\"tenant-1\"}"), "1");
  EXPECT_EQ(Value(text, "ebb_completion_tokens_total{tenant=\"other\"}"), "998");
  EXPECT_EQ(Value(text, "ebb_completion_tokens_total{tenant=\"acme\"}"), "1");
  EXPECT_THAT(text, Not(HasSubstr("tenant-2")));
}

TEST(CallEnded, TellsRefusalsErrorsAndCancelledCallsApart) {
  Metrics metrics(Options());
  const MethodMetrics& generate = metrics.method("InferenceService/Generate");
  metrics.CallEnded(generate, absl::OkStatus(), absl::Seconds(1), "acme");
  metrics.CallEnded(generate, absl::CancelledError(), absl::Seconds(1), "acme");
  metrics.CallEnded(generate, RefuseField("BUDGET_TOO_SMALL", "policy", "x"), absl::Seconds(1), "acme");
  metrics.CallEnded(generate, absl::NotFoundError("no refusal"), absl::Seconds(1), "acme");
  metrics.CallEnded(generate, absl::InternalError("disk"), absl::Seconds(1), "acme");
  metrics.CallEnded(generate, Refuse(absl::StatusCode::kDataLoss, "x", {.reason = "MODEL_DAMAGED"}), absl::Seconds(1),
                    "acme");
  const std::string text = metrics.Serialize();
  const auto handled = [&](const std::string& code) {
    return Value(text, "ebb_rpc_handled_total{method=\"InferenceService/Generate\",code=\"" + code + "\"}");
  };
  EXPECT_EQ(handled("OK"), "1");
  EXPECT_EQ(handled("CANCELLED"), "1");
  EXPECT_EQ(handled("INVALID_ARGUMENT"), "1");
  EXPECT_EQ(handled("INTERNAL"), "1");
  EXPECT_EQ(Value(text, "ebb_rpc_seconds_count{method=\"InferenceService/Generate\"}"), "6");
  EXPECT_EQ(Value(text, "ebb_refusals_total{tenant=\"acme\",reason=\"BUDGET_TOO_SMALL\"}"), "1");
  EXPECT_EQ(Value(text, "ebb_refusals_total{tenant=\"acme\",reason=\"NOT_FOUND\"}"), "1");
  EXPECT_EQ(Value(text, "ebb_refusals_total{tenant=\"acme\",reason=\"CANCELLED\"}"), "");
  EXPECT_EQ(Value(text, "ebb_errors_total{reason=\"INTERNAL\"}"), "1");
  EXPECT_EQ(Value(text, "ebb_errors_total{reason=\"MODEL_DAMAGED\"}"), "1");
  EXPECT_EQ(Value(text, "ebb_refusals_total{tenant=\"acme\",reason=\"MODEL_DAMAGED\"}"), "");
}

TEST(CallEnded, BoundsTheReasons) {
  Metrics metrics(Options());
  for (int i = 0; i < 1000; ++i) {
    metrics.CallEnded(metrics.method("SessionService/GetSession"), RefuseField("R" + std::to_string(i), "f", "x"), {},
                      "acme");
  }
  const std::string text = metrics.Serialize();
  EXPECT_EQ(Value(text, "ebb_refusals_total{tenant=\"acme\",reason=\"R127\"}"), "1");
  EXPECT_EQ(Value(text, "ebb_refusals_total{tenant=\"acme\",reason=\"other\"}"), "872");
}

// Of who has sessions, of who has none, and of nobody that is known.
TEST(CallEnded, SaysWhoseTheRefusalsAre) {
  Metrics metrics(Options());
  const MethodMetrics& create = metrics.method("SessionService/GetSession");
  const absl::Status full = Refuse(absl::StatusCode::kResourceExhausted, "x", {.reason = "TENANT_SESSIONS"});
  for (int i = 0; i < 3; ++i) metrics.CallEnded(create, full, {}, "acme");
  metrics.tenant("late");
  metrics.CallEnded(create, full, {}, "late");
  for (int i = 0; i < 1000; ++i) metrics.CallEnded(create, full, {}, "nobody-" + std::to_string(i));
  metrics.CallEnded(create, Refuse(absl::StatusCode::kUnauthenticated, "x", {.reason = "NO_CREDENTIAL"}), {}, "");
  metrics.CountRefusal(Refuse(absl::StatusCode::kUnavailable, "x", {.reason = "FRONT_BUSY"}), "");
  const std::string text = metrics.Serialize();
  const auto refused = [&](const std::string& tenant, const std::string& reason) {
    return Value(text, "ebb_refusals_total{tenant=\"" + tenant + "\",reason=\"" + reason + "\"}");
  };
  EXPECT_EQ(refused("acme", "TENANT_SESSIONS"), "3");
  EXPECT_EQ(refused("late", "TENANT_SESSIONS"), "1");
  EXPECT_EQ(refused("other", "TENANT_SESSIONS"), "1000");
  EXPECT_EQ(refused("", "NO_CREDENTIAL"), "1");
  EXPECT_EQ(refused("", "FRONT_BUSY"), "1");
  EXPECT_EQ(Value(text, "ebb_auth_failures_total{reason=\"NO_CREDENTIAL\"}"), "1");
  EXPECT_THAT(text, Not(HasSubstr("nobody-")));
  // Nor did they use up the names that there are: 4, of which default, acme and late are three.
  metrics.tenant("last").sessions.Add(1);
  EXPECT_EQ(Value(metrics.Serialize(), "ebb_sessions{tenant=\"last\"}"), "1");
}

// A tenant of another model alone has a label at the server, and those of all models together are bounded.
TEST(CallEnded, KnowsTheTenantsOfEveryModel) {
  Metrics metrics(Options());
  Metrics beside({.tenants_max = 4, .server = &metrics});
  const MethodMetrics& create = metrics.method("SessionService/GetSession");
  const absl::Status full = Refuse(absl::StatusCode::kUnavailable, "x", {.reason = "NO_PAGES"});
  beside.tenant("second").sessions.Add(1);
  const auto refused = [&](const std::string& tenant) {
    return Value(metrics.Serialize(), "ebb_refusals_total{tenant=\"" + tenant + "\",reason=\"NO_PAGES\"}");
  };
  EXPECT_EQ(refused("second"), "0") << "there before its first refusal";
  metrics.CallEnded(create, full, {}, "second");
  EXPECT_EQ(refused("second"), "1");
  EXPECT_EQ(refused("other"), "0");
  EXPECT_EQ(Value(metrics.Serialize(), "ebb_sessions{tenant=\"second\"}"), "") << "all else is the model's";
  // 4 labels: default, acme and second are three.
  metrics.tenant("last");
  beside.tenant("more").sessions.Add(1);
  metrics.CallEnded(create, full, {}, "more");
  EXPECT_EQ(refused("more"), "");
  EXPECT_EQ(refused("other"), "1");
  EXPECT_EQ(Value(beside.Serialize(), "ebb_sessions{tenant=\"other\"}"), "1");
}

TEST(Metrics, LoseNothingWhenThreadsWriteAndReadAtOnce) {
  Metrics metrics(Options());
  constexpr int kThreads = 4, kRounds = 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&metrics, t] {
      for (int i = 0; i < kRounds; ++i) {
        metrics.tenant("tenant-" + std::to_string(t)).inter_token.Observe(0.25);
        const TenantMetrics& tenant = metrics.tenant("acme");
        tenant.sessions.Add(i % 2 == 0 ? 1 : -1);
        metrics.worker().step_tokens.Observe(3);
        if (i % 500 == 0) metrics.Serialize();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = metrics.Serialize();
  EXPECT_EQ(Value(text, "ebb_step_tokens_bucket{le=\"2\"}"), "0");
  EXPECT_EQ(Value(text, "ebb_step_tokens_bucket{le=\"4\"}"), std::to_string(kThreads * kRounds));
  EXPECT_EQ(Value(text, "ebb_step_tokens_sum"), std::to_string(kThreads * kRounds * 3));
  EXPECT_EQ(Value(text, "ebb_sessions{tenant=\"acme\"}"), "0");
}

TEST(Metrics, PassPromtoolsCheck) {
  if (std::system("command -v promtool > /dev/null") != 0) GTEST_SKIP() << "promtool is not installed";
  Metrics metrics(Options());
  metrics.tenant("acme").ttft.Observe(0.3);
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/metrics.txt", answer = folder.path() + "/promtool.txt";
  std::ofstream(file) << metrics.Serialize();
  const int status = std::system(("promtool check metrics < " + file + " > " + answer + " 2>&1").c_str());
  std::ifstream said(answer);
  EXPECT_EQ(WEXITSTATUS(status), 0) << std::string(std::istreambuf_iterator<char>(said), {});
}

TEST(ReadProcessStats, SeesThisProcess) {
  const ProcessStats stats = ReadProcessStats();
  EXPECT_GT(stats.resident_bytes, 1 << 20);
  EXPECT_GE(stats.virtual_bytes, stats.resident_bytes);
  EXPECT_GE(stats.open_fds, 3);
  EXPECT_GE(stats.max_fds, stats.open_fds);
  EXPECT_GE(stats.cpu_seconds, 0);
  EXPECT_GT(stats.start_time_seconds, 1.6e9);
  std::FILE* file = std::fopen("/dev/null", "r");
  EXPECT_EQ(ReadProcessStats().open_fds, stats.open_fds + 1);
  std::fclose(file);
}

}  // namespace
}  // namespace ebb
