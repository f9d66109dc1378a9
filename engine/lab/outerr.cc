#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/lab/lab.h"
#include "engine/lab/policy_text.h"
#include "engine/lab/progress.h"
#include "engine/lab/protocols.h"
#include "engine/lab/table.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

using Json = nlohmann::json;

struct Options {
  std::string model = {};
  std::string cases = {};
  std::vector<std::string> policies = {"h2o",    "h2o+caote",    "h2o+fast_caote",
                                       "tova",   "tova+caote",   "tova+fast_caote",
                                       "snapkv", "snapkv+caote", "snapkv+fast_caote"};
  std::vector<int32_t> budgets = {64, 128, 256};
  int32_t block = 1;
  TableForm form = TableForm::kText;
};

// What evictions cost under one policy: the means over a window's evicting steps, by window.
struct Cost {
  std::vector<double> mass = {};
  std::vector<double> error = {};
  int64_t steps = 0;  // that evicted, all windows
};

struct Mean {
  double value = 0;
  double half_width = 0;  // of the 95 % interval, from the spread between windows
};

Mean MeanOf(const std::vector<double>& values) {
  // Student's t, 97.5 %, by degrees of freedom 1..9; 1.96 beyond is what large samples have.
  constexpr double kT[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262};
  const auto n = static_cast<double>(values.size());
  Mean mean;
  for (const double value : values) mean.value += value / n;
  if (values.size() < 2) return mean;
  double squares = 0;
  for (const double value : values) squares += (value - mean.value) * (value - mean.value);
  const size_t freedom = values.size() - 1;
  const double t = freedom <= std::size(kT) ? kT[freedom - 1] : 1.96;
  mean.half_width = t * std::sqrt(squares / static_cast<double>(freedom) / n);
  return mean;
}

// Streams every window through a session of its own, all at once, `block` tokens a step.
absl::StatusOr<Cost> MeasureCost(Engine& engine, const PolicySpec& spec, std::span<const std::vector<int32_t>> windows,
                                 int32_t block) {
  EBB_ASSIGN(const ValidSpec policy, Resolve(UnderProtocol(spec, Protocol::kStream), LimitsOf(engine.config())));
  std::vector<std::unique_ptr<Session>> sessions;
  for (size_t i = 0; i < windows.size(); ++i) {
    EBB_ASSIGN(sessions.emplace_back(), engine.OpenSession({.policy = policy, .block_size_max = block}));
  }
  Cost cost = {.mass = std::vector<double>(windows.size()), .error = std::vector<double>(windows.size())};
  std::vector<int64_t> steps(windows.size(), 0);
  std::vector<BatchRow> rows;
  for (size_t first = 0; first < windows.front().size(); first += block) {
    rows.clear();
    for (size_t i = 0; i < windows.size(); ++i) {
      const size_t count = std::min<size_t>(block, windows[i].size() - first);
      EBB_TRY(sessions[i]->CanAppend(static_cast<int32_t>(count)));
      rows.push_back(
          {.session = sessions[i].get(), .tokens = std::span(windows[i]).subspan(first, count), .measure = true});
    }
    engine.Run(rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].evicted == 0) continue;
      cost.mass[i] += rows[i].loss.mass;
      cost.error[i] += rows[i].loss.error;
      ++steps[i];
    }
  }
  for (size_t i = 0; i < windows.size(); ++i) {
    cost.mass[i] /= static_cast<double>(std::max<int64_t>(steps[i], 1));
    cost.error[i] /= static_cast<double>(std::max<int64_t>(steps[i], 1));
    cost.steps += steps[i];
  }
  return cost;
}

absl::Status CheckWindows(const Engine& engine, const Cases& cases, const Options& options) {
  if (cases.windows.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s has no windows", options.cases));
  }
  for (const auto& window : cases.windows) {
    if (window.size() == cases.windows.front().size()) continue;
    return absl::InvalidArgumentError(absl::StrFormat("%s: windows of different lengths", options.cases));
  }
  if (cases.windows.size() * static_cast<size_t>(options.block) <= static_cast<size_t>(engine.step_tokens_max())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat("--block: %d tokens of %d windows exceed a step of %d",
                                                    options.block, cases.windows.size(), engine.step_tokens_max()));
}

absl::Status Run(const Lab& lab, const Options& options) {
  EBB_ASSIGN(const std::vector<NamedPolicy> policies, ParsePolicies(options.policies));
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, lab.Open(options.model));
  EBB_ASSIGN(const Cases cases, ReadCases(options.cases, engine->config().vocab));
  EBB_TRY(CheckWindows(*engine, cases, options));
  Progress progress(static_cast<int64_t>(policies.size() * options.budgets.size()));
  Table table = {.header = {"policy", "budget", "evictions", "mass lost", "output error"}};
  for (const int32_t budget : options.budgets) {
    for (const NamedPolicy& policy : policies) {
      PolicySpec spec = policy.spec;
      spec.budget = budget;
      spec.kv_type = KvType::kF32;
      if (!spec.positions) spec.positions = Positions::kOriginal;
      EBB_ASSIGN(const Cost cost, MeasureCost(*engine, spec, cases.windows, options.block));
      const Mean mass = MeanOf(cost.mass);
      const Mean error = MeanOf(cost.error);
      if (lab.json) {
        const Json line = {{"policy", policy.name},         {"budget", budget},
                           {"evictions", cost.steps},       {"mass", mass.value},
                           {"mass_half", mass.half_width},  {"error", error.value},
                           {"error_half", error.half_width}};
        absl::PrintF("%s\n", line.dump());
      }
      table.rows.push_back({policy.name, absl::StrFormat("%d", budget), absl::StrFormat("%d", cost.steps),
                            absl::StrFormat("%.5f +- %.5f", mass.value, mass.half_width),
                            absl::StrFormat("%.5f +- %.5f", error.value, error.half_width)});
      progress.Add(1, absl::StrFormat("%s %d", policy.name, budget));
    }
  }
  progress.Clear();
  if (!lab.json) absl::PrintF("%s", Format(table, options.form));
  return absl::OkStatus();
}

}  // namespace

void AddOuterr(CLI::App& app, Lab& lab) {
  CLI::App* const command = app.add_subcommand("outerr", "Mean output error per eviction, with and without CAOTE");
  const auto options = std::make_shared<Options>();
  command->add_option("FILE", options->model, "Model file (GGUF)")->required();
  command->add_option("CASES", options->cases, "A cases file, of which the text windows are read (JSON)")->required();
  command->add_option("--policies", options->policies, PolicyHelp())->delimiter(',')->capture_default_str();
  command->add_option("--budgets", options->budgets, "Tokens per lane")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--block", options->block, "Tokens per step; eviction follows each")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  AddTableOptions(*command, options->form);
  AddComputeOptions(*command, lab);
  command->footer(
      "Each window is streamed, the same tokens under every policy. Of each step that evicts: the newest token's\n"
      "attention that left, and how far its attention output moved, |X - X'| / |X|, means over layers and heads. Then\n"
      "the mean over steps and windows, and Student's 95 % interval from the spread between windows.");
  command->callback([&lab, options] { lab.Check(Run(lab, *options)); });
}

}  // namespace ebb::lab
