#include "engine/lab/grid.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/lab/policy_text.h"
#include "policies/registry.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

const std::map<std::string, Positions> kPositions = {{"original", Positions::kOriginal},
                                                     {"compacted", Positions::kCompacted}};
const std::map<std::string, KvType> kTypes = {{"f32", KvType::kF32},
                                              {"bf16", KvType::kBf16},
                                              {"f16", KvType::kF16},
                                              {"int8", KvType::kInt8},
                                              {"fp8", KvType::kFp8}};
const std::map<std::string, RopeCache> kRopeCaches = {{"fused", RopeCache::kFused}, {"rk", RopeCache::kRk}};
constexpr ChoiceForm kToldInHelp = {.describe = false};

template <typename Value>
std::string NameOf(const std::map<std::string, Value>& names, Value value) {
  for (const auto& [name, named] : names) {
    if (named == value) return name;
  }
  return {};
}

Cell MakeCell(const NamedPolicy& policy, const ScorerRow& row, const Grid& grid, int32_t budget) {
  Cell cell = {.policy = policy.name, .spec = policy.spec};
  cell.spec.budget = budget;
  cell.spec.kv_type = grid.kv_type;
  cell.spec.rope_cache = grid.rope_cache;
  if (row.evicts && !cell.spec.positions) cell.spec.positions = grid.positions;
  const bool draws = std::ranges::find(row.parameters, "seed", &ParameterRow::name) != row.parameters.end();
  if (draws) cell.spec.parameters.try_emplace("seed", static_cast<double>(grid.seed));
  return cell;
}

}  // namespace

std::string Cell::budget() const {
  const ScorerRow* const row = FindScorer(spec.scorer);
  return row != nullptr && !row->evicts ? "-" : absl::StrFormat("%d", spec.budget.value_or(0));
}

std::string Cell::name() const {
  const std::string name = policy + " " + budget();
  if (!spec.overflow) return name;
  return absl::StrFormat("%s R %d sigma %d delta %d", name, *spec.overflow, spec.slack, spec.max_drop);
}

Settings SettingsOf(const Grid& grid, const Settings& more) {
  Settings settings = {{"--seed", absl::StrCat(grid.seed)},
                       {"--positions", grid.positions ? NameOf(kPositions, *grid.positions) : "by scorer"},
                       {"--kv-dtype", NameOf(kTypes, grid.kv_type)},
                       {"--rope-cache", NameOf(kRopeCaches, grid.rope_cache)}};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

std::vector<std::string> EveryPolicy() {
  std::vector<std::string> policies;
  for (const ScorerRow& row : ScorerRegistry()) {
    if (!row.evicts || row.make == nullptr) continue;  // what needs a file of its own is named by who has it
    policies.emplace_back(row.name);
    if (row.name == "knorm") policies.emplace_back("knorm:keep=long");
    if (row.non_negative) policies.push_back(std::string(row.name) + "+caote");
    if (row.non_negative) policies.push_back(std::string(row.name) + "+fast_caote");
  }
  return policies;
}

void AddBudgetOption(Command command, std::vector<int32_t>& budgets) {
  command.add_option("--budgets,--budget", budgets, "Tokens per lane")
      .delimiter(',')
      .range(1, 1 << 20)
      .capture_default_str();
}

void AddTaskOption(Command command, std::vector<std::string>& tasks) {
  command.add_option("--tasks", tasks, "Protocols (prefill, stream, again) and text, for perplexity")
      .delimiter(',')
      .one_of({"prefill", "stream", "again", "text"})
      .capture_default_str();
}

void AddPromptsOption(Command command, int32_t& prompts, const std::string& which) {
  command.add_option("--prompts", prompts, which + ", evenly spread; 0: all").range(0, 1 << 20).capture_default_str();
}

void AddBlockOption(Command command, int32_t& block, const std::string& what) {
  command.add_option("--block", block, "Tokens per step; " + what + " follows each")
      .range(1, 512)
      .capture_default_str();
}

Flag AddKvTypeOption(Command command, KvType& type) {
  return command.add_choice("--kv-dtype", type, kTypes, "Type of K and V: f32, bf16, f16, int8 or fp8", kToldInHelp)
      .default_str(NameOf(kTypes, type));
}

void AddGridOptions(Command command, Grid& grid, CacheFlags cache) {
  const bool every = grid.policies.size() >= EveryPolicy().size();
  const Flag policies = command
                            .add_option("--policies,--policy", grid.policies,
                                        PolicyHelp() + (every ? "; default: every scorer and modifier" : ""))
                            .delimiter(',');
  if (!every) policies.capture_default_str();
  AddBudgetOption(command, grid.budgets);
  command.add_option("--seed", grid.seed, "Of scorers that draw").non_negative().capture_default_str();
  if (cache == CacheFlags::kFixed) return;
  command.add_choice("--positions", grid.positions, kPositions, "original or compacted; default by scorer",
                     kToldInHelp);
  AddKvTypeOption(command, grid.kv_type);
  command
      .add_choice("--rope-cache", grid.rope_cache, kRopeCaches, "fused, or rk: keep the rotated half of K beside it",
                  kToldInHelp)
      .default_str(NameOf(kRopeCaches, grid.rope_cache));
}

absl::StatusOr<std::vector<Cell>> CellsOf(const Grid& grid, const SpecLimits& limits, int32_t full_length) {
  EBB_ASSIGN(const std::vector<NamedPolicy> policies, ParsePolicies(grid.policies));
  std::vector<Cell> cells;
  absl::Status impossible;
  bool any = false;
  for (const int32_t budget : grid.budgets) {
    for (const NamedPolicy& policy : policies) {
      const ScorerRow& row = *FindScorer(policy.spec.scorer);
      if (!row.evicts && budget != grid.budgets.front()) continue;
      Cell cell = MakeCell(policy, row, grid, row.evicts ? budget : std::max(limits.trained_context, full_length));
      const absl::Status status = Resolve(cell.spec, limits).status();
      cell.possible = status.ok();
      const std::string reason = GetRefusal(status).reason;
      if (!status.ok() && reason != "BUDGET_TOO_SMALL" && reason != "CALIBRATION_MISSING") return status;
      if (!status.ok()) impossible = status;
      any |= cell.possible;
      cells.push_back(std::move(cell));
    }
  }
  if (!any) return impossible;
  return cells;
}

}  // namespace ebb::lab
