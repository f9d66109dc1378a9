#include "policies/registry.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "policies/allocation.h"
#include "policies/calibrated.h"
#include "policies/caote.h"
#include "policies/expected_attention.h"
#include "policies/full.h"
#include "policies/h2o.h"
#include "policies/keydiff.h"
#include "policies/knorm.h"
#include "policies/lagkv.h"
#include "policies/nacl.h"
#include "policies/random.h"
#include "policies/sage.h"
#include "policies/scissorhands.h"
#include "policies/semantic.h"
#include "policies/shortest.h"
#include "policies/snapkv.h"
#include "policies/status.h"
#include "policies/streaming.h"
#include "policies/tova.h"

namespace ebb {
namespace {

// "0 (short) or 1 (long)", as a refusal offers them.
std::string ListChoices(const ParameterRow& parameter) {
  std::string list;
  for (size_t i = 0; i < parameter.choices.size(); ++i) {
    const bool is_last = i + 1 == parameter.choices.size();
    list += absl::StrFormat("%s%d (%s)", i == 0 ? "" : is_last ? " or " : ", ", i, parameter.choices[i]);
  }
  return list;
}

absl::Status CheckParameter(const ParameterRow& parameter, const std::string& field, double value) {
  const bool in_range = value >= parameter.min && value <= parameter.max;  // NaN is not
  const bool is_whole = !parameter.whole || value == std::floor(value);
  const bool is_odd = !parameter.odd || std::fmod(value, 2) == 1;
  if (in_range && is_whole && is_odd) return absl::OkStatus();
  const std::string given = Shortest(value);
  std::string what = given + " is not a whole number";
  if (!in_range)
    what = absl::StrFormat("%s is not in [%s, %s]", given, Shortest(parameter.min), Shortest(parameter.max));
  if (in_range && is_whole)
    what = absl::StrFormat("%s is even; use %s or %s", given, Shortest(value - 1), Shortest(value + 1));
  if (!parameter.choices.empty()) what = absl::StrFormat("%s is no choice; use %s", given, ListChoices(parameter));
  return RefuseField("PARAMETER_OUT_OF_RANGE", field, what);
}

}  // namespace

std::span<const ScorerRow> ScorerRegistry() {
  // clang-format off
  static const ScorerRow rows[] = {
      kFullRow,
      kStreamingRow,
      kH2oRow,
      kTovaRow,
      kSnapkvRow,
      kSageRow,
      kKeydiffRow,
      kKnormRow,
      kLagkvRow,
      kExpectedAttentionRow,
      kRandomRow,
      kSemanticRow,
      kNaclRow,
      kScissorhandsRow,
      kCalibratedRow,
  };
  // clang-format on
  return rows;
}

std::span<const ModifierRow> ModifierRegistry() {
  static const ModifierRow rows[] = {kCaoteRow, kFastCaoteRow};
  return rows;
}

std::span<const AllocationRow> AllocationRegistry() {
  static const AllocationRow rows[] = {kUniformRow, kPyramidRow, kAdaRow, kDuoRow};  // in the order of Allocation
  return rows;
}

int32_t DefaultRecent(const ScorerRow& row, const ScorerParameters& parameters, int32_t budget, int32_t sinks,
                      int32_t query_heads) {
  if (!row.recent_parameter.empty()) {
    return static_cast<int32_t>(parameters.at(std::string(row.recent_parameter)));
  }
  return row.recent == nullptr ? 0 : row.recent(budget, sinks, query_heads);
}

const ScorerRow* FindScorer(std::string_view name) {
  const std::span<const ScorerRow> rows = ScorerRegistry();
  const auto row = std::ranges::find(rows, name, &ScorerRow::name);
  return row == rows.end() ? nullptr : &*row;
}

absl::StatusOr<std::unique_ptr<const Scorer>> MakeScorer(const ScorerRow& row, const ScorerParameters& parameters,
                                                         const CalibrationOr& calibration) {
  if (row.make != nullptr) return row.make(parameters);
  EBB_TRY(calibration.status());
  return row.make_calibrated(parameters, *calibration);
}

absl::Status UnknownScorer(std::string_view field, std::string_view name) {
  std::string known;
  for (const ScorerRow& row : ScorerRegistry()) known += absl::StrFormat("%s%s", known.empty() ? "" : ", ", row.name);
  return Refuse(absl::StatusCode::kNotFound, absl::StrFormat("%s: no scorer named '%s'; use %s", field, name, known),
                {.reason = "UNKNOWN_SCORER", .field = std::string(field)});
}

absl::StatusOr<ScorerParameters> ResolveParameters(const ScorerRow& row, const ScorerParameters& given) {
  EBB_ASSIGN(ScorerParameters resolved,
             ResolveParameters(absl::StrFormat("scorer %s", row.name), row.name, row.parameters, given));
  if (row.check != nullptr) EBB_TRY(row.check(resolved));
  return resolved;
}

absl::StatusOr<ScorerParameters> ResolveParameters(std::string_view owner, std::string_view arm,
                                                   std::span<const ParameterRow> rows, const ScorerParameters& given) {
  ScorerParameters resolved;
  std::string known;
  for (const ParameterRow& parameter : rows) {
    resolved[std::string(parameter.name)] = parameter.preset;
    known += absl::StrFormat("%s%s", known.empty() ? "" : ", ", parameter.name);
  }
  for (const auto& [name, value] : given) {
    const std::string field = absl::StrFormat("policy.%s.%s", arm, name);
    const auto parameter = std::ranges::find(rows, std::string_view(name), &ParameterRow::name);
    if (parameter == rows.end()) {
      return RefuseField("UNKNOWN_PARAMETER", field,
                         known.empty() ? absl::StrFormat("the %s takes no parameters", owner)
                                       : absl::StrFormat("the %s takes %s", owner, known));
    }
    EBB_TRY(CheckParameter(*parameter, field, value));
    resolved[name] = value;
  }
  return resolved;
}

}  // namespace ebb
