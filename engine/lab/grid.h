// Policies x budgets: what most commands measure over, and the flags that say so.

#ifndef EBB_ENGINE_LAB_GRID_H_
#define EBB_ENGINE_LAB_GRID_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "command_line/command_line.h"
#include "engine/lab/record.h"
#include "policies/spec.h"

namespace ebb::lab {

// As flags give it. A command sets its own defaults before it adds the flags.
struct Grid {
  std::vector<std::string> policies = {};
  std::vector<int32_t> budgets = {64, 128, 256};
  int64_t seed = 0;  // of scorers that draw
  KvType kv_type = KvType::kF32;
  RopeCache rope_cache = RopeCache::kFused;
  std::optional<Positions> positions = Positions::kOriginal;  // nothing: each scorer's default
};

// One policy at one budget.
struct Cell {
  std::string policy = {};  // as it was written
  PolicySpec spec = {};
  bool possible = true;  // false: the budget is below what the policy protects, or the model has no calibration

  // "128", or "-" for `full`, which has none.
  std::string budget() const;
  // In a record: "h2o 128", "h2o 128 R 32 sigma 0 delta 8". What it leaves out of the spec is the whole grid's.
  std::string name() const;
};

// Every scorer that evicts, knorm in both forms, and what CAOTE makes of those that score attention.
std::vector<std::string> EveryPolicy();

// --policies, --budgets and --seed. `fixed` commands measure as the card does; the others take --positions, --kv-dtype
// and --rope-cache too.
enum class CacheFlags { kFixed, kOffered };
void AddGridOptions(Command command, Grid& grid, CacheFlags cache);
// What all cells of a grid have in common, and `more` flags.
Settings SettingsOf(const Grid& grid, const Settings& more);
// --kv-dtype.
Flag AddKvTypeOption(Command command, KvType& type);
void AddBudgetOption(Command command, std::vector<int32_t>& budgets);

// --tasks: which of a cases file's protocols, and its text.
void AddTaskOption(Command command, std::vector<std::string>& tasks);
// --prompts. `which`: "So many prompts of each protocol".
void AddPromptsOption(Command command, int32_t& prompts, const std::string& which);
// --block. `what` follows each: "eviction".
void AddBlockOption(Command command, int32_t& block, const std::string& what);

// Budget by budget, under each every policy in the order given; `full` once, first come, bounded by `limits`' trained
// context or `full_length`, whichever is more. What a word says of positions, K/V type or seed goes before the grid's.
// What ParsePolicies and Resolve refuse; a budget that is too small, or a calibration
// that is missing, is a refusal only where no cell is possible.
absl::StatusOr<std::vector<Cell>> CellsOf(const Grid& grid, const SpecLimits& limits, int32_t full_length = 0);

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_GRID_H_
