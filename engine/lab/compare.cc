#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/lab/grid.h"
#include "engine/lab/lab.h"
#include "engine/lab/plot.h"
#include "engine/lab/progress.h"
#include "engine/lab/protocols.h"
#include "engine/lab/record.h"
#include "engine/lab/statistics.h"
#include "engine/lab/table.h"
#include "engine/lab/windows.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

struct CompareOptions {
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

struct Result {
  double value = 0;
  Interval interval = {};  // 95 %
  size_t samples = 0;      // prompts or windows
};

// A cell, and by the measures' names what could be measured of it.
struct Row {
  Cell cell = {};
  std::map<std::string, Result> results = {};
};

Result ResultOf(const Mean& mean, size_t samples) {
  return {mean.value, {.low = mean.value - mean.half_width, .high = mean.value + mean.half_width}, samples};
}

absl::Status MeasurePrompts(Engine& engine, const Cases& cases, const CompareOptions& options, std::span<Row> rows,
                            Record& record, Progress& progress) {
  const SpecLimits limits = LimitsOf(engine.config());
  for (Row& row : rows) {
    for (const Protocol protocol : kProtocols) {
      const std::string name = ProtocolName(protocol);
      const auto tick = [&](int64_t tokens) { progress.Add(tokens, name + " " + row.cell.name()); };
      const std::vector<Prompt> prompts = Choose(cases.of(protocol), options.prompts);
      if (!CanFollow(row.cell.spec, protocol, limits)) {
        tick(WorkOf(prompts));
        continue;
      }
      EBB_ASSIGN(const std::string right,
                 Solve(engine, row.cell, protocol, prompts, {.record = &record, .tick = tick}));
      const auto all = static_cast<int64_t>(right.size());
      const int64_t solved = std::ranges::count(right, '1');
      row.results[name] = {static_cast<double>(solved) / static_cast<double>(all), Wilson(solved, all), right.size()};
    }
  }
  return absl::OkStatus();
}

absl::Status MeasureWindows(Engine& engine, const Cases& cases, std::span<Row> rows, Record& record,
                            Progress& progress) {
  std::vector<Cell> cells;
  for (const Row& row : rows) {
    cells.push_back(row.cell);
    cells.back().possible = CanFollow(row.cell.spec, Protocol::kStream, LimitsOf(engine.config()));
  }
  const auto tick = [&](int64_t tokens) { progress.Add(tokens, "windows"); };
  EBB_ASSIGN(const auto measured,
             RunWindows(engine, cells, cases.windows,
                        {.against = Against::kFull, .measure = true, .record = &record, .tick = tick}));
  for (size_t i = 0; i < cells.size(); ++i) {
    if (!cells[i].possible) continue;
    const std::vector<WindowResult>& windows = measured[i];
    Result loss = ResultOf(LossOf(windows), windows.size());
    rows[i].results["perplexity"] = {
        std::exp(loss.value), {.low = std::exp(loss.interval.low), .high = std::exp(loss.interval.high)}, loss.samples};
    rows[i].results["KL"] = ResultOf(DivergenceOf(windows), windows.size());
    rows[i].results["agreement"] = ResultOf(AgreementOf(windows), windows.size());
    rows[i].results["mass lost"] = ResultOf(MassLostOf(windows), windows.size());
    rows[i].results["output error"] = ResultOf(ErrorOf(windows), windows.size());
  }
  return absl::OkStatus();
}

Table TableOf(std::span<const Row> rows) {
  Table table = {.header = {"policy", "budget"}};
  for (const Measure& measure : kMeasures) table.header.push_back(measure.name);
  for (const Row& row : rows) {
    std::vector<std::string>& line = table.rows.emplace_back();
    line = {row.cell.policy, row.cell.budget()};
    for (const Measure& measure : kMeasures) {
      const auto found = row.results.find(measure.name);
      line.push_back(
          found == row.results.end() ? "-" : WithInterval(found->second.value, found->second.interval, measure.digits));
    }
  }
  return table;
}

// A line for each number.
Table NumbersOf(std::span<const Row> rows) {
  Table table = {.header = {"policy", "budget", "measure", "value", "low", "high", "samples"}};
  for (const Row& row : rows) {
    for (const Measure& measure : kMeasures) {
      const auto found = row.results.find(measure.name);
      if (found == row.results.end()) continue;
      const Result& result = found->second;
      table.rows.push_back({row.cell.policy, row.cell.budget(), measure.name, absl::StrFormat("%.9g", result.value),
                            absl::StrFormat("%.9g", result.interval.low), absl::StrFormat("%.9g", result.interval.high),
                            absl::StrCat(result.samples)});
    }
  }
  return table;
}

Plot PlotOf(std::span<const Row> rows, const Engine& engine) {
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
    for (const Row& row : rows) {
      const size_t line = place(plot.rows, row.cell.policy);
      const size_t series = place(plot.series, row.cell.budget());
      const auto found = row.results.find(measure.name);
      if (found == row.results.end()) continue;
      panel.dots.push_back(
          {.row = line, .series = series, .value = found->second.value, .interval = found->second.interval});
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

absl::Status RunCompare(const Lab& lab, const CompareOptions& options) {
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, lab.Open(options.model));
  EBB_ASSIGN(const std::vector<Cell> cells, CellsOf(options.grid, LimitsOf(engine->config())));
  EBB_ASSIGN(const Cases cases, ReadCases(options.cases, engine->config().vocab));
  EBB_TRY(CheckPromptCount(options.prompts, options.cases, cases));
  EBB_ASSIGN(Record record,
             lab.Resume(*engine, {.command = "compare",
                                  .model = options.model,
                                  .files = {{"CASES", options.cases}},
                                  .flags = SettingsOf(options.grid, {{"--prompts", absl::StrCat(options.prompts)}})}));
  std::vector<Row> rows;
  for (const Cell& cell : cells) rows.push_back({.cell = cell});
  int64_t work = WorkOf(cells, cases.windows);
  for (const Protocol protocol : kProtocols) {
    work += WorkOf(Choose(cases.of(protocol), options.prompts)) * static_cast<int64_t>(cells.size());
  }
  Progress progress(work);
  EBB_TRY(MeasureWindows(*engine, cases, rows, record, progress));
  EBB_TRY(MeasurePrompts(*engine, cases, options, rows, record, progress));
  progress.Clear();
  const Table table = TableOf(rows);
  EBB_TRY(Write(options.csv, Format(NumbersOf(rows), TableForm::kCsv)));
  EBB_TRY(Write(options.markdown, Format(table, TableForm::kMarkdown)));
  EBB_TRY(Write(options.svg, Svg(PlotOf(rows, *engine))));
  absl::PrintF("%s", Format(table, TableForm::kText));
  return absl::OkStatus();
}

}  // namespace

void AddCompare(Command app, Lab& lab) {
  const Command command =
      app.add_subcommand("compare", "Every measure of every policy at every budget: a table and a plot");
  const auto options = std::make_shared<CompareOptions>();
  options->grid.policies = EveryPolicy();
  options->grid.policies.insert(options->grid.policies.begin(), "full");
  command.add_option("FILE", options->model, "Model file (GGUF)").required();
  command.add_option("CASES", options->cases, "Prompts, answers and text windows as token ids (JSON)").required();
  AddGridOptions(command, options->grid, CacheFlags::kFixed);
  AddPromptsOption(command, options->prompts, "So many prompts of each protocol");
  command.add_option("--csv", options->csv, "Write the numbers here, a line for each");
  command.add_option("--markdown", options->markdown, "Write the table here");
  command.add_option("--svg", options->svg, "Write the plot here");
  AddResumeOption(command, lab);
  AddComputeOptions(command, lab);
  command.footer(
      "F32 cache, original positions, blocks of 32, eviction after each block and each decoded token. Shares of "
      "prompts\n"
      "solved with Wilson's 95 % interval; over the text windows, with Student's: perplexity, divergence from a full\n"
      "cache and equal best tokens (second halves), attention mass lost and output error per evicting step.\n"
      "'-': the budget is below what the policy protects, or nothing ends the prompt, for which ada waits.");
  command.callback([&lab, options] { lab.Check(RunCompare(lab, *options)); });
}

}  // namespace ebb::lab
