#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/lab/grid.h"
#include "engine/lab/lab.h"
#include "engine/lab/planted.h"
#include "engine/lab/progress.h"
#include "engine/lab/record.h"
#include "engine/lab/table.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

using Json = nlohmann::json;

struct PasskeyOptions {
  std::string model = {};
  std::string text = {};
  Grid grid = {.policies = EveryPolicy()};
  std::vector<double> depths = {0, 0.25, 0.5, 0.75, 1};
  std::string protocol = "stream";
  Planted planted = {};
  TableForm form = TableForm::kText;
};

// The prompts of each depth.
absl::StatusOr<std::vector<std::vector<Prompt>>> PlantAll(const Engine& engine, const PasskeyOptions& options) {
  EBB_ASSIGN(const std::string text, ReadText(options.text));
  std::vector<std::vector<Prompt>> planted;
  for (const double depth : options.depths) {
    Planted at = options.planted;
    at.depth = depth;
    at.seed = options.grid.seed;
    EBB_ASSIGN(planted.emplace_back(), PlantPasskeys(engine.tokenizer(), text, at));
  }
  return planted;
}

absl::Status RunPasskey(const Lab& lab, const PasskeyOptions& options) {
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, lab.Open(options.model));
  EBB_ASSIGN(const std::vector<Cell> cells,
             CellsOf(options.grid, LimitsOf(engine->config()), options.planted.length + 16));
  EBB_ASSIGN(const auto planted, PlantAll(*engine, options));
  const Protocol protocol = *FindProtocol(options.protocol);
  EBB_ASSIGN(Record record,
             lab.Resume(*engine, {.command = "passkey",
                                  .model = options.model,
                                  .files = {{"TEXT", options.text}},
                                  .flags = SettingsOf(options.grid,
                                                      {{"--length", absl::StrCat(options.planted.length)},
                                                       {"--prompts", absl::StrCat(options.planted.prompts)},
                                                       {"--distractors", absl::StrCat(options.planted.distractors)},
                                                       {"--protocol", options.protocol}})}));
  Progress progress(static_cast<int64_t>(cells.size() * planted.size()));
  Table table = {.header = {"policy", "budget"}};
  for (const double depth : options.depths) table.header.push_back(absl::StrFormat("depth %.2f", depth));
  for (const Cell& cell : cells) {
    std::vector<std::string>& row = table.rows.emplace_back();
    row = {cell.policy, cell.budget()};
    for (size_t d = 0; d < planted.size(); ++d) {
      row.emplace_back("-");
      if (cell.possible) {
        const std::string depth = "depth " + Json(options.depths[d]).dump();
        EBB_ASSIGN(const std::string right,
                   Solve(*engine, cell, protocol, planted[d], {.record = &record, .name = depth}));
        const auto all = static_cast<int64_t>(right.size());
        const int64_t found = std::ranges::count(right, '1');
        row.back() = Share(found, all);
        if (lab.json) {
          const Json line = {{"policy", cell.policy},         {"budget", *cell.spec.budget},
                             {"depth", options.depths[d]},    {"right", right},
                             {"low", Wilson(found, all).low}, {"high", Wilson(found, all).high}};
          absl::PrintF("%s\n", line.dump());
        }
      }
      progress.Add(1, absl::StrFormat("%s %s", cell.policy, cell.budget()));
    }
  }
  progress.Clear();
  if (!lab.json) absl::PrintF("%s", Format(table, options.form));
  return absl::OkStatus();
}

}  // namespace

void AddPasskey(Command app, Lab& lab) {
  const Command command =
      app.add_subcommand("passkey", "Whether a planted passkey is found, by depth, policy and budget");
  const auto options = std::make_shared<PasskeyOptions>();
  Planted& planted = options->planted;
  command.add_option("FILE", options->model, "Model file (GGUF)").required();
  command.add_option("TEXT", options->text, "Text to plant it in").required();
  AddGridOptions(command, options->grid, CacheFlags::kFixed);
  command.add_option("--depths", options->depths, "Where it lies: 0 the text's begin, 1 its end")
      .delimiter(',')
      .range(0.0, 1.0)
      .capture_default_str();
  command.add_option("--length", planted.length, "Tokens of a prompt").range(16, 1 << 20).capture_default_str();
  command.add_option("--prompts", planted.prompts, "For each depth; the same texts, names and keys at all of them")
      .range(1, 1 << 16)
      .capture_default_str();
  command.add_option("--distractors", planted.distractors, "Passkeys of others in the same text")
      .range(0, 7)
      .capture_default_str();
  command
      .add_option("--protocol", options->protocol,
                  "prefill: one eviction, when the question is known; stream: the budget holds from the first block")
      .one_of({"prefill", "stream"})
      .capture_default_str();
  AddTableOptions(command, options->form);
  AddResumeOption(command, lab);
  AddComputeOptions(command, lab);
  command.footer(
      "F32 cache, original positions, blocks of 32, eviction after each block and each decoded token; greedy answers,\n"
      "right when all digits are. In brackets Wilson's 95 % interval. '-': the budget is below what the policy "
      "protects.");
  command.callback([&lab, options] { lab.Check(RunPasskey(lab, *options)); });
}

}  // namespace ebb::lab
