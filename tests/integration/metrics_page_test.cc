// What the server says about itself over HTTP, while real clients use it: the numbers add up, promtool finds nothing to
// complain about, and a real Prometheus takes them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_format.h"
#include "server/version.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Le;

constexpr uint32_t kBudget = 24;
constexpr uint32_t kTokens = 100;

class MetricsPage : public testing::Test {
 protected:
  double Value(const std::string& series) const { return server_.Metric(series); }

  // A stream's end reaches the client a moment before it is counted.
  bool EventuallyIs(const std::string& series, double value) {
    return Eventually([&] { return Value(series) == value; });
  }

  // A conversation of the tenant's past its budget; returns the session.
  std::string Converse() {
    const std::string name = client_.Create(SessionWith(StreamingPolicy(kBudget))).name();
    const Answer answer = client_.Generate(GenerateText(name, "Once upon a time there was a pond.", kTokens));
    EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
    if (answer.status.ok()) usage_ = answer.last().usage();
    return name;
  }

  TestServer server_{[](ServerOptions& options) { options.http_listen = {.host = "127.0.0.1", .port = 0}; }};
  TestClient client_{server_.address(), "acme"};
  httplib::Client http_{"127.0.0.1", server_.server().http_address()->port};
  v1::Usage usage_;
};

TEST_F(MetricsPage, CountsAConversation) {
  const std::string name = Converse();
  EXPECT_TRUE(EventuallyIs("ebb_rpc_handled_total{method=\"InferenceService/Generate\",code=\"OK\"}", 1));
  EXPECT_EQ(Value("ebb_prompt_tokens_total{tenant=\"acme\"}"), usage_.prompt_tokens());
  EXPECT_EQ(Value("ebb_completion_tokens_total{tenant=\"acme\"}"), kTokens);
  EXPECT_EQ(Value("ebb_completion_tokens_total{tenant=\"default\"}"), 0);
  EXPECT_EQ(Value("ebb_finished_total{reason=\"max_tokens\"}"), 1);
  EXPECT_EQ(Value("ebb_ttft_seconds_count{tenant=\"acme\"}"), 1);
  // Tokens that come in one message with the first have no gap before them.
  EXPECT_THAT(Value("ebb_inter_token_seconds_count{tenant=\"acme\"}"), AllOf(Gt(0), Le(kTokens - 1)));
  EXPECT_EQ(Value("ebb_queue_wait_seconds_count{tenant=\"acme\"}"), 1);
  EXPECT_EQ(Value("ebb_step_tokens_sum"), usage_.prompt_tokens() + kTokens);
  // Alone, every block and every token is a step of one row.
  EXPECT_EQ(Value("ebb_step_rows_sum"), Value("ebb_step_rows_count"));
  EXPECT_EQ(Value("ebb_step_rows_count"), Value("ebb_step_tokens_count"));
  EXPECT_EQ(Value("ebb_session_cache_tokens_sum{policy=\"streaming\"}"), kBudget);
  EXPECT_EQ(Value("ebb_session_cache_tokens_count{policy=\"streaming\"}"), 1);
  for (const char* phase : {"queue", "prefill", "decode"}) {
    EXPECT_GT(Value(absl::StrFormat("ebb_request_phase_seconds_total{phase=\"%s\"}", phase)), 0) << phase;
  }
  EXPECT_EQ(Value("ebb_sessions{tenant=\"acme\"}"), 1);
  EXPECT_EQ(Value("ebb_evicted_tokens_total{policy=\"streaming\"}"), usage_.evicted_tokens());
  EXPECT_GT(usage_.evicted_tokens(), 0U);
  EXPECT_TRUE(client_.Delete(name).ok());
  EXPECT_TRUE(EventuallyIs("ebb_sessions{tenant=\"acme\"}", 0));
}

