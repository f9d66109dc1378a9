#include "client/cli/policy_page.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/policy_flags.h"
#include "client/cli/terminal.h"

namespace ebb::cli {
namespace {

constexpr size_t kColumnsMin = 60;

// `head`, and `text` beside it, broken between words.
std::string Beside(const std::string& head, const std::string& text, size_t columns) {
  const size_t width = std::max(columns, kColumnsMin);
  const std::string indent(head.size(), ' ');
  std::string lines;
  std::string line = head;
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const bool is_first = line.size() == head.size();
    if (!is_first && line.size() + 1 + word.size() > width) {
      lines += line + "\n";
      line = indent;
    } else if (!is_first) {
      line += ' ';
    }
    absl::StrAppend(&line, word);
  }
  return lines + line + "\n";
}

std::string Fact(const std::string& name, const std::string& text, size_t columns) {
  return Beside(absl::StrFormat("  %-10s", name), text, columns);
}

template <typename Names>
std::string Listed(const Names& names) {
  return names.empty() ? "nothing" : absl::StrJoin(names, ", ");
}

// What every description has, in the order of a reference page; `turns` says it is safe, or not, where that is known.
template <typename Description>
std::string Page(const Description& part, const std::string& turns, const std::vector<std::string>& facts,
                 size_t columns) {
  std::string page = Styled("1", part.name()) + "\n" + Fact("what", part.summary(), columns);
  page += Fact("when", part.when(), columns);
  std::string name = "equation";
  for (const absl::string_view line : absl::StrSplit(part.equation(), '\n')) {
    page += absl::StrFormat("  %-10s%s\n", name, line);
    name.clear();
  }
  page += Fact("paper", part.paper().empty() ? part.origin() : part.origin() + ", " + part.paper(), columns);
  page += absl::StrJoin(facts, "");
  return page + Fact("cost", part.cost(), columns) + Fact("turns", turns + part.turns(), columns);
}

// A whole number in full: rounded to six digits, a bound would not hold.
std::string Number(double value) {
  return value == std::floor(value) ? absl::StrFormat("%.0f", value) : absl::StrFormat("%g", value);
}

std::string Value(const v1::ParameterDescription& parameter) {
  if (parameter.choices().empty()) return Number(parameter.default_());
  return parameter.choices(static_cast<int>(parameter.default_()));
}

std::string Range(const v1::ParameterDescription& parameter) {
  if (parameter.choices().empty()) return "in [" + Number(parameter.min()) + ", " + Number(parameter.max()) + "]";
  return "of " + absl::StrJoin(parameter.choices(), ", ");
}

// `flag`: what sets one.
template <typename Parameters>
std::string ParameterLines(const std::string& flag, const Parameters& parameters, size_t columns) {
  std::string lines;
  for (const v1::ParameterDescription& parameter : parameters) {
    lines +=
        Beside("  " + flag + " ",
               absl::StrFormat("%s=%s, %s: %s", parameter.name(), Value(parameter), Range(parameter), parameter.help()),
               columns);
  }
  return lines;
}

template <typename Parts>
std::string Lines(const std::string& title, const Parts& parts, size_t columns) {
  std::string lines = "\n" + Styled("1", title) + "\n";
  for (const auto& part : parts) lines += Beside(absl::StrFormat("%-20s", part.name()), part.summary(), columns);
  return lines;
}

}  // namespace

std::string PolicyTable(const v1::ListPoliciesResponse& policies, size_t columns) {
  std::string table = Styled("1", "SCORER              BYTES/SLOT  OVER TURNS  WHAT IT DOES") + "\n";
  for (const v1::ScorerDescription& scorer : policies.scorers()) {
    const std::string head = absl::StrFormat("%-20s%10u  %-10s  ", scorer.name(), scorer.state_bytes_per_slot(),
                                             scorer.safe_across_turns() ? "safe" : "not safe");
    table += Beside(head, scorer.summary(), columns);
  }
  table += Lines("MODIFIER", policies.modifiers(), columns);
  return table + Lines("ALLOCATION", policies.allocations(), columns);
}

std::string PolicyPage(const v1::ScorerDescription& scorer, size_t columns) {
  std::string state = absl::StrFormat("%u bytes per slot of a lane", scorer.state_bytes_per_slot());
  if (scorer.state_bytes_per_lane() > 0) state += absl::StrFormat(", %u per lane", scorer.state_bytes_per_lane());
  const std::vector<std::string> facts = {
      Fact("needs", Listed(scorer.observations()), columns),
      Fact("state", state, columns),
      Fact("modifiers", scorer.takes_modifiers() ? "yes: its scores are attention received" : "no", columns),
      Fact("defaults", Summary(scorer.defaults()), columns),
      Fact("budget", absl::StrFormat("at least %u", scorer.budget_min()), columns),
  };
  return Page(scorer, scorer.safe_across_turns() ? "safe. " : "not safe. ", facts, columns) +
         ParameterLines("--param", scorer.parameters(), columns);
}

std::string PolicyPage(const v1::ModifierDescription& modifier, size_t columns) {
  return Page(modifier, "", {Fact("needs", Listed(modifier.observations()), columns)}, columns);
}

std::string PolicyPage(const v1::AllocationDescription& allocation, size_t columns) {
  return Page(allocation, "", {}, columns) + ParameterLines("--allocation-param", allocation.parameters(), columns);
}

}  // namespace ebb::cli
