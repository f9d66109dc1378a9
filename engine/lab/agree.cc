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

struct AgreeOptions {
  std::string model = {};
  TextWindows text = {};
  Grid grid = {.policies = EveryPolicy(), .kv_type = KvType::kBf16, .positions = {}};
  TableForm form = TableForm::kText;
};

absl::Status RunAgree(const Lab& lab, const AgreeOptions& options) {
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, lab.Open(options.model));
  EBB_ASSIGN(const std::vector<Window> windows, CutWindows(engine->tokenizer(), options.text));
  EBB_ASSIGN(const std::vector<Cell> cells, CellsOf(options.grid, LimitsOf(engine->config()), options.text.window));
  EBB_ASSIGN(Record record, lab.Resume(*engine, {.command = "agree",
                                                 .model = options.model,
                                                 .files = {{"TEXT", options.text.text}},
                                                 .flags = SettingsOf(options.grid, SettingsOf(options.text))}));
  Progress progress(WorkOf(cells, windows));
  const auto tick = [&](int64_t tokens) { progress.Add(tokens, "text"); };
  EBB_ASSIGN(const auto results,
             RunWindows(*engine, cells, windows,
                        {.block = options.text.block, .against = Against::kFull, .record = &record, .tick = tick}));
  progress.Clear();
  Table table = {.header = {"policy", "budget", "KL(full || policy)", "top-1 agreement"}};
  for (size_t i = 0; i < cells.size(); ++i) {
    const Cell& cell = cells[i];
    const std::vector<WindowResult>& result = results[i];
    if (!cell.possible) {
      table.rows.push_back({cell.policy, cell.budget(), "-", "-"});
      continue;
    }
    const Mean divergence = DivergenceOf(result);
    const Mean agreement = AgreementOf(result);
    if (lab.json) {
      const Json line = {{"policy", cell.policy},          {"budget", *cell.spec.budget},
                         {"kl", divergence.value},         {"kl_half", divergence.half_width},
                         {"agreement", agreement.value},   {"agreement_half", agreement.half_width},
                         {"engine", engine->fingerprint()}};
      absl::PrintF("%s\n", line.dump());
    }
    table.rows.push_back({cell.policy, cell.budget(), PlusMinus(divergence, 4), PlusMinus(agreement, 3)});
  }
  if (!lab.json) absl::PrintF("%s", Format(table, options.form));
  return absl::OkStatus();
}

}  // namespace

void AddAgree(Command app, Lab& lab) {
  const Command command =
      app.add_subcommand("agree", "How far predictions move from those of a full cache, by policy and budget");
  const auto options = std::make_shared<AgreeOptions>();
  command.add_option("FILE", options->model, "Model file (GGUF)").required();
  AddTextOptions(command, options->text);
  AddGridOptions(command, options->grid, CacheFlags::kOffered);
  AddTableOptions(command, options->form);
  AddResumeOption(command, lab);
  AddComputeOptions(command, lab);
  command.footer(
      "Each window of the text is streamed under the policy and beside it with nothing evicted. Over the predictions "
      "of\n"
      "the second halves: the mean divergence, nats per token, and the share whose best token is the same. Student's\n"
      "95 % intervals from the spread between windows. '-': the budget is below what the policy protects.");
  command.callback([&lab, options] { lab.Check(RunAgree(lab, *options)); });
}

}  // namespace ebb::lab
