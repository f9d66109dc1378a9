#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/lab/grid.h"
#include "engine/lab/lab.h"
#include "engine/lab/plot.h"
#include "engine/lab/progress.h"
#include "engine/lab/protocols.h"
#include "engine/lab/results.h"
#include "engine/lab/table.h"
#include "engine/lab/windows.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

struct Options {
  std::string model = {};
  std::string cases = {};
  Grid grid = {};
  int32_t prompts = 0;
  std::string csv = {};
  std::string markdown = {};
  std::string svg = {};
};

// A column of the table: shares have an axis of their own, the others one by their numbers.
struct Measure {
  std::string name = {};
  int digits = 2;
  bool share = false;
};

// The protocols, and what one run over the windows gives.
const Measure kMeasures[] = {{"prefill", 2, true}, {"stream", 2, true}, {"again", 2, true},
                             {"perplexity", 2},    {"KL", 4},           {"agreement", 3, true},
                             {"mass lost", 4},     {"output error", 4}};

constexpr size_t kCellsAtOnce = 15;  // that run over the windows side by side, and are kept together

Interval Around(const Mean& mean) {
  return {.low = mean.value - mean.half_width, .high = mean.value + mean.half_width};
}

absl::Status MeasurePrompts(Engine& engine, const Cases& cases, const Options& options, const std::vector<Cell>& cells,
                            Results& results, Progress& progress) {
  const SpecLimits limits = LimitsOf(engine.config());
  for (const Cell& cell : cells) {
    for (const Protocol protocol : kProtocols) {
      const std::string what = absl::StrFormat("%s %s %s", ProtocolName(protocol), cell.policy, cell.budget());
      progress.Add(0, what);
      const bool known = results.Find(cell.policy, cell.budget(), ProtocolName(protocol)) != nullptr;
      if (!known && CanFollow(cell.spec, protocol, limits)) {
        const std::vector<Prompt> prompts = Choose(cases.of(protocol), options.prompts);
        EBB_ASSIGN(const std::string right, Solve(engine, cell.spec, protocol, prompts, {}));
        const auto all = static_cast<int64_t>(right.size());
        const int64_t solved = std::ranges::count(right, '1');
        EBB_TRY(results.Add({.policy = cell.policy,
                             .budget = cell.budget(),
                             .measure = ProtocolName(protocol),
                             .value = static_cast<double>(solved) / static_cast<double>(all),
                             .interval = Wilson(solved, all),
                             .samples = all}));
      }
      progress.Add(1, what);
    }
  }
  return absl::OkStatus();
}

absl::Status Keep(const Cell& cell, std::span<const WindowResult> windows, Results& results) {
  const Mean loss = LossOf(windows);
  const auto add = [&](const std::string& measure, double value, const Interval& interval) {
    return results.Add({.policy = cell.policy,
                        .budget = cell.budget(),
                        .measure = measure,
                        .value = value,
                        .interval = interval,
                        .samples = static_cast<int64_t>(windows.size())});
  };
  const Interval around = Around(loss);
  EBB_TRY(add("KL", DivergenceOf(windows).value, Around(DivergenceOf(windows))));
  EBB_TRY(add("agreement", AgreementOf(windows).value, Around(AgreementOf(windows))));
  EBB_TRY(add("mass lost", MassLostOf(windows).value, Around(MassLostOf(windows))));
  EBB_TRY(add("output error", ErrorOf(windows).value, Around(ErrorOf(windows))));
  // The last, and so the sign that all are there.
  return add("perplexity", std::exp(loss.value), {.low = std::exp(around.low), .high = std::exp(around.high)});
}

absl::Status MeasureWindows(Engine& engine, const Cases& cases, const std::vector<Cell>& cells, Results& results,
                            Progress& progress) {
  const SpecLimits limits = LimitsOf(engine.config());
  std::vector<Cell> missing;
  for (const Cell& cell : cells) {
    const bool known = results.Find(cell.policy, cell.budget(), "perplexity") != nullptr;
    if (!known && CanFollow(cell.spec, Protocol::kStream, limits)) missing.push_back(cell);
  }
  progress.Add(static_cast<int64_t>(cells.size() - missing.size()), "windows");
  for (size_t first = 0; first < missing.size(); first += kCellsAtOnce) {
    const std::span<const Cell> some =
        std::span(missing).subspan(first, std::min(kCellsAtOnce, missing.size() - first));
    EBB_ASSIGN(const auto measured,
               RunWindows(engine, some, cases.windows, {.against = Against::kFull, .measure = true}));
    for (size_t i = 0; i < some.size(); ++i) EBB_TRY(Keep(some[i], measured[i], results));
    progress.Add(static_cast<int64_t>(some.size()), "windows");
  }
  return absl::OkStatus();
}

