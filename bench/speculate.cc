// `ebb bench speculate`: a running server's tokens per second with drafts and without.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/bench.h"
#include "client/cli/policy_flags.h"

namespace ebb::bench {
namespace {

// What it says it has said before, so that drafts are often right where the model goes on with it.
constexpr char kRepeated[] =
    "The lamp is in the cellar, the key is in the kitchen, and the door is at the back of the house.\n";
constexpr int kRepetitions = 8;
// Of which nothing was said before.
constexpr char kOrdinary[] =
    "When the rain had stopped, the old captain went down to the harbour to see what was left of the boats. Two of "
    "them "
    "lay on their sides in the mud, and a third had been carried over the wall into somebody's garden. He walked "
    "around "
    "it twice, knocked on the planks as a doctor would, and asked the woman at the window whether she had lost any "
    "sleep.";

struct SpeculateOptions {
  std::string address = {}, draft_model = {};
  std::vector<int32_t> clients = {1};
  int32_t rounds = 7, max_tokens = 256, draft_tokens = 16;
  uint64_t seed = 1;
  cli::PolicyFlags policy = {};
  lab::TableForm form = lab::TableForm::kText;
};

struct Text {
  std::string name = {}, prompt = {};
  float temperature = 0;
};

std::vector<Text> Texts() {
  std::string repeated;
  for (int i = 0; i < kRepetitions; ++i) repeated += kRepeated;
  return {{"repetitive", repeated, 0}, {"ordinary", kOrdinary, 1}};
}

v1::GenerateRequest RequestOfSpeculate(const SpeculateOptions& options, const Text& text, uint64_t seed, bool drafts) {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text(text.prompt);
  request.mutable_sampling()->set_temperature(text.temperature);
  request.mutable_sampling()->set_seed(seed);
  request.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(options.max_tokens));
  request.mutable_stopping()->set_ignore_eos(true);
  if (options.policy.given()) *request.mutable_policy() = options.policy.Build();
  if (!drafts) return request;
  v1::Speculation& speculation = *request.mutable_speculation();
  speculation.set_ngram(options.draft_model.empty());
  speculation.set_draft_model(options.draft_model);
  speculation.set_draft_tokens_max(static_cast<uint32_t>(options.draft_tokens));
  return request;
}

struct Told {
  grpc::Status status = {};
  std::vector<uint32_t> tokens = {};
  v1::DecodeResponse last = {};
};

Told Tell(client::Client& client, const v1::GenerateRequest& request) {
  Told told;
  told.status = client.Generate(request, [&told](const v1::GenerateResponse& message) {
    if (!message.has_decode()) return;
    told.tokens.insert(told.tokens.end(), message.decode().tokens().begin(), message.decode().tokens().end());
    told.last = message.decode();
  });
  return told;
}

// Of some clients at once, each with a seed of its own.
std::vector<Told> TellAll(client::Client& client, const SpeculateOptions& options, const Text& text, int32_t clients,
                          uint64_t seed, bool drafts) {
  std::vector<Told> all(static_cast<size_t>(clients));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < all.size(); ++i) {
    threads.emplace_back([&, i] { all[i] = Tell(client, RequestOfSpeculate(options, text, seed + i, drafts)); });
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

// From first token to last, of all together.
double Rate(const std::vector<Told>& all) {
  double rate = 0;
  for (const Told& told : all) {
    const auto& decode = told.last.timings().decode();
    const double seconds = static_cast<double>(decode.seconds()) + 1e-9 * decode.nanos();
    rate += (static_cast<double>(told.tokens.size()) - 1) / seconds;
  }
  return rate;
}

struct SpeculateSamples {
  std::vector<double> without = {}, with = {}, ratio = {};
  double drafted = 0, accepted = 0, generated = 0;
};

// False when a call failed, or drafts changed what was said.
bool MeasureSpeculate(cli::Shell& shell, client::Client& client, const SpeculateOptions& options, const Text& text,
                      int32_t clients, SpeculateSamples& samples) {
  for (int32_t round = -1; round < options.rounds; ++round) {
    const uint64_t seed = options.seed + static_cast<uint64_t>(round + 1) * 1000;
    const std::vector<Told> without = TellAll(client, options, text, clients, seed, false);
    const std::vector<Told> with = TellAll(client, options, text, clients, seed, true);
    for (size_t i = 0; i < with.size(); ++i) {
      if (!shell.Check(without[i].status) || !shell.Check(with[i].status)) return false;
      if (with[i].tokens == without[i].tokens) continue;
      shell.Failed("INTERNAL", "", absl::StrFormat("seed %d: with drafts the answer is another", seed + i));
      return false;
    }
    if (round < 0) continue;
    samples.without.push_back(Rate(without));
    samples.with.push_back(Rate(with));
    samples.ratio.push_back(samples.with.back() / samples.without.back());
    for (const Told& told : with) {
      samples.drafted += told.last.usage().drafted_tokens();
      samples.accepted += told.last.usage().accepted_draft_tokens();
      samples.generated += static_cast<double>(told.tokens.size());
    }
  }
  return true;
}

void RunSpeculate(cli::Shell& shell, const SpeculateOptions& options) {
  if (!options.address.empty()) shell.address = options.address;
  client::Client client = shell.Connect();
  v1::GetStatusResponse status;
  if (!shell.Check(client.GetStatus(&status))) return;
  Report report("speculate",
                {{.key = "text", .header = "text"},
                 {.key = "clients", .header = "clients"},
                 {.key = "without_tokens_per_second", .header = "tokens/s without", .digits = 1},
                 {.key = "with_tokens_per_second", .header = "with drafts", .digits = 1},
                 {.key = "ratio", .header = "ratio", .digits = 2},
                 {.key = "drafted_share", .header = "drafted, % of generated", .scale = 100, .digits = 0},
                 {.key = "accepted_share", .header = "accepted, % of drafted", .scale = 100, .digits = 0}},
                {{"cpu", CpuName()},  // the clients'
                 {"server", status.version()},
                 {"engine", status.model().fingerprint()},
                 {"threads", int64_t{status.model().threads()}},
                 {"drafts", options.draft_model.empty() ? "ngram" : options.draft_model},
                 {"draft_tokens", int64_t{options.draft_tokens}},
                 {"rounds", int64_t{options.rounds}},
                 {"seed", static_cast<int64_t>(options.seed)},
                 {"max_tokens", int64_t{options.max_tokens}}});
  for (const Text& text : Texts()) {
    for (const int32_t clients : options.clients) {
      SpeculateSamples samples;
      if (!MeasureSpeculate(shell, client, options, text, clients, samples)) return;
      const double accepted = samples.drafted == 0 ? 0 : samples.accepted / samples.drafted;
      report.Add({text.name, int64_t{clients}, SpreadOf(samples.without), SpreadOf(samples.with),
                  SpreadOf(samples.ratio), samples.drafted / samples.generated, accepted});
    }
  }
  report.Print(shell.json, options.form);
}

}  // namespace

void AddSpeculate(Command bench, cli::Shell& shell) {
  const Command command =
      bench.add_subcommand("speculate", "A running server with drafts and without, on text that repeats itself or not");
  const auto options = std::make_shared<SpeculateOptions>();
  command.add_option("ADDRESS", options->address, "Of the server; default: --addr");
  command.add_option("--draft-model", options->draft_model, "The server's draft model; default: prompt lookup");
  command.add_option("--draft-tokens", options->draft_tokens, "Most tokens of a draft").range(1, 63).default_str("16");
  command.add_option("--clients", options->clients, "At once, with commas")
      .delimiter(',')
      .range(1, 256)
      .default_str("1");
  command.add_option("--rounds", options->rounds, "Without and with in turn; one more round is not counted")
      .range(1, 1000)
      .default_str("7");
  command.add_option("--max-tokens", options->max_tokens, "Of every answer").range(2, 1 << 20).default_str("256");
  command.add_option("--seed", options->seed, "Of what is drawn").default_str("1");
  lab::AddTableOptions(command, options->form);
  options->policy.AddTo(command);
  command.footer(
      "repetitive: a sentence eight times, gone on with greedily. ordinary: a paragraph, gone on with at temperature\n"
      "1. tokens/s: from an answer's first token to its last, summed over the clients; medians over rounds. ratio:\n"
      "with by without, of each round. Every answer with drafts is compared with the one without, and another one is\n"
      "an error.\n"
      "Example:\n  ebb bench speculate --clients 1,4");
  command.callback([&shell, options] { RunSpeculate(shell, *options); });
}

}  // namespace ebb::bench