// From which layers who leaves comes, how old they are, and what it costs, in which policy and for whom.
TEST_F(MetricsPage, SaysWhatEvictionIsLike) {
  Converse();
  EXPECT_TRUE(EventuallyIs("ebb_rpc_handled_total{method=\"InferenceService/Generate\",code=\"OK\"}", 1));
  const double slots = Value("ebb_evicted_slots_total{policy=\"streaming\"}");
  EXPECT_EQ(slots, 4.0 * usage_.evicted_tokens()) << "two layers of two KV heads";
  EXPECT_EQ(Value("ebb_layers_evicted_slots_total{quarter=\"1\"}"), slots / 2);
  EXPECT_EQ(Value("ebb_layers_evicted_slots_total{quarter=\"2\"}"), 0) << "no layer is in it";
  EXPECT_EQ(Value("ebb_layers_evicted_slots_total{quarter=\"3\"}"), slots / 2);
  EXPECT_EQ(Value("ebb_policy_tokens_total{policy=\"streaming\",tenant=\"acme\"}"), usage_.prompt_tokens() + kTokens);
  // The first step that evicts is measured; who leaves is the oldest but the sinks, 4.
  EXPECT_GT(Value("ebb_evicted_age_tokens_count{policy=\"streaming\"}"), 0);
  EXPECT_GE(Value("ebb_evicted_age_tokens_sum{policy=\"streaming\"}"),
            Value("ebb_evicted_age_tokens_count{policy=\"streaming\"}") * (kBudget - 4));
  EXPECT_GT(Value("ebb_eviction_seconds_total{policy=\"streaming\"}"), 0);
  double steps = 0;
  for (const char* phase : {"prefill", "decode", "mixed"}) {
    steps += Value(absl::StrFormat("ebb_step_seconds_sum{phase=\"%s\"}", phase));
  }
  EXPECT_LT(Value("ebb_eviction_seconds_total{policy=\"streaming\"}"), steps);
  EXPECT_NEAR(Value("ebb_tenant_step_seconds_total{tenant=\"acme\"}"), steps, 1e-6 * steps) << "nobody else called";
  EXPECT_EQ(Value("ebb_tenant_weight{tenant=\"acme\"}"), 1);
}

TEST(Goodput, CountsRequestsThatMeetBothTargets) {
  for (const auto& [first, others, in_time] :
       {std::tuple(absl::Hours(1), absl::Hours(1), 1), std::tuple(absl::ZeroDuration(), absl::Hours(1), 0),
        std::tuple(absl::Hours(1), absl::ZeroDuration(), 0)}) {
    const TestServer server([&](ServerOptions& options) {
      options.http_listen = {.host = "127.0.0.1", .port = 0};
      options.work.live.ttft_target = first;
      options.work.live.inter_token_target = others;
    });
    TestClient client(server.address());
    EXPECT_TRUE(client.Generate(GenerateText("", "Once upon a time", 8)).status.ok());
    EXPECT_EQ(server.Metric("ebb_requests_in_time_total{tenant=\"default\"}"), in_time);
  }
}

TEST(Goodput, GoesByTheTargetsInForce) {
  TestServer server([](ServerOptions& options) { options.http_listen = {.host = "127.0.0.1", .port = 0}; });
  TestClient client(server.address());
  const auto in_time_with = [&](absl::Duration first, absl::Duration others) {
    const double before = server.Metric("ebb_requests_in_time_total{tenant=\"default\"}");
    server.server().SetLive({.ttft_target = first, .inter_token_target = others});
    EXPECT_TRUE(client.Generate(GenerateText("", "Once upon a time", 8)).status.ok());
    return server.Metric("ebb_requests_in_time_total{tenant=\"default\"}") - before;
  };
  EXPECT_EQ(in_time_with(absl::Hours(1), absl::Hours(1)), 1);
  EXPECT_EQ(in_time_with(absl::ZeroDuration(), absl::Hours(1)), 0);
  EXPECT_EQ(in_time_with(absl::Hours(1), absl::Nanoseconds(1)), 0);
  EXPECT_EQ(in_time_with(absl::Hours(1), absl::Hours(1)), 1);
}

TEST(Store, SaysHowMuchRoomItHas) {
  const TemporaryFolder folder;
  const TestServer server([&](ServerOptions& options) {
    options.http_listen = {.host = "127.0.0.1", .port = 0};
    options.store_dir = folder.path();
  });
  EXPECT_GT(server.Metric("ebb_store_free_bytes"), 0);
  EXPECT_GE(server.Metric("ebb_store_size_bytes"), server.Metric("ebb_store_free_bytes"));
}

