#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/lab/grid.h"
#include "engine/lab/lab.h"
#include "engine/lab/progress.h"
#include "engine/lab/protocols.h"
#include "engine/lab/record.h"
#include "engine/lab/table.h"
#include "engine/lab/windows.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

using Json = nlohmann::json;

struct LazyOptions {
  std::string model = {};
  std::string cases = {};
  Grid grid = {.policies = {"streaming", "h2o"}, .budgets = {128}, .positions = {}};
  std::vector<int32_t> overflows = {1, 8, 32};
  std::vector<int32_t> slacks = {0, 16};
  std::vector<int32_t> max_drops = {0, 8, 32};
  std::string protocol = "again";
  int32_t prompts = 10;
  int32_t block = 1;
  TableForm form = TableForm::kText;
};

// Of each cell first the policy as it is, and then every R x sigma x delta.
std::vector<Cell> Ablated(const std::vector<Cell>& cells, const LazyOptions& options) {
  std::vector<Cell> ablated;
  for (const Cell& cell : cells) {
    ablated.push_back(cell);
    for (const int32_t overflow : options.overflows) {
      for (const int32_t slack : options.slacks) {
        for (const int32_t max_drop : options.max_drops) {
          ablated.push_back(cell);
          ablated.back().spec.overflow = overflow;
          ablated.back().spec.slack = slack;
          ablated.back().spec.max_drop = max_drop;
        }
      }
    }
  }
  return ablated;
}

// What a lane went through, means over the windows.
struct Work {
  double prunings = 0;  // per window
  double dropped = 0;   // tokens per pruning
  double ranked = 0;    // tokens that choosing looked at, per token of the window
  int32_t peak = 0;     // tokens
};

Work WorkOf(std::span<const WindowResult> results, std::span<const Window> windows) {
  Work work;
  double evicted = 0;
  double tokens = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    work.prunings += static_cast<double>(results[i].prunings);
    work.ranked += static_cast<double>(results[i].ranked);
    work.peak = std::max(work.peak, results[i].peak);
    evicted += static_cast<double>(results[i].evicted);
    tokens += static_cast<double>(windows[i].size());
  }
  if (work.prunings > 0) work.dropped = evicted / work.prunings;
  work.prunings /= static_cast<double>(results.size());
  work.ranked /= tokens;
  return work;
}

