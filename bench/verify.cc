// `ebb bench verify`: drafts of some tokens that are run and accepted at a full cache, so that as many are evicted
// (EQUIP table 6).

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/model_run.h"
#include "engine/speculation.h"
#include "policies/status.h"

namespace ebb::bench {
namespace {

struct VerifyOptions {
  ModelOptions model = {.slots = 1024};
  std::vector<std::string> policies = {"streaming", "h2o"};
  std::vector<int32_t> sessions = {1, 4, 8, 16};
  std::vector<int32_t> tokens = {1, 16, 64};
};

struct VerifySamples {
  std::vector<double> run = {}, keep = {}, token = {}, ratio = {}, keep_ratio = {};
};

// Of one round, as many samples as there are numbers of tokens.
void MeasureVerify(Sessions& sessions, int32_t count, const std::vector<int32_t>& tokens, bool counts,
                   std::vector<VerifySamples>& samples) {
  double first = 0;
  double first_keep = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Sessions::VerifyTimes times = sessions.Verify(count, tokens[i]);
    const double token = (times.run + times.keep) / tokens[i];
    const double keep = times.keep / tokens[i];
    if (i == 0) first = token;
    if (i == 0) first_keep = keep;
    if (!counts) continue;
    samples[i].run.push_back(times.run);
    samples[i].keep.push_back(times.keep);
    samples[i].token.push_back(token);
    samples[i].ratio.push_back(token / first);
    samples[i].keep_ratio.push_back(keep / first_keep);
  }
}

absl::Status RunVerify(const cli::Shell& shell, const Common& common, const VerifyOptions& options) {
  ModelOptions model = options.model;
  const int32_t sessions_max = *std::ranges::max_element(options.sessions);
  const int32_t tokens_max = *std::ranges::max_element(options.tokens);
  model.sessions = sessions_max * static_cast<int32_t>(options.policies.size());
  model.step_tokens = std::max(kStepTokens, sessions_max * tokens_max);
  if (tokens_max > model.slots) {
    return absl::InvalidArgumentError("--tokens: a draft may not be longer than --slots");
  }
  EBB_ASSIGN(const OpenModel open, OpenForBench(common, model));
  std::vector<std::unique_ptr<Sessions>> all;
  for (const std::string& policy : options.policies) {
    EBB_ASSIGN(const ValidSpec spec, open.Policy(policy, model.slots, model.kv_type));
    EBB_ASSIGN(auto sessions, Sessions::Open(*open.engine, spec, sessions_max, kBlock, common.seed));
    sessions->Fill(model.slots);
    all.push_back(std::move(sessions));
  }
  // [policies][numbers of sessions][numbers of tokens]
  std::vector<std::vector<std::vector<VerifySamples>>> samples(
      all.size(), std::vector(options.sessions.size(), std::vector<VerifySamples>(options.tokens.size())));
  for (int32_t round = -1; round < common.rounds; ++round) {
    for (size_t i = 0; i < all.size(); ++i) {
      for (size_t j = 0; j < options.sessions.size(); ++j) {
        MeasureVerify(*all[i], options.sessions[j], options.tokens, round >= 0, samples[i][j]);
      }
    }
  }
  auto facts = MachineFacts(common);
  facts.emplace_back("model", std::filesystem::path(model.model).filename().string());
  facts.emplace_back("engine", open.engine->fingerprint());
  facts.emplace_back("slots", int64_t{model.slots});
  Report report("verify",
                {{.key = "policy", .header = "policy"},
                 {.key = "sessions", .header = "sessions"},
                 {.key = "tokens", .header = "tokens"},
                 {.key = "run_seconds", .header = "run, ms", .scale = 1e3, .digits = 3},
                 {.key = "keep_seconds", .header = "evict and insert, ms", .scale = 1e3, .digits = 3},
                 {.key = "token_seconds", .header = "both by tokens, ms", .scale = 1e3, .digits = 4},
                 {.key = "ratio", .header = "to the first row", .digits = 3},
                 {.key = "keep_ratio", .header = "evict and insert to it", .digits = 3}},
                std::move(facts));
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < options.sessions.size(); ++j) {
      for (size_t k = 0; k < options.tokens.size(); ++k) {
        const VerifySamples& s = samples[i][j][k];
        report.Add({options.policies[i], int64_t{options.sessions[j]}, int64_t{options.tokens[k]}, SpreadOf(s.run),
                    SpreadOf(s.keep), SpreadOf(s.token), SpreadOf(s.ratio), SpreadOf(s.keep_ratio)});
      }
    }
  }
  report.Print(shell.json, common.form);
  return absl::OkStatus();
}

}  // namespace

void AddVerify(Command bench, cli::Shell& shell) {
  const Command command =
      bench.add_subcommand("verify", "Drafts that are run and accepted at a full cache, in sessions of one step");
  const auto common = std::make_shared<Common>();
  const auto options = std::make_shared<VerifyOptions>();
  AddModelOptions(command, options->model);
  command.add_option("--policies", options->policies, "As in ebb-lab, with commas")
      .delimiter(',')
      .default_str("streaming,h2o");
  command.add_option("--slots", options->model.slots, "Of every lane: the cache that is full")
      .range(16, 1 << 20)
      .default_str("1024");
  command.add_option("--sessions", options->sessions, "In one step, with commas")
      .delimiter(',')
      .range(1, 128)
      .default_str("1,4,8,16");
  command.add_option("--tokens", options->tokens, "Of each session's draft, with commas")
      .delimiter(',')
      .range(1, kDraftTokensMax)
      .default_str("1,16,64");
  AddCommonOptions(command, *common);
  command.footer(
      "run: one step with every session's draft, and the logits of all its tokens. evict and insert: all of them are\n"
      "accepted, each takes the slot of one that the policy lets go, and the scorer hears what it attends to. to the\n"
      "first row: the time by tokens against that of the first of --tokens, in the same round.\n"
      "Example:\n  ebb bench verify models/ebb-tiny-q8_0.gguf --policies h2o --tokens 4,16");
  command.callback([&shell, common, options] { Check(shell, RunVerify(shell, *common, *options)); });
}

}  // namespace ebb::bench