Table TableOf(const std::vector<Cell>& cells, const Results& results) {
  Table table = {.header = {"policy", "budget"}};
  for (const Measure& measure : kMeasures) table.header.push_back(measure.name);
  for (const Cell& cell : cells) {
    std::vector<std::string>& row = table.rows.emplace_back();
    row = {cell.policy, cell.budget()};
    for (const Measure& measure : kMeasures) {
      const Result* const result = results.Find(cell.policy, cell.budget(), measure.name);
      row.push_back(result == nullptr ? "-" : WithInterval(result->value, result->interval, measure.digits));
    }
  }
  return table;
}

Plot PlotOf(const std::vector<Cell>& cells, const Results& results, const Engine& engine) {
  Plot plot = {.title = absl::StrFormat("%s: policies by budget, with 95 %% intervals", engine.config().name)};
  const auto place = [](std::vector<std::string>& names, const std::string& name) {
    const auto found = std::ranges::find(names, name);
    if (found != names.end()) return static_cast<size_t>(found - names.begin());
    names.push_back(name);
    return names.size() - 1;
  };
  for (const Measure& measure : kMeasures) {
    Panel& panel = plot.panels.emplace_back();
    panel.title = measure.name;
    if (measure.share && measure.name != "agreement") panel.max = 1;
    for (const Cell& cell : cells) {
      const size_t row = place(plot.rows, cell.policy);
      const size_t series = place(plot.series, cell.budget());
      const Result* const result = results.Find(cell.policy, cell.budget(), measure.name);
      if (result == nullptr) continue;
      panel.dots.push_back({.row = row, .series = series, .value = result->value, .interval = result->interval});
    }
  }
  return plot;
}

absl::Status Write(const std::string& path, const std::string& text) {
  if (path.empty()) return absl::OkStatus();
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.flush();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrFormat("%s: cannot be written", path));
}

absl::Status Run(const Lab& lab, const Options& options) {
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, lab.Open(options.model));
  EBB_ASSIGN(const std::vector<Cell> cells, CellsOf(options.grid, LimitsOf(engine->config())));
  EBB_ASSIGN(const std::string cases_text, ReadText(options.cases));
  EBB_ASSIGN(const Cases cases, ReadCases(options.cases, engine->config().vocab));
  EBB_TRY(CheckPromptCount(options.prompts, options.cases, cases));
  const std::string run = RunName({engine->fingerprint(), cases_text, absl::StrFormat("%d", options.prompts),
                                   absl::StrFormat("%d", options.grid.seed)});
  EBB_ASSIGN(Results results, Results::Open(options.csv, run));
  Progress progress(static_cast<int64_t>(cells.size() * (std::size(kProtocols) + 1)));
  EBB_TRY(MeasureWindows(*engine, cases, cells, results, progress));
  EBB_TRY(MeasurePrompts(*engine, cases, options, cells, results, progress));
  progress.Clear();
  const Table table = TableOf(cells, results);
  EBB_TRY(Write(options.markdown, Format(table, TableForm::kMarkdown)));
  EBB_TRY(Write(options.svg, Svg(PlotOf(cells, results, *engine))));
  absl::PrintF("%s", Format(table, TableForm::kText));
  return absl::OkStatus();
}

}  // namespace

void AddCompare(CLI::App& app, Lab& lab) {
  CLI::App* const command =
      app.add_subcommand("compare", "Every measure of every policy at every budget: a table and a plot");
  const auto options = std::make_shared<Options>();
  options->grid.policies = EveryPolicy();
  options->grid.policies.insert(options->grid.policies.begin(), "full");
  command->add_option("FILE", options->model, "Model file (GGUF)")->required();
  command->add_option("CASES", options->cases, "Prompts, answers and text windows as token ids (JSON)")->required();
  AddGridOptions(*command, options->grid, CacheFlags::kFixed);
  AddPromptsOption(*command, options->prompts, "So many prompts of each protocol");
  command->add_option("--csv", options->csv,
                      "Write every number here as it is measured; where the file is there already, go on with it");
  command->add_option("--markdown", options->markdown, "Write the table here");
  command->add_option("--svg", options->svg, "Write the plot here");
  AddComputeOptions(*command, lab);
  command->footer(
      "F32 cache, original positions, blocks of 32, eviction after each block and each decoded token. Shares of "
      "prompts\n"
      "solved with Wilson's 95 % interval; over the text windows, with Student's: perplexity, divergence from a full\n"
      "cache and equal best tokens (second halves), attention mass lost and output error per evicting step. An\n"
      "interrupted run goes on where its --csv ends. '-': the budget is below what the policy protects, or nothing\n"
      "ends the prompt, for which ada waits.");
  command->callback([&lab, options] { lab.Check(Run(lab, *options)); });
}

}  // namespace ebb::lab
