#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/lab/lab.h"
#include "engine/lab/policy_text.h"
#include "engine/lab/progress.h"
#include "engine/lab/protocols.h"
#include "engine/lab/statistics.h"
#include "engine/lab/table.h"
#include "policies/registry.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

using Json = nlohmann::json;

constexpr char kText[] = "text";

struct Options {
  std::string model = {};
  std::string cases = {};
  std::vector<std::string> policies = {};
  std::vector<std::string> tasks = {"prefill", "stream", "again", "text"};
  std::vector<int32_t> budgets = {64, 128, 256};
  int32_t prompts = 0;
  TableForm form = TableForm::kText;
};

// As the card measures, where the word leaves it open, so that policies differ by their choice alone.
PolicySpec AsOnTheCard(PolicySpec spec, int32_t budget) {
  spec.budget = budget;
  spec.kv_type = KvType::kF32;
  if (!spec.positions) spec.positions = Positions::kOriginal;
  return spec;
}

std::vector<Prompt> Choose(const std::vector<Prompt>& all, int32_t count) {
  std::vector<Prompt> prompts;
  for (const size_t i : SpreadOver(all.size(), count > 0 ? static_cast<size_t>(count) : all.size())) {
    prompts.push_back(all[i]);
  }
  return prompts;
}

// One cell of the table: "0.42 [0.29, 0.56]", or a perplexity.
absl::StatusOr<std::string> MeasureCell(const Lab& lab, Engine& engine, const Cases& cases, const Options& options,
                                        const std::string& task, const NamedPolicy& policy, int32_t budget,
                                        const ProtocolOptions& protocol_options) {
  const PolicySpec spec = AsOnTheCard(policy.spec, budget);
  Json line = {{"task", task}, {"policy", policy.name}, {"budget", budget}};
  std::string cell;
  if (task == kText) {
    EBB_ASSIGN(const double loss, WindowLoss(engine, spec, cases.windows, protocol_options));
    cell = absl::StrFormat("%.2f", std::exp(loss));
    line["perplexity"] = std::exp(loss);
  } else {
    const Protocol protocol = *FindProtocol(task);
    const std::vector<Prompt> prompts = Choose(cases.of(protocol), options.prompts);
    EBB_ASSIGN(const std::string right, Solve(engine, spec, protocol, prompts, protocol_options));
    const auto solved = std::ranges::count(right, '1');
    const auto all = static_cast<int64_t>(right.size());
    const Interval interval = Wilson(solved, all);
    cell = absl::StrFormat("%.2f [%.2f, %.2f]", static_cast<double>(solved) / static_cast<double>(all), interval.low,
                           interval.high);
    line.update({{"right", right}, {"low", interval.low}, {"high", interval.high}});
  }
  if (lab.json) absl::PrintF("%s\n", line.dump());
  return cell;
}

absl::Status Run(const Lab& lab, const Options& options) {
  EBB_ASSIGN(const std::vector<NamedPolicy> policies, ParsePolicies(options.policies));
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, lab.Open(options.model));
  EBB_ASSIGN(const Cases cases, ReadCases(options.cases, engine->config().vocab));
  const size_t most = std::min(cases.passkey.size(), cases.again.size());
  if (static_cast<size_t>(options.prompts) > most || most == 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--prompts: %d; %s has %d of each protocol", options.prompts, options.cases, most));
  }
  Progress progress(static_cast<int64_t>(policies.size() * options.budgets.size() * options.tasks.size()));
  Table table = {.header = {"policy", "budget"}};
  for (const std::string& task : options.tasks) table.header.push_back(task == kText ? "perplexity" : task);
  for (const NamedPolicy& policy : policies) {
    for (const int32_t budget : options.budgets) {
      std::vector<std::string>& row = table.rows.emplace_back();
      row = {policy.name, absl::StrFormat("%d", budget)};
      for (const std::string& task : options.tasks) {
        const std::string what = absl::StrFormat("%s %s %d", task, policy.name, budget);
        progress.Add(0, what);
        const auto cell = MeasureCell(lab, *engine, cases, options, task, policy, budget, {});
        // A budget below what the policy protects is no cell, and no reason to lose the others.
        if (!cell.ok() && GetRefusal(cell.status()).reason != "BUDGET_TOO_SMALL") return cell.status();
        row.push_back(cell.ok() ? *cell : "-");
        progress.Add(1, what);
      }
    }
  }
  progress.Clear();
  if (!lab.json) absl::PrintF("%s", Format(table, options.form));
  return absl::OkStatus();
}

// Every scorer that evicts, knorm in both forms, and what CAOTE makes of those that score attention.
std::vector<std::string> EveryPolicy() {
  std::vector<std::string> policies;
  for (const ScorerRow& row : ScorerRegistry()) {
    if (!row.evicts) continue;
    policies.emplace_back(row.name);
    if (row.name == "knorm") policies.emplace_back("knorm:keep=long");
    if (row.non_negative) policies.push_back(std::string(row.name) + "+caote");
    if (row.non_negative) policies.push_back(std::string(row.name) + "+fast_caote");
  }
  return policies;
}

}  // namespace

void AddRecall(CLI::App& app, Lab& lab) {
  CLI::App* const command = app.add_subcommand("recall", "Passkeys recalled and perplexity, by policy and budget");
  const auto options = std::make_shared<Options>();
  options->policies = EveryPolicy();
  command->add_option("FILE", options->model, "Model file (GGUF)")->required();
  command->add_option("CASES", options->cases, "Prompts, answers and text windows as token ids (JSON)")->required();
  command->add_option("--policies", options->policies, PolicyHelp() + "; default: every scorer and modifier")
      ->delimiter(',');
  command->add_option("--budgets", options->budgets, "Tokens per lane")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--tasks", options->tasks, "Protocols (prefill, stream, again) and text, for perplexity")
      ->delimiter(',')
      ->check(CLI::IsMember({"prefill", "stream", "again", "text"}))
      ->capture_default_str();
  command->add_option("--prompts", options->prompts, "So many prompts of each protocol, evenly spread; 0: all")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  AddTableOptions(*command, options->form);
  AddComputeOptions(*command, lab);
  command->footer(
      "F32 cache, original positions, blocks of 32, eviction after each block and each decoded token. In brackets\n"
      "Wilson's 95 % interval. '-': the budget is below what the policy protects.");
  command->callback([&lab, options] { lab.Check(Run(lab, *options)); });
}

}  // namespace ebb::lab
