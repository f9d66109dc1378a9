#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/lab/grid.h"
#include "engine/lab/lab.h"
#include "engine/lab/progress.h"
#include "engine/lab/record.h"
#include "engine/lab/table.h"
#include "engine/lab/windows.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

using Json = nlohmann::json;

struct PplOptions {
  std::string model = {};
  TextWindows text = {};
  Grid grid = {.policies = EveryPolicy(), .kv_type = KvType::kBf16, .positions = {}};
  TableForm form = TableForm::kText;
};

absl::Status RunPpl(const Lab& lab, const PplOptions& options) {
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, lab.Open(options.model));
  EBB_ASSIGN(const std::vector<Window> windows, CutWindows(engine->tokenizer(), options.text));
  Grid grid = options.grid;
  std::erase(grid.policies, "full");
  grid.policies.insert(grid.policies.begin(), "full");  // what the others are measured against
  EBB_ASSIGN(const std::vector<Cell> cells, CellsOf(grid, LimitsOf(engine->config()), options.text.window));
  EBB_ASSIGN(Record record, lab.Resume(*engine, {.command = "ppl",
                                                 .model = options.model,
                                                 .files = {{"TEXT", options.text.text}},
                                                 .flags = SettingsOf(options.grid, SettingsOf(options.text))}));
  Progress progress(WorkOf(cells, windows));
  const auto tick = [&](int64_t tokens) { progress.Add(tokens, "text"); };
  EBB_ASSIGN(const auto results,
             RunWindows(*engine, cells, windows, {.block = options.text.block, .record = &record, .tick = tick}));
  progress.Clear();
  Table table = {.header = {"policy", "budget", "nll", "perplexity", "nll above full", "evicted"}};
  for (size_t i = 0; i < cells.size(); ++i) {
    const Cell& cell = cells[i];
    const std::vector<WindowResult>& result = results[i];
    if (!cell.possible) {
      table.rows.push_back({cell.policy, cell.budget(), "-", "-", "-", "-"});
      continue;
    }
    const Mean loss = LossOf(result);
    const Mean above = LossAbove(result, results.front());
    int64_t evicted = 0;
    int64_t counted = 0;
    for (const WindowResult& window : result) {
      evicted += window.evicted;
      counted += window.counted;
    }
    if (lab.json) {
      const Json line = {{"policy", cell.policy},          {"budget", *cell.spec.budget}, {"nll", loss.value},
                         {"ppl", std::exp(loss.value)},    {"nll_half", loss.half_width}, {"above", above.value},
                         {"above_half", above.half_width}, {"evicted", evicted},          {"tokens", counted},
                         {"engine", engine->fingerprint()}};
      absl::PrintF("%s\n", line.dump());
    }
    table.rows.push_back({cell.policy, cell.budget(), absl::StrFormat("%.4f", loss.value), Perplexity(loss),
                          PlusMinus(above, 4), absl::StrFormat("%d", evicted)});
  }
  if (!lab.json) absl::PrintF("%s", Format(table, options.form));
  return absl::OkStatus();
}

}  // namespace

void AddPpl(Command app, Lab& lab) {
  const Command command = app.add_subcommand("ppl", "Perplexity of a text, by policy and budget, and unevicted");
  const auto options = std::make_shared<PplOptions>();
  command.add_option("FILE", options->model, "Model file (GGUF)").required();
  AddTextOptions(command, options->text);
  AddGridOptions(command, options->grid, CacheFlags::kOffered);
  AddTableOptions(command, options->form);
  AddResumeOption(command, lab);
  AddComputeOptions(command, lab);
  command.footer(
      "The text is cut into windows, each streamed from an empty cache; what the second half of each costs is "
      "counted,\n"
      "nats per token. Student's 95 % intervals from the spread between windows; 'above full' is paired by window.\n"
      "evicted: tokens per lane, all windows. '-': the budget is below what the policy protects.");
  command.callback([&lab, options] { lab.Check(RunPpl(lab, *options)); });
}

}  // namespace ebb::lab
