#include <cmath>
#include <cstdio>
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
#include "engine/lab/statistics.h"
#include "engine/lab/table.h"
#include "engine/lab/windows.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

using Json = nlohmann::json;

constexpr char kRecallText[] = "text";

struct RecallOptions {
  std::string model = {};
  std::string cases = {};
  Grid grid = {.policies = EveryPolicy()};
  std::vector<std::string> tasks = {"prefill", "stream", "again", "text"};
  int32_t prompts = 0;
  TableForm form = TableForm::kText;
};

// One entry of the table: "0.42 [0.29, 0.56]", or a perplexity.
absl::StatusOr<std::string> MeasureRecall(const Lab& lab, Engine& engine, const Cases& cases,
                                          const RecallOptions& options, const std::string& task, const Cell& cell,
                                          Record& record) {
  Json line = {{"task", task}, {"policy", cell.policy}, {"budget", *cell.spec.budget}};
  std::string entry;
  if (task == kRecallText) {
    EBB_ASSIGN(const auto results, RunWindows(engine, {&cell, 1}, cases.windows, {.record = &record}));
    const Mean loss = LossOf(results.front());
    entry = Perplexity(loss);
    line["perplexity"] = std::exp(loss.value);
  } else {
    const Protocol protocol = *FindProtocol(task);
    const std::vector<Prompt> prompts = Choose(cases.of(protocol), options.prompts);
    EBB_ASSIGN(const std::string right, Solve(engine, cell, protocol, prompts, {.record = &record}));
    const auto solved = std::ranges::count(right, '1');
    const auto all = static_cast<int64_t>(right.size());
    const Interval interval = Wilson(solved, all);
    entry = Share(solved, all);
    line.update({{"right", right}, {"low", interval.low}, {"high", interval.high}});
  }
  if (lab.json) absl::PrintF("%s\n", line.dump());
  return entry;
}

absl::Status RunRecall(const Lab& lab, const RecallOptions& options) {
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, lab.Open(options.model));
  EBB_ASSIGN(const std::vector<Cell> cells, CellsOf(options.grid, LimitsOf(engine->config())));
  EBB_ASSIGN(const Cases cases, ReadCases(options.cases, engine->config().vocab));
  EBB_TRY(CheckPromptCount(options.prompts, options.cases, cases));
  EBB_ASSIGN(Record record,
             lab.Resume(*engine, {.command = "recall",
                                  .model = options.model,
                                  .files = {{"CASES", options.cases}},
                                  .flags = SettingsOf(options.grid, {{"--prompts", absl::StrCat(options.prompts)}})}));
  Progress progress(static_cast<int64_t>(cells.size() * options.tasks.size()));
  Table table = {.header = {"policy", "budget"}};
  for (const std::string& task : options.tasks) table.header.push_back(task == kRecallText ? "perplexity" : task);
  for (const Cell& cell : cells) {
    std::vector<std::string>& row = table.rows.emplace_back();
    row = {cell.policy, cell.budget()};
    for (const std::string& task : options.tasks) {
      const std::string what = absl::StrFormat("%s %s %s", task, cell.policy, cell.budget());
      progress.Add(0, what);
      row.emplace_back("-");
      const Protocol protocol = task == kRecallText ? Protocol::kStream : *FindProtocol(task);
      if (CanFollow(cell.spec, protocol, LimitsOf(engine->config()))) {
        EBB_ASSIGN(row.back(), MeasureRecall(lab, *engine, cases, options, task, cell, record));
      }
      progress.Add(1, what);
    }
  }
  progress.Clear();
  if (!lab.json) absl::PrintF("%s", Format(table, options.form));
  return absl::OkStatus();
}

}  // namespace

void AddRecall(Command app, Lab& lab) {
  const Command command = app.add_subcommand("recall", "Passkeys recalled and perplexity, by policy and budget");
  const auto options = std::make_shared<RecallOptions>();
  command.add_option("FILE", options->model, "Model file (GGUF)").required();
  command.add_option("CASES", options->cases, "Prompts, answers and text windows as token ids (JSON)").required();
  AddGridOptions(command, options->grid, CacheFlags::kFixed);
  AddTaskOption(command, options->tasks);
  AddPromptsOption(command, options->prompts, "So many prompts of each protocol");
  AddTableOptions(command, options->form);
  AddResumeOption(command, lab);
  AddComputeOptions(command, lab);
  command.footer(
      "F32 cache, original positions, blocks of 32, eviction after each block and each decoded token. In brackets\n"
      "Wilson's 95 % interval of a share, Student's of a perplexity. '-': the budget is below what the policy\n"
      "protects, or nothing ends the prompt, for which ada waits.");
  command.callback([&lab, options] { lab.Check(RunRecall(lab, *options)); });
}

}  // namespace ebb::lab