TEST_F(MetricsPage, ShowsWhereTheMemoryIs) {
  const double total = Value("ebb_cache_bytes{state=\"free\"}") + Value("ebb_cache_bytes{state=\"reserved\"}");
  EXPECT_GT(total, 0);
  const std::string name = Converse();
  EXPECT_TRUE(Eventually([&] { return Value("ebb_cache_bytes{state=\"used\"}") > 0; }));
  const double reserved = Value("ebb_cache_bytes{state=\"reserved\"}");
  EXPECT_GE(reserved, Value("ebb_cache_bytes{state=\"used\"}"));
  EXPECT_EQ(Value("ebb_cache_bytes{state=\"free\"}") + reserved, total);
  EXPECT_GE(Value("ebb_cache_slots{state=\"reserved\"}"), Value("ebb_cache_slots{state=\"used\"}"));
  EXPECT_TRUE(client_.Delete(name).ok());
  EXPECT_TRUE(EventuallyIs("ebb_cache_bytes{state=\"free\"}", total));
  EXPECT_EQ(Value("ebb_cache_bytes{state=\"used\"}"), 0);
  EXPECT_EQ(Value("ebb_cache_slots{state=\"used\"}"), 0);
}

TEST_F(MetricsPage, EveryPageIsFreeOrOwned) {
  const v1::CacheStatus cache = client_.Status().cache();
  EXPECT_EQ(Value("ebb_kv_pages_limit"), cache.pages_total());
  EXPECT_EQ(Value(absl::StrFormat("ebb_cache_config_info{pages=\"%d\",page_bytes=\"%d\",lanes=\"4\",head_dim=\"16\"}",
                                  cache.pages_total(), cache.page_bytes())),
            1);
  EXPECT_EQ(Value("ebb_kv_pages{state=\"free\"}"), cache.pages_total());
  EXPECT_EQ(Value("ebb_kv_pages{state=\"owned\"}"), 0);
  const std::string name = Converse();
  const double owned = Value("ebb_kv_pages{state=\"owned\"}");
  EXPECT_EQ(owned, client_.Status().cache().pages_reserved());
  EXPECT_GT(owned, 0);
  EXPECT_EQ(Value("ebb_kv_pages{state=\"free\"}") + owned, cache.pages_total());
  EXPECT_TRUE(client_.Delete(name).ok());
  EXPECT_TRUE(EventuallyIs("ebb_kv_pages{state=\"owned\"}", 0));
  EXPECT_TRUE(EventuallyIs("ebb_kv_pages{state=\"free\"}", static_cast<double>(cache.pages_total())));
}

TEST_F(MetricsPage, SaysWhichBuildRuns) {
  EXPECT_THAT(std::string(Revision()), ContainsRegex("^([0-9a-f]{12,40}|unknown)$"));
  EXPECT_THAT(http_.Get("/metrics")->body, HasSubstr(absl::StrFormat("ebb_build_info{version=\"%s\",revision=\"%s\",",
                                                                     std::string(Version()), std::string(Revision()))));
}

TEST_F(MetricsPage, CountsRefusalsByReason) {
  v1::Session session;
  EXPECT_FALSE(client_.Create(SessionWith(StreamingPolicy(1)), &session).ok());
  EXPECT_TRUE(EventuallyIs("ebb_refusals_total{tenant=\"other\",reason=\"BUDGET_TOO_SMALL\"}", 1));
  EXPECT_EQ(Value("ebb_rpc_handled_total{method=\"SessionService/CreateSession\",code=\"INVALID_ARGUMENT\"}"), 1);
  Converse();  // from now on the tenant has a name
  EXPECT_FALSE(client_.Create(SessionWith(StreamingPolicy(1)), &session).ok());
  EXPECT_TRUE(EventuallyIs("ebb_refusals_total{tenant=\"acme\",reason=\"BUDGET_TOO_SMALL\"}", 1));
}

// At whatever moment one looks, a worker that has steps to run is at one, and one that has none is not.
TEST_F(MetricsPage, SaysHowLongTheWorkerHasBeenAtOneThing) {
  EXPECT_TRUE(EventuallyIs("ebb_worker_busy_seconds", 0));
  const std::string name = client_.Create(SessionWith(StreamingPolicy(kBudget))).name();
  const auto context = client_.Context();
  const auto stream = client_.inference().Generate(context.get(), GenerateText(name, "Once", kEndless));
  v1::GenerateResponse message;
  ASSERT_TRUE(stream->Read(&message));
  std::thread reader([&] {
    while (stream->Read(&message)) continue;
    stream->Finish().ok();
  });
  EXPECT_TRUE(Eventually([&] { return Value("ebb_worker_busy_seconds") > 0; }));
  context->TryCancel();
  reader.join();
  EXPECT_TRUE(EventuallyIs("ebb_worker_busy_seconds", 0));
}