absl::Status RunLazy(const Lab& lab, const LazyOptions& options) {
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, lab.Open(options.model));
  EBB_ASSIGN(const std::vector<Cell> plain, CellsOf(options.grid, LimitsOf(engine->config())));
  EBB_ASSIGN(const Cases cases, ReadCases(options.cases, engine->config().vocab));
  EBB_TRY(CheckPromptCount(options.prompts, options.cases, cases));
  const std::vector<Cell> cells = Ablated(plain, options);
  const Protocol protocol = *FindProtocol(options.protocol);
  const std::vector<Prompt> prompts = Choose(cases.of(protocol), options.prompts);
  EBB_ASSIGN(Record record,
             lab.Resume(*engine, {.command = "lazy",
                                  .model = options.model,
                                  .files = {{"CASES", options.cases}},
                                  .flags = SettingsOf(options.grid, {{"--protocol", options.protocol},
                                                                     {"--prompts", absl::StrCat(options.prompts)},
                                                                     {"--block", absl::StrCat(options.block)}})}));
  Progress progress(WorkOf(cells, cases.windows) + WorkOf(prompts) * static_cast<int64_t>(cells.size()));
  const auto windows_tick = [&](int64_t tokens) { progress.Add(tokens, "windows"); };
  EBB_ASSIGN(const auto results, RunWindows(*engine, cells, cases.windows,
                                            {.block = options.block, .record = &record, .tick = windows_tick}));
  Table table = {.header = {"policy", "budget", "R", "sigma", "delta", "perplexity", "nll above unhurried",
                            options.protocol, "prunings", "dropped at once", "ranked a token", "peak"}};
  size_t base = 0;
  for (size_t i = 0; i < cells.size(); ++i) {
    const Cell& cell = cells[i];
    const bool unhurried = !cell.spec.overflow;
    if (unhurried) base = i;
    if (!cell.possible) continue;
    const auto tick = [&](int64_t tokens) { progress.Add(tokens, cell.policy); };
    EBB_ASSIGN(const std::string right,
               Solve(*engine, cell, protocol, prompts, {.block = options.block, .record = &record, .tick = tick}));
    const int64_t solved = std::ranges::count(right, '1');
    const Mean above = LossAbove(results[i], results[base]);
    const Work went = WorkOf(results[i], cases.windows);
    if (lab.json) {
      const Json line = {{"policy", cell.policy},
                         {"budget", *cell.spec.budget},
                         {"R", cell.spec.overflow.value_or(1)},
                         {"sigma", cell.spec.slack},
                         {"delta", cell.spec.max_drop},
                         {"unhurried", unhurried},
                         {"nll", LossOf(results[i]).value},
                         {"above", above.value},
                         {"above_half", above.half_width},
                         {"right", right},
                         {"prunings", went.prunings},
                         {"dropped", went.dropped},
                         {"ranked", went.ranked},
                         {"peak", went.peak}};
      absl::PrintF("%s\n", line.dump());
    }
    table.rows.push_back({cell.policy, cell.budget(), unhurried ? "-" : absl::StrFormat("%d", *cell.spec.overflow),
                          unhurried ? "-" : absl::StrFormat("%d", cell.spec.slack),
                          unhurried ? "-" : absl::StrFormat("%d", cell.spec.max_drop), Perplexity(LossOf(results[i])),
                          PlusMinus(above, 4), Share(solved, static_cast<int64_t>(right.size())),
                          absl::StrFormat("%.1f", went.prunings), absl::StrFormat("%.2f", went.dropped),
                          absl::StrFormat("%.1f", went.ranked), absl::StrFormat("%d", went.peak)});
  }
  progress.Clear();
  if (!lab.json) absl::PrintF("%s", Format(table, options.form));
  return absl::OkStatus();
}

void AddList(Command command, const std::string& name, std::vector<int32_t>& values, int32_t least,
             const std::string& help) {
  command.add_option(name, values, help).delimiter(',').range(least, 1 << 20).capture_default_str();
}

}  // namespace

void AddLazy(Command app, Lab& lab) {
  const Command command = app.add_subcommand("lazy", "Lazy Pruning's ablations over R, sigma and delta");
  const auto options = std::make_shared<LazyOptions>();
  command.add_option("FILE", options->model, "Model file (GGUF)").required();
  command.add_option("CASES", options->cases, "Prompts, answers and text windows as token ids (JSON)").required();
  AddGridOptions(command, options->grid, CacheFlags::kOffered);
  AddList(command, "--overflows", options->overflows, 1, "R: tokens above the budget before a lane is pruned");
  AddList(command, "--slacks", options->slacks, 0, "sigma: tokens above the budget that pruning may leave");
  AddList(command, "--max-drops", options->max_drops, 0, "delta: most tokens dropped at one pruning; 0: no limit");
  command.add_option("--protocol", options->protocol, "Whose prompts are answered")
      .one_of({"prefill", "stream", "again"})
      .capture_default_str();
  AddPromptsOption(command, options->prompts, "So many of its prompts");
  AddBlockOption(command, options->block, "pruning");
  AddTableOptions(command, options->form);
  AddResumeOption(command, lab);
  AddComputeOptions(command, lab);
  command.footer(
      "One token a step. Perplexity over the second halves of the text windows; 'above unhurried' is paired by window\n"
      "with the policy's own default, the first line. prunings: steps that evicted, a window; dropped at once: tokens\n"
      "of a lane at one pruning; ranked a token: how many tokens of a lane choosing looked at, per token that came;\n"
      "peak: most tokens in a lane.");
  command.callback([&lab, options] { lab.Check(RunLazy(lab, *options)); });
}

}  // namespace ebb::lab
