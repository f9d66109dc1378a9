// `ebb bench serve`: a running server under load, as its clients see it.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/bench.h"
#include "bench/load.h"
#include "client/cli/policy_flags.h"
#include "policies/hash_random.h"

namespace ebb::bench {
namespace {

constexpr uint64_t kPrompts = 2;  // purpose of the seed

struct ServeOptions {
  std::string address = {};
  std::vector<double> rates = {};
  std::vector<int32_t> clients = {};
  int32_t requests = 32, prompt_tokens = 128, max_tokens = 64, warm_up = 2;
  double first_token_ms = 0, per_token_ms = 0;
  uint64_t seed = 1;
  cli::PolicyFlags policy = {};
  lab::TableForm form = lab::TableForm::kText;
};

// Random tokens, other ones for each request, and as many answered tokens for all: nothing ends an answer early.
v1::GenerateRequest RequestOfServe(const ServeOptions& options, uint32_t vocabulary, uint64_t index) {
  v1::GenerateRequest request;
  HashRandom random(HashBits(options.seed, kPrompts, index));
  for (int32_t i = 0; i < options.prompt_tokens; ++i) {
    request.mutable_prompt()->mutable_tokens()->add_ids(
        static_cast<uint32_t>(random.Uniform(0, static_cast<int32_t>(vocabulary) - 1)));
  }
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(options.max_tokens));
  request.mutable_stopping()->set_ignore_eos(true);
  if (options.policy.given()) *request.mutable_policy() = options.policy.Build();
  return request;
}

// Sends requests and keeps what came of them; called by many threads.
class Load {
 public:
  Load(client::Client& client, const ServeOptions& options, uint32_t vocabulary)
      : client_(client), options_(options), vocabulary_(vocabulary) {}

  // Blocks until the answer is whole. The first failure is kept for the report.
  Answer Send(double due) {
    const v1::GenerateRequest request = RequestOfServe(options_, vocabulary_, next_++);
    Answer answer = {.due = due};
    const grpc::Status status = client_.Generate(request, [&answer](const v1::GenerateResponse& message) {
      if (!message.has_decode() || message.decode().tokens_size() == 0) return;
      answer.messages.push_back(Now());
      answer.tokens += message.decode().tokens_size();
    });
    answer.failed = !status.ok();
    if (answer.failed) {
      const std::lock_guard lock(mutex_);
      if (failure_.ok()) failure_ = status;
    }
    return answer;
  }

  // `clients` that each send the next as soon as they have an answer.
  std::vector<Answer> Closed(int32_t clients, int32_t requests) {
    std::vector<Answer> answers(static_cast<size_t>(requests));
    std::atomic<int32_t> taken = 0;
    std::vector<std::thread> threads;
    for (int32_t i = 0; i < std::min(clients, requests); ++i) {
      threads.emplace_back([&] {
        for (int32_t at = taken++; at < requests; at = taken++) answers[static_cast<size_t>(at)] = Send(Now());
      });
    }
    for (std::thread& thread : threads) thread.join();
    return answers;
  }

