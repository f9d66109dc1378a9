// What the registry's tables are made of (registry.h): a row tells the engine how to run a part of a policy, and people
// what it is. The words of a row are the one source of ListPolicies, `ebb policy list` and the reference pages.

#ifndef EBB_POLICIES_REGISTRY_ROW_H_
#define EBB_POLICIES_REGISTRY_ROW_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "policies/calibration.h"
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

// A parameter that chooses between forms; `preset` is the number of one.
constexpr ParameterRow Choice(std::string_view name, std::string_view help, std::span<const std::string_view> choices,
                              int preset = 0) {
  return {.name = name,
          .help = help,
          .preset = static_cast<double>(preset),
          .max = static_cast<double>(choices.size()) - 1,
          .whole = true,
          .choices = choices};
}

// Of a parameter that is whole. REQUIRES: it is there.
inline int32_t Whole(const ScorerParameters& parameters, const char* name) {
  return static_cast<int32_t>(parameters.at(name));
}

// In words. Whole sentences but for `equation` and `paper`; none is empty but `paper`. Markdown that also reads as
// plain text: names of parameters and policies in backticks.
struct About {
  std::string_view summary = {};   // what it does, one sentence
  std::string_view when = {};      // when to choose it, and when not
  std::string_view equation = {};  // lines of the header's own comment, as they stand there
  std::string_view origin = {};    // the paper's title, or where it comes from without one
  std::string_view paper = {};     // "arXiv:2306.14048", or empty
  std::string_view cost = {};      // work and memory; n live tokens, d = head size
  std::string_view turns = {};     // why it is safe over several turns of a dialogue, or not
};

struct ScorerRow {
  std::string_view name = {};  // registry key, and the arm's name in ebb.v1.PolicySpec
  About about = {};
  bool evicts = true;
  bool lockstep = false;  // looks at positions alone
  bool scored = true;     // false: the rule needs no choice beyond protection, so budget = sinks + recent is enough
  bool safe_across_turns = true;  // false: chosen for the question at hand, and the next one may miss what left
  bool non_negative = false;      // scores are attention received, >= 0, as CAOTE needs
  bool state_by_sinks = false;    // what it remembers depends on how many tokens are sinks

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
  // INVALID_ARGUMENT MEANINGLESS_COMBINATION where numbers that are each in range mean nothing together, presets
  // included. Null: they always mean something.
  absl::Status (*check)(const ScorerParameters& parameters) = nullptr;

  // `parameters` as ResolveParameters returns them: every name of the row, each in range. One of the two: the second
  // for a scorer that goes by what was learned of the model.
  std::unique_ptr<const Scorer> (*make)(const ScorerParameters& parameters) = nullptr;
  std::unique_ptr<const Scorer> (*make_calibrated)(const ScorerParameters& parameters,
                                                   std::shared_ptr<const Calibration> calibration) = nullptr;
};

struct ModifierRow {
  std::string_view name = {};  // MODIFIER_<NAME> in ebb.v1
  Modifier modifier = Modifier::kNone;
  Needs needs = {};  // beside its scorer's
  About about = {};
};

struct AllocationRow {
  std::string_view name = {};  // the arm's name in ebb.v1.PolicySpec
  Allocation allocation = Allocation::kUniform;
  About about = {};
  std::span<const ParameterRow> parameters = {};
};

}  // namespace ebb

#endif  // EBB_POLICIES_REGISTRY_ROW_H_