TEST_F(MetricsPage, TurnsNotReadyWhileTheServerDrains) {
  EXPECT_EQ(http_.Get("/readyz")->status, 200);
  const std::string name = client_.Create(SessionWith(StreamingPolicy(kBudget))).name();
  const auto context = client_.Context();
  const auto stream = client_.inference().Generate(context.get(), GenerateText(name, "Once", 1000000));
  v1::GenerateResponse message;
  ASSERT_TRUE(stream->Read(&message));
  std::thread drain([this] { server_.server().Drain(absl::Seconds(60)); });
  EXPECT_TRUE(Eventually([&] { return http_.Get("/readyz")->status == 503; }));
  EXPECT_EQ(http_.Get("/healthz")->status, 200);
  context->TryCancel();
  while (stream->Read(&message)) continue;
  stream->Finish().ok();
  drain.join();
}

TEST_F(MetricsPage, PassesPromtoolsCheck) {
  if (std::system("command -v promtool > /dev/null") != 0) GTEST_SKIP() << "promtool is not installed";
  Converse();
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/scrape.txt", said = folder.path() + "/promtool.txt";
  std::ofstream(file) << http_.Get("/metrics")->body;
  const int status = std::system(absl::StrFormat("promtool check metrics < %s > %s 2>&1", file, said).c_str());
  EXPECT_EQ(status, 0) << std::ifstream(said).rdbuf();
}

// Prometheus on a free port, scraping `target` ten times a second.
class Prometheus {
 public:
  explicit Prometheus(const std::string& target)
      : folder_(std::filesystem::path(testing::TempDir()) / absl::StrFormat("prometheus-%d", getpid())) {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "prometheus.yml") << absl::StrFormat(
        "global: {scrape_interval: 100ms, scrape_timeout: 100ms}\n"
        "scrape_configs:\n"
        "  - job_name: ebb\n"
        "    static_configs: [{targets: ['%s']}]\n",
        target);
    process_ = std::make_unique<ChildProcess>(std::vector<std::string>{
        "prometheus", "--config.file=" + (folder_ / "prometheus.yml").string(),
        "--storage.tsdb.path=" + (folder_ / "data").string(), "--web.listen-address=127.0.0.1:0"});
    const std::string line = process_->WaitForLine("msg=\"Listening on\"");
    port_ = std::atoi(line.c_str() + std::min(line.size(), line.rfind(':') + 1));
  }

  ~Prometheus() {
    process_.reset();
    std::filesystem::remove_all(folder_);
  }

  // Whether it takes queries yet. Asked over HTTP: the lines that say so come in no certain order with the one of its
  // port.
  bool ready() const {
    if (port_ <= 0) return false;
    const auto answer = httplib::Client("127.0.0.1", port_).Get("/-/ready");
    return answer && answer->status == 200;
  }

  // The one value of an instant query; NaN if there is none.
  double Query(const std::string& query) {
    httplib::Client http("127.0.0.1", port_);
    const auto answer = http.Get("/api/v1/query", httplib::Params{{"query", query}}, httplib::Headers());
    if (!answer) return std::nan("");
    const auto result = nlohmann::json::parse(answer->body)["data"]["result"];
    return result.size() == 1 ? std::stod(result[0]["value"][1].get<std::string>()) : std::nan("");
  }

 private:
  const std::filesystem::path folder_;
  std::unique_ptr<ChildProcess> process_;
  int port_ = 0;
};

TEST_F(MetricsPage, IsScrapedByAPrometheus) {
  if (std::system("command -v prometheus > /dev/null") != 0) GTEST_SKIP() << "prometheus is not installed";
  Converse();
  Prometheus prometheus(FormatAddress(*server_.server().http_address()));
  ASSERT_TRUE(Eventually([&] { return prometheus.ready(); }));
  EXPECT_TRUE(Eventually([&] { return prometheus.Query("ebb_completion_tokens_total{tenant=\"acme\"}") == kTokens; }));
  EXPECT_EQ(prometheus.Query("up{job=\"ebb\"}"), 1);
  EXPECT_EQ(prometheus.Query("ebb_build_info"), 1);
  EXPECT_EQ(prometheus.Query("sum(ebb_cache_bytes{state=~\"free|reserved\"}) > bool 0"), 1);
  EXPECT_GT(prometheus.Query("histogram_quantile(0.5, sum by (le) (ebb_ttft_seconds_bucket))"), 0);
}