  // Requests that come when they come, however long the answers take.
  std::vector<Answer> Open(double rate, int32_t requests) {
    std::vector<Answer> answers(static_cast<size_t>(requests));
    std::vector<std::thread> threads;
    const auto begin = std::chrono::steady_clock::now();
    const double zero = Now();
    const std::vector<double> times = PoissonArrivals(rate, requests, options_.seed);
    for (size_t i = 0; i < times.size(); ++i) {
      const auto due = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(times[i]));
      std::this_thread::sleep_until(begin + due);
      threads.emplace_back([&, i] { answers[i] = Send(zero + times[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    return answers;
  }

  const grpc::Status& failure() const { return failure_; }

 private:
  client::Client& client_;
  const ServeOptions& options_;
  uint32_t vocabulary_;
  std::atomic<uint64_t> next_ = 0;
  std::mutex mutex_;
  grpc::Status failure_ = {};
};

const std::vector<Column>& Columns() {
  static const std::vector<Column> columns = {
      {.key = "load", .header = "load"},
      {.key = "answered", .header = "answered"},
      {.key = "failed", .header = "failed"},
      {.key = "tokens_per_second", .header = "tokens/s", .digits = 1},
      {.key = "goodput", .header = "good/s", .digits = 2},
      {.key = "ttft_p50", .header = "TTFT p50, ms", .scale = 1e3, .digits = 1},
      {.key = "ttft_p95", .header = "p95", .scale = 1e3, .digits = 1},
      {.key = "ttft_p99", .header = "p99", .scale = 1e3, .digits = 1},
      {.key = "tpot_p50", .header = "TPOT p50, ms", .scale = 1e3, .digits = 2},
      {.key = "tpot_p99", .header = "p99", .scale = 1e3, .digits = 2},
      {.key = "itl_p50", .header = "ITL p50, ms", .scale = 1e3, .digits = 2},
      {.key = "itl_p95", .header = "p95", .scale = 1e3, .digits = 2},
      {.key = "itl_p99", .header = "p99", .scale = 1e3, .digits = 2},
  };
  return columns;
}

std::vector<Value> RowOf(const std::string& load, const Summary& s) {
  return {load,
          int64_t{s.answered},
          int64_t{s.failed},
          s.tokens_per_second,
          s.goodput,
          s.first_token.p50,
          s.first_token.p95,
          s.first_token.p99,
          s.per_token.p50,
          s.per_token.p99,
          s.gap.p50,
          s.gap.p95,
          s.gap.p99};
}

void RunServe(cli::Shell& shell, const ServeOptions& options) {
  if (!options.address.empty()) shell.address = options.address;
  client::Client client = shell.Connect();
  v1::GetStatusResponse status;
  if (!shell.Check(client.GetStatus(&status))) return;
  Load load(client, options, status.model().vocabulary());
  const Limits limits = {.first_token = options.first_token_ms / 1e3, .per_token = options.per_token_ms / 1e3};
  Report report("serve", Columns(),
                {{"cpu", CpuName()},  // the clients'
                 {"server", status.version()},
                 {"engine", status.model().fingerprint()},
                 {"threads", int64_t{status.model().threads()}},
                 {"seed", static_cast<int64_t>(options.seed)},
                 {"requests", int64_t{options.requests}},
                 {"prompt_tokens", int64_t{options.prompt_tokens}},
                 {"max_tokens", int64_t{options.max_tokens}},
                 {"ttft_limit", limits.first_token},
                 {"tpot_limit", limits.per_token}});
  load.Closed(1, options.warm_up);
  std::vector<int32_t> clients = options.clients;
  if (clients.empty() && options.rates.empty()) clients = {1, 8};
  int32_t answered = 0;
  const auto add = [&](const std::string& name, const std::vector<Answer>& answers) {
    const Summary summary = Summarize(answers, limits);
    answered += summary.answered;
    report.Add(RowOf(name, summary));
  };
  for (const int32_t count : clients) add(absl::StrFormat("%d clients", count), load.Closed(count, options.requests));
  for (const double rate : options.rates) add(absl::StrFormat("%g/s", rate), load.Open(rate, options.requests));
  if (answered == 0) {
    shell.Check(load.failure());
    return;
  }
  report.Print(shell.json, options.form);
}

}  // namespace

void AddServe(Command bench, cli::Shell& shell) {
  const Command command = bench.add_subcommand("serve", "A running server under load, as its clients see it");
  const auto options = std::make_shared<ServeOptions>();
  command.add_option("ADDRESS", options->address, "Of the server; default: --addr");
  command.add_option("--rate", options->rates, "Open loop: requests per second, Poisson arrivals; several with commas")
      .delimiter(',')
      .range(0.001, 10000.0);
  command
      .add_option("--clients", options->clients,
                  "Closed loop: clients that send the next when they have an answer; several with commas. Default: 1,8 "
                  "where there is no --rate")
      .delimiter(',')
      .range(1, 1024);
  command.add_option("--requests", options->requests, "Of each load").range(1, 4096).default_str("32");
  command.add_option("--prompt-tokens", options->prompt_tokens, "Random tokens of a prompt")
      .range(1, 1 << 20)
      .default_str("128");
  command.add_option("--max-tokens", options->max_tokens, "Of every answer").range(1, 1 << 20).default_str("64");
  command.add_option("--warm-up", options->warm_up, "Requests before, that are not counted")
      .range(0, 1000)
      .default_str("2");
  command
      .add_option("--ttft-limit", options->first_token_ms, "Milliseconds to the first token that still count as good")
      .non_negative();
  command.add_option("--tpot-limit", options->per_token_ms, "Milliseconds per further token that still count as good")
      .non_negative();
  command.add_option("--seed", options->seed, "Of prompts and arrivals").default_str("1");
  lab::AddTableOptions(command, options->form);
  options->policy.AddTo(command);
  command.footer(
      "TTFT: from when a request was due (open loop) or sent (closed) to its first token. ITL: between two messages\n"
      "of an answer. TPOT: from the first message to the last, by the tokens after the first. good/s: requests per\n"
      "second whose TTFT and TPOT keep the limits. What the clients take of the machine they share with a server is\n"
      "part of it.\n"
      "Example:\n  ebb bench serve --rate 2,4 --prompt-tokens 512");
  command.callback([&shell, options] { RunServe(shell, *options); });
}

}  // namespace ebb::bench
