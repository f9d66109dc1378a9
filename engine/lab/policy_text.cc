#include "engine/lab/policy_text.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "policies/allocation.h"
#include "policies/presets.h"
#include "policies/registry.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == at) parts.emplace_back();
    if (c != at) parts.back() += c;
  }
  return parts;
}

absl::Status Unreadable(std::string_view text, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrFormat("policy '%s': %s", text, what));
}

absl::Status SetModifier(std::string_view text, std::string_view modifier, PolicySpec& spec) {
  if (modifier == "caote") {
    spec.modifier = Modifier::kCaote;
  } else if (modifier == "fast_caote") {
    spec.modifier = Modifier::kFastCaote;
  } else {
    return Unreadable(text, absl::StrFormat("'+%s' is no modifier; use +caote or +fast_caote", modifier));
  }
  return absl::OkStatus();
}

absl::Status NotANumber(std::string_view text, std::string_view part) {
  return Unreadable(text, absl::StrFormat("':%s' is not KEY=NUMBER", part));
}

// KEY=VALUE, where VALUE is a number, or the name of a choice of one of `rows`.
bool ReadNumber(std::string_view part, std::span<const ParameterRow> rows, std::string& key, double& number) {
  key = std::string(part.substr(0, part.find('=')));
  const std::string value(part.substr(std::min(part.size(), key.size() + 1)));
  const auto parameter = std::ranges::find(rows, std::string_view(key), &ParameterRow::name);
  if (parameter != rows.end()) {
    const auto choice = std::ranges::find(parameter->choices, std::string_view(value));
    number = static_cast<double>(choice - parameter->choices.begin());
    if (choice != parameter->choices.end()) return true;
  }
  return absl::SimpleAtod(value, &number);
}

absl::Status SetParameter(std::string_view text, std::string_view part, const ScorerRow& row, PolicySpec& spec) {
  std::string key;
  double number = 0;
  if (!ReadNumber(part, row.parameters, key, number)) return NotANumber(text, part);
  const bool tokens_key = key == "sinks" || key == "recent" || key == "overflow" || key == "slack" || key == "max_drop";
  if (!tokens_key) {
    spec.parameters[key] = number;
    return absl::OkStatus();
  }
  int32_t tokens = 0;
  if (!absl::SimpleAtoi(std::string(part.substr(key.size() + 1)), &tokens)) {
    return Unreadable(text, absl::StrFormat("':%s' is no whole number", part));
  }
  if (key == "sinks") spec.sinks = tokens;
  if (key == "recent") spec.recent = tokens;
  if (key == "overflow") spec.overflow = tokens;
  if (key == "slack") spec.slack = tokens;
  if (key == "max_drop") spec.max_drop = tokens;
  return absl::OkStatus();
}

// "pyramid:beta=14".
absl::Status SetAllocation(std::string_view text, const std::string& allocation, PolicySpec& spec) {
  const std::vector<std::string> parts = Split(allocation, ':');
  const AllocationRow* const row = FindAllocation(parts.front());
  if (row == nullptr) {
    std::string known;
    for (const AllocationRow& each : AllocationRegistry()) {
      known += absl::StrFormat("%s@%s", known.empty() ? "" : ", ", each.name);
    }
    return Unreadable(text, absl::StrFormat("'@%s' is no allocation; use one of %s", parts.front(), known));
  }
  spec.allocation = row->allocation;
  for (size_t i = 1; i < parts.size(); ++i) {
    std::string key;
    double number = 0;
    if (!ReadNumber(parts[i], row->parameters, key, number)) return NotANumber(text, parts[i]);
    spec.allocation_parameters[key] = number;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NamedPolicy> ParsePolicy(std::string_view text) {
  const std::vector<std::string> allocations = Split(std::string(text), '@');
  const std::vector<std::string> modifiers = Split(allocations.front(), '+');
  const std::vector<std::string> parts = Split(modifiers.front(), ':');
  NamedPolicy policy = {.name = std::string(text)};
  if (const Preset* const preset = FindPreset(parts.front()); preset != nullptr) {
    policy.spec = preset->spec;
  } else {
    policy.spec.scorer = std::string(parts.front());
  }
  const ScorerRow* const row = FindScorer(policy.spec.scorer);
  if (row == nullptr) return UnknownScorer("policy", parts.front());
  for (size_t i = 1; i < parts.size(); ++i) EBB_TRY(SetParameter(text, parts[i], *row, policy.spec));
  if (modifiers.size() > 2) return Unreadable(text, "one modifier is enough");
  if (modifiers.size() == 2) EBB_TRY(SetModifier(text, modifiers[1], policy.spec));
  if (allocations.size() > 2) return Unreadable(text, "one allocation is enough");
  if (allocations.size() == 2) EBB_TRY(SetAllocation(text, allocations[1], policy.spec));
  return policy;
}

absl::StatusOr<std::vector<NamedPolicy>> ParsePolicies(const std::vector<std::string>& texts) {
  std::vector<NamedPolicy> policies;
  for (const std::string& text : texts) {
    EBB_ASSIGN(policies.emplace_back(), ParsePolicy(text));
  }
  return policies;
}

std::string PolicyHelp() {
  std::string scorers;
  for (const ScorerRow& row : ScorerRegistry()) {
    scorers += absl::StrFormat("%s%s", scorers.empty() ? "" : ", ", row.name);
  }
  std::string presets;
  for (const Preset& preset : Presets()) {
    presets += absl::StrFormat("%s%s", presets.empty() ? "" : ", ", preset.name);
  }
  return absl::StrFormat(
      "Policies, as NAME[:KEY=VALUE]...[+caote|+fast_caote][@ALLOCATION[:KEY=VALUE]...]; NAME is a scorer (%s) or a "
      "preset (%s)",
      scorers, presets);
}

}  // namespace ebb::lab