// The loss of every n-th step that evicts is measured, and of no other.
TEST(Quality, OneEvictingStepInSoManyIsMeasured) {
  for (const int32_t every : {0, 1, 7}) {
    SCOPED_TRACE(every);
    const TestServer server([every](ServerOptions& options) {
      options.http_listen = {.host = "127.0.0.1", .port = 0};
      options.work.live.measure_every = every;
    });
    TestClient client(server.address());
    const std::string name = client.Create(SessionWith(StreamingPolicy(kBudget))).name();
    EXPECT_TRUE(client.Generate(GenerateText(name, "Once upon a time there was a pond.", kTokens)).status.ok());
    const double evictions = server.Metric("ebb_evictions_total{policy=\"streaming\"}");
    EXPECT_GT(evictions, 2 * 7);
    const double measured = every == 0 ? 0 : std::ceil(evictions / every);
    for (const std::string family : {"ebb_eviction_attention_mass_lost", "ebb_eviction_output_error"}) {
      EXPECT_EQ(server.Metric(family + "_count{policy=\"streaming\"}"), measured) << family;
      const double sum = server.Metric(family + "_sum{policy=\"streaming\"}");
      EXPECT_EQ(sum > 0, every > 0) << family;
    }
    EXPECT_LE(server.Metric("ebb_eviction_attention_mass_lost_sum{policy=\"streaming\"}"), measured);
  }
}

// What calls evict is measured each time, whatever the share of steps is, and counted under the policy in force.
TEST(Quality, WhatCallsEvictIsMeasuredEachTime) {
  const TestServer server([](ServerOptions& options) {
    options.http_listen = {.host = "127.0.0.1", .port = 0};
    options.work.live.measure_every = 0;
  });
  TestClient client(server.address());
  const std::string name = client.Create(SessionWith(StreamingPolicy(kBudget))).name();
  EXPECT_TRUE(client.Generate(GenerateText(name, "Once upon a time there was a pond.", kTokens)).status.ok());
  const auto expect = [&](const std::string& policy, double count, double mass, double error) {
    const std::string label = "{policy=\"" + policy + "\"}";
    EXPECT_EQ(server.Metric("ebb_eviction_attention_mass_lost_count" + label), count);
    EXPECT_NEAR(server.Metric("ebb_eviction_attention_mass_lost_sum" + label), mass, 1e-6);
    EXPECT_EQ(server.Metric("ebb_eviction_output_error_count" + label), count);
    EXPECT_NEAR(server.Metric("ebb_eviction_output_error_sum" + label), error, 1e-6);
  };
  v1::EvictRequest evict;
  evict.set_session(name);
  evict.mutable_keep()->set_count(kBudget - 4);
  evict.set_dry_run(true);
  v1::EvictResponse evicted;
  ASSERT_TRUE(client.eviction().Evict(client.Context().get(), evict, &evicted).ok());
  ASSERT_GT(evicted.attention_mass(), 0);
  expect("streaming", 0, 0, 0);
  evict.set_dry_run(false);
  ASSERT_TRUE(client.eviction().Evict(client.Context().get(), evict, &evicted).ok());
  v1::EvictResponse nobody;
  ASSERT_TRUE(client.eviction().Evict(client.Context().get(), evict, &nobody).ok());
  ASSERT_EQ(nobody.slots_evicted(), 0U);
  expect("streaming", 1, evicted.attention_mass(), evicted.output_error());
  v1::SetPolicyRequest change;
  change.set_session(name);
  change.mutable_policy()->mutable_knorm();
  change.mutable_policy()->mutable_trigger()->set_budget(kBudget - 8);
  v1::SetPolicyResponse changed;
  ASSERT_TRUE(client.eviction().SetPolicy(client.Context().get(), change, &changed).ok());
  ASSERT_GT(changed.changes(0).slots_evicted(), 0U);
  expect("knorm", 1, changed.changes(0).attention_mass(), changed.changes(0).output_error());
  expect("streaming", 1, evicted.attention_mass(), evicted.output_error());
}

}  // namespace
}  // namespace ebb
