#include "tests/gpu_check/report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace ebb::gpu_check {
namespace {

std::string Cell(const std::string& text) { return absl::StrReplaceAll(text, {{"|", "\\|"}, {"\n", " "}}); }

std::string TargetOf(const Row& row) {
  if (!row.target) return "";
  return absl::StrFormat("%s %.3g", row.better == Better::kLarger ? "at least" : "at most", *row.target);
}

}  // namespace

int Report::failed() const {
  return static_cast<int>(std::ranges::count_if(checks, [](const Check& check) { return !check.passed; }));
}

nlohmann::json ToJson(const Report& report) {
  nlohmann::json json = {{"emulated", report.is_emulated}, {"missing", report.missing}};
  for (const auto& [key, value] : report.facts) json["facts"][key] = value;
  json["checks"] = nlohmann::json::array();
  for (const Check& check : report.checks) {
    json["checks"].push_back({{"name", check.name}, {"passed", check.passed}, {"why", check.why}});
  }
  json["rows"] = nlohmann::json::array();
  for (const Row& row : report.rows) {
    nlohmann::json& to = json["rows"].emplace_back();
    to = {{"what", row.what},
          {"measured", row.measured},
          {"against", row.against},
          {"ratio", row.ratio},
          {"met", row.met()}};
    if (row.target) to["target"] = TargetOf(row);
  }
  return json;
}

std::string ToMarkdown(const Report& report) {
  std::string text = "# On a GPU\n\n";
  if (report.is_emulated) {
    absl::StrAppend(
        &text, "> **Emulated on the host, not run on a device.** No time and no ratio below says anything of one.\n\n");
  }
  for (const auto& [key, value] : report.facts) absl::StrAppend(&text, "- ", key, ": ", value, "\n");
  absl::StrAppendFormat(&text,
                        "\n## Checks\n\n%d of %d passed: kernels against float64, the engine and its victims against "
                        "the CPU's, stored logits.\n\n",
                        static_cast<int>(report.checks.size()) - report.failed(),
                        static_cast<int>(report.checks.size()));
  for (const Check& check : report.checks) {
    if (!check.passed) absl::StrAppend(&text, "- **failed** `", check.name, "`: ", Cell(check.why), "\n");
  }
  absl::StrAppend(
      &text, "\n## Measurements\n\n| what | measured | against | ratio | target | met |\n|---|---|---|---|---|---|\n");
  for (const Row& row : report.rows) {
    absl::StrAppendFormat(&text, "| %s | %s | %s | %.3f | %s | %s |\n", Cell(row.what), Cell(row.measured),
                          Cell(row.against), row.ratio, TargetOf(row),
                          row.target ? (row.met() ? "yes" : "**no**") : "");
  }
  if (!report.missing.empty()) absl::StrAppend(&text, "\nNot measured:\n\n");
  for (const std::string& what : report.missing) absl::StrAppend(&text, "- ", what, "\n");
  return text;
}

}  // namespace ebb::gpu_check
