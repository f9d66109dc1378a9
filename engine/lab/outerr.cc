#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/lab/grid.h"
#include "engine/lab/lab.h"
#include "engine/lab/policy_text.h"
#include "engine/lab/progress.h"
#include "engine/lab/protocols.h"
#include "engine/lab/record.h"
#include "engine/lab/table.h"
#include "engine/lab/windows.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

using Json = nlohmann::json;

struct OuterrOptions {
  std::string model = {};
  std::string cases = {};
  Grid grid = {.policies = {"h2o", "h2o+caote", "h2o+fast_caote", "tova", "tova+caote", "tova+fast_caote", "snapkv",
                            "snapkv+caote", "snapkv+fast_caote"}};
  int32_t block = 1;
  std::string on = {};
  int32_t every = 16;
  TableForm form = TableForm::kText;
};

// `policy` with room for `more` tokens above its budget, and the protection that it has.
ValidSpec Roomier(ValidSpec policy, int32_t more) {
  policy.trigger.budget += more;
  return policy;
}

// Whether a policy that begins on a warm cache chooses as one that was there from the start.
bool KnowsAll(StateOrigin state) {
  return state == StateOrigin::kNone || state == StateOrigin::kCarried || state == StateOrigin::kRebuilt;
}

// Streams the window under `on`. At every `every`-th step that is due to evict, the eviction waits until each of
// `tried` has said what it would evict in its place, and what that loses. Results by policy.
absl::StatusOr<std::vector<WindowResult>> TryOn(Engine& engine, const ValidSpec& on, std::span<const ValidSpec> tried,
                                                const Window& window, const OuterrOptions& options) {
  EBB_ASSIGN(const auto session, engine.OpenSession({.policy = on, .block_size_max = options.block}));
  std::vector<WindowResult> results(tried.size());
  int64_t due = 0;
  for (size_t first = 0; first < window.size(); first += options.block) {
    const size_t count = std::min<size_t>(options.block, window.size() - first);
    const auto after = session->cache_length() + static_cast<int32_t>(count);
    const bool ask = after > on.trigger.budget && due++ % options.every == 0;
    if (ask) EBB_TRY(engine.SetPolicy(*session, Roomier(on, options.block)).status());
    BatchRow row = {.session = session.get(), .tokens = std::span(window).subspan(first, count)};
    engine.Run({&row, 1});
    if (!ask) continue;
    for (size_t i = 0; i < tried.size(); ++i) {
      EBB_ASSIGN(const PolicySwap swap, engine.TryPolicy(*session, tried[i], 0));
      if (!KnowsAll(swap.state)) {
        return absl::InvalidArgumentError(absl::StrFormat("--on: a session under %s cannot say what %s would choose",
                                                          options.on, tried[i].scorer_name));
      }
      ++results[i].prunings;
      results[i].lost.mass += swap.loss.mass;
      results[i].lost.error += swap.loss.error;
    }
    EBB_TRY(engine.SetPolicy(*session, on).status());  // evicts now what was due
  }
  return results;
}

// What each cell would lose on the cache that --on makes at its budget.
absl::StatusOr<std::vector<std::vector<WindowResult>>> MeasureOn(Engine& engine, const OuterrOptions& options,
                                                                 std::span<const Cell> cells,
                                                                 std::span<const Window> windows, Record& record) {
  const SpecLimits limits = LimitsOf(engine.config());
  Grid grid = options.grid;
  grid.policies = {options.on};
  std::vector<std::vector<WindowResult>> results(cells.size(), std::vector<WindowResult>(windows.size()));
  Progress progress(static_cast<int64_t>(grid.budgets.size() * windows.size()));
  for (const int32_t budget : options.grid.budgets) {
    grid.budgets = {budget};
    EBB_ASSIGN(const std::vector<Cell> base, CellsOf(grid, limits));
    EBB_ASSIGN(const ValidSpec on, Resolve(UnderProtocol(base.front().spec, Protocol::kStream), limits));
    for (size_t w = 0; w < windows.size(); ++w) {
      std::vector<ValidSpec> tried;
      std::vector<size_t> of;
      for (size_t i = 0; i < cells.size(); ++i) {
        if (!cells[i].possible || cells[i].spec.budget != budget) continue;
        EBB_ASSIGN(const auto known, Known(&record, cells[i], w, 0));
        if (known) {
          results[i][w] = *known;
          continue;
        }
        EBB_ASSIGN(tried.emplace_back(), Resolve(cells[i].spec, limits));
        of.push_back(i);
      }
      if (!tried.empty()) {
        EBB_ASSIGN(const auto lost, TryOn(engine, on, tried, windows[w], options));
        for (size_t i = 0; i < of.size(); ++i) {
          results[of[i]][w] = lost[i];
          EBB_TRY(Keep(&record, cells[of[i]], w, lost[i]));
        }
      }
      progress.Add(1, absl::StrFormat("%s %d", options.on, budget));
    }
  }
  return results;
}

