// `ebb bench prefill`: a prompt in blocks, from an empty cache; arithmetic decides.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "bench/bench.h"
#include "bench/model_run.h"
#include "policies/status.h"

namespace ebb::bench {
namespace {

struct PrefillOptions {
  ModelOptions model = {.policy = "full"};
  std::vector<int32_t> tokens = {512, 1024, 2048};
};

// Matrices and, causally, attention with K and V of this type: BF16 by its dot products, others as float32.
Work WorkOfPrompt(const OpenModel& open, int32_t tokens, KvType kv_type) {
  Work work;
  for (int32_t at = 0; at < tokens; at += kStepTokens) {
    const int32_t end = std::min(at + kStepTokens, tokens);
    work += open.work.Step(end - at, end == tokens ? 1 : 0);
    work.bytes += end * open.TokenBytes(kv_type);
  }
  const double pairs = 0.5 * tokens * (tokens + 1.0);
  (kv_type == KvType::kBf16 ? work.bf16 : work.fma) += pairs * open.work.attention_per_pair;
  return work;
}

absl::Status RunPrefill(const cli::Shell& shell, const Common& common, const PrefillOptions& options) {
  ModelOptions model = options.model;
  model.slots = *std::ranges::max_element(options.tokens);
  EBB_ASSIGN(const OpenModel open, OpenForBench(common, model));
  EBB_ASSIGN(const ValidSpec policy, open.Policy(model.policy, model.slots, model.kv_type));
  EBB_ASSIGN(const std::unique_ptr<Meter> meter, MakeMeter(common));
  struct Samples {
    std::vector<double> seconds = {}, tokens = {}, roofline = {}, share = {};
  };
  std::vector<Samples> samples(options.tokens.size());
  for (int32_t round = -1; round < common.rounds; ++round) {
    for (size_t i = 0; i < options.tokens.size(); ++i) {
      const int32_t tokens = options.tokens[i];
      EBB_ASSIGN(const auto session, Sessions::Open(*open.engine, policy, 1, kStepTokens, common.seed));
      const Rates rates = meter->Measure();
      const double begin = Now();
      session->Fill(tokens);
      const double seconds = Now() - begin;
      if (round < 0) continue;
      samples[i].seconds.push_back(seconds);
      samples[i].tokens.push_back(tokens / seconds);
      samples[i].roofline.push_back(RooflineSeconds(WorkOfPrompt(open, tokens, model.kv_type), rates));
      samples[i].share.push_back(samples[i].roofline.back() / seconds);
    }
  }
  auto facts = MachineFacts(common);
  facts.emplace_back("model", std::filesystem::path(model.model).filename().string());
  facts.emplace_back("engine", open.engine->fingerprint());
  facts.emplace_back("policy", model.policy);
  Report report("prefill",
                {{.key = "tokens", .header = "tokens"},
                 {.key = "tokens_per_second", .header = "tokens/s", .digits = 1},
                 {.key = "seconds", .header = "ms", .scale = 1e3, .digits = 1},
                 {.key = "roofline_seconds", .header = "roofline, ms", .scale = 1e3, .digits = 1},
                 {.key = "share", .header = "share, %", .scale = 100, .digits = 1}},
                std::move(facts));
  for (size_t i = 0; i < samples.size(); ++i) {
    report.Add({int64_t{options.tokens[i]}, SpreadOf(samples[i].tokens), SpreadOf(samples[i].seconds),
                SpreadOf(samples[i].roofline), SpreadOf(samples[i].share)});
  }
  report.Print(shell.json, common.form);
  return absl::OkStatus();
}

}  // namespace

void AddPrefill(Command bench, cli::Shell& shell) {
  const Command command = bench.add_subcommand("prefill", "Tokens per second of a prompt");
  const auto common = std::make_shared<Common>();
  const auto options = std::make_shared<PrefillOptions>();
  AddModelOptions(command, options->model);
  command.add_option("--tokens", options->tokens, "Lengths of prompts, with commas")
      .delimiter(',')
      .range(1, 1 << 20)
      .default_str("512,1024,2048");
  command.add_option("--policy", options->model.policy, "Policy, with the longest prompt as its budget")
      .default_str("full");
  AddCommonOptions(command, *common);
  command.footer(
      "Blocks of 512 tokens. roofline: operations of the matrices by the ceiling of their kind and of causal\n"
      "attention by that of BF16 (of float32 where K and V are not BF16), all measured in the same round; BF16 by\n"
      "dot products or as float32, whichever is faster here. share: roofline by the time.\n"
      "Example:\n  ebb bench prefill models/ebb-tiny-q8_0.gguf --tokens 512,2048");
  command.callback([&shell, common, options] { Check(shell, RunPrefill(shell, *common, *options)); });
}

}  // namespace ebb::bench
