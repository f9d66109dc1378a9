// The one list of scorers, and those of modifiers and allocations. Each says what it is in its own file, in a row
// (registry_row.h); a new scorer is that file and its name in the list (docs/how-to/add-a-scorer.md). Property tests,
// ListPolicies, the reference docs and the service's conversion loop over the lists.

#ifndef EBB_POLICIES_REGISTRY_H_
#define EBB_POLICIES_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "policies/registry_row.h"

namespace ebb {

// In the order in which users see them. Names are unique.
std::span<const ScorerRow> ScorerRegistry();
std::span<const ModifierRow> ModifierRegistry();  // without "none"
std::span<const AllocationRow> AllocationRegistry();

// A row's default of recent under a budget. `parameters` as `make` takes them.
int32_t DefaultRecent(const ScorerRow& row, const ScorerParameters& parameters, int32_t budget, int32_t sinks,
                      int32_t query_heads);

// The row by name, or null.
const ScorerRow* FindScorer(std::string_view name);

// The row's scorer, `parameters` as `make` takes them. Why there is no calibration, where it takes one.
absl::StatusOr<std::unique_ptr<const Scorer>> MakeScorer(const ScorerRow& row, const ScorerParameters& parameters,
                                                         const CalibrationOr& calibration);

// NOT_FOUND UNKNOWN_SCORER, naming the known ones.
absl::Status UnknownScorer(std::string_view field, std::string_view name);

// What the caller gave, and the presets of what was left out. INVALID_ARGUMENT UNKNOWN_PARAMETER naming the known ones,
// or PARAMETER_OUT_OF_RANGE naming the range or the choices, or that a whole or odd number is wanted; field
// `policy.<scorer>.<parameter>`. And what the row's own check refuses.
absl::StatusOr<ScorerParameters> ResolveParameters(const ScorerRow& row, const ScorerParameters& given);

// The same for what is not a scorer; `owner` is what takes the parameters, as a refusal calls it ("scorer h2o"), and
// `arm` its name in field paths.
absl::StatusOr<ScorerParameters> ResolveParameters(std::string_view owner, std::string_view arm,
                                                   std::span<const ParameterRow> rows, const ScorerParameters& given);

}  // namespace ebb

#endif  // EBB_POLICIES_REGISTRY_H_