absl::Status RunOuterr(const Lab& lab, const OuterrOptions& options) {
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, lab.Open(options.model));
  EBB_TRY(RefuseWindows(*engine, "outerr"));
  EBB_ASSIGN(const std::vector<Cell> cells, CellsOf(options.grid, LimitsOf(engine->config())));
  EBB_ASSIGN(const Cases cases, ReadCases(options.cases, engine->config().vocab));
  EBB_ASSIGN(Record record,
             lab.Resume(*engine, {.command = "outerr",
                                  .model = options.model,
                                  .files = {{"CASES", options.cases}},
                                  .flags = SettingsOf(options.grid, {{"--block", absl::StrCat(options.block)},
                                                                     {"--on", options.on.empty() ? "none" : options.on},
                                                                     {"--every", absl::StrCat(options.every)}})}));
  std::vector<std::vector<WindowResult>> results;
  if (options.on.empty()) {
    Progress progress(WorkOf(cells, cases.windows));
    const auto tick = [&](int64_t tokens) { progress.Add(tokens, "windows"); };
    EBB_ASSIGN(
        results,
        RunWindows(*engine, cells, cases.windows,
                   {.block = options.block, .measure = true, .predict = false, .record = &record, .tick = tick}));
  } else {
    EBB_ASSIGN(results, MeasureOn(*engine, options, cells, cases.windows, record));
  }
  Table table = {.header = {"policy", "budget", "evictions", "mass lost", "output error"}};
  for (size_t i = 0; i < cells.size(); ++i) {
    int64_t prunings = 0;
    for (const WindowResult& result : results[i]) prunings += result.prunings;
    const Mean mass = MassLostOf(results[i]);
    const Mean error = ErrorOf(results[i]);
    if (lab.json) {
      const Json line = {{"policy", cells[i].policy},     {"budget", *cells[i].spec.budget},
                         {"evictions", prunings},         {"mass", mass.value},
                         {"mass_half", mass.half_width},  {"error", error.value},
                         {"error_half", error.half_width}};
      absl::PrintF("%s\n", line.dump());
    }
    table.rows.push_back(
        {cells[i].policy, cells[i].budget(), absl::StrFormat("%d", prunings), PlusMinus(mass, 5), PlusMinus(error, 5)});
  }
  if (!lab.json) absl::PrintF("%s", Format(table, options.form));
  return absl::OkStatus();
}

}  // namespace

void AddOuterr(Command app, Lab& lab) {
  const Command command = app.add_subcommand("outerr", "Mean output error per eviction, with and without CAOTE");
  const auto options = std::make_shared<OuterrOptions>();
  command.add_option("FILE", options->model, "Model file (GGUF)").required();
  command.add_option("CASES", options->cases, "A cases file, of which the text windows are read (JSON)").required();
  AddGridOptions(command, options->grid, CacheFlags::kFixed);
  AddBlockOption(command, options->block, "eviction");
  const Flag on = command.add_option(
      "--on", options->on, "A policy that fills the cache; the others only say what each would evict in its place");
  command.add_option("--every", options->every, "With --on: ask after every so many evicting steps")
      .range(1, 1 << 20)
      .needs(on)
      .capture_default_str();
  AddTableOptions(command, options->form);
  AddResumeOption(command, lab);
  AddComputeOptions(command, lab);
  command.footer(
      "Each window is streamed, the same tokens under every policy. Of each step that evicts: the newest token's\n"
      "attention that left, and how far its attention output moved, |X - X'| / |X|, means over layers and heads. Then\n"
      "the mean over steps and windows, and Student's 95 % interval from the spread between windows. Without --on "
      "each\n"
      "policy lives with the cache that its own evictions left; with it all judge the same caches.");
  command.callback([&lab, options] { lab.Check(RunOuterr(lab, *options)); });
}

}  // namespace ebb::lab
