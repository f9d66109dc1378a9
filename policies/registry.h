// The one table of scorers. A new scorer is one file and one row here (docs/how-to/add-a-scorer.md); property tests,
// ListPolicies, the reference docs and the service's conversion loop over it.

#ifndef EBB_POLICIES_REGISTRY_H_
#define EBB_POLICIES_REGISTRY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "policies/scorer.h"
#include "policies/spec.h"

namespace ebb {

using ScorerParameters = std::map<std::string, double>;

// One number that a scorer takes.
struct ParameterRow {
  std::string_view name = {};
  std::string_view help = {};
  double preset = 0;  // default
  double min = 0;     // both included
  double max = 0;
  bool whole = false;  // takes integers alone
  bool odd = false;    // and of these the odd ones
  // Names of 0, 1, ...; for a choice between forms: then min is 0, max the last and whole is set.
  std::span<const std::string_view> choices = {};
};

struct ScorerRow {
  std::string_view name = {};     // registry key, and the arm's name in ebb.v1.PolicySpec
  std::string_view summary = {};  // one sentence for ListPolicies and the docs
  std::string_view paper = {};    // "arXiv:2306.14048", or empty
  bool evicts = true;
  bool lockstep = false;  // looks at positions alone
  bool scored = true;     // false: the rule needs no choice beyond protection, so budget = sinks + recent is enough
  bool safe_across_turns = true;  // false: chosen for the question at hand, and the next one may miss what left
  bool non_negative = false;      // scores are attention received, >= 0, as CAOTE needs

  // Default protection from the budget; null: none. A budget that leaves room beside it (one token to choose, where
  // `scored`) does so however much it grows. `query_heads` share a KV head.
  int32_t (*sinks)(int32_t budget) = nullptr;
  int32_t (*recent)(int32_t budget, int32_t sinks, int32_t query_heads) = nullptr;
  std::string_view recent_parameter = {};  // the parameter that is the default of recent, in the place of a function

  Positions positions = Positions::kOriginal;  // default, as the three below
  Schedule schedule = Schedule::kEveryStep;
  Then then = Then::kSame;
  Reduction reduction = Reduction::kMean;
  std::span<const ParameterRow> parameters = {};

  // `parameters` as ResolveParameters returns them: every name of the row, each in range.
  std::unique_ptr<const Scorer> (*make)(const ScorerParameters& parameters) = nullptr;
};

// In the order in which users see them. Names are unique.
std::span<const ScorerRow> ScorerRegistry();

// A row's default of recent under a budget. `parameters` as `make` takes them.
int32_t DefaultRecent(const ScorerRow& row, const ScorerParameters& parameters, int32_t budget, int32_t sinks,
                      int32_t query_heads);

// The row by name, or null.
const ScorerRow* FindScorer(std::string_view name);

// NOT_FOUND UNKNOWN_SCORER, naming the known ones.
absl::Status UnknownScorer(std::string_view field, std::string_view name);

// What the caller gave, and the presets of what was left out. INVALID_ARGUMENT UNKNOWN_PARAMETER naming the known ones,
// or PARAMETER_OUT_OF_RANGE naming the range or the choices, or that a whole or odd number is wanted; field
// `policy.<scorer>.<parameter>`.
absl::StatusOr<ScorerParameters> ResolveParameters(const ScorerRow& row, const ScorerParameters& given);

}  // namespace ebb

#endif  // EBB_POLICIES_REGISTRY_H_
