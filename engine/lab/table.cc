#include "engine/lab/table.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "policies/check.h"

namespace ebb::lab {
namespace {

std::string Quoted(const std::string& cell) {
  if (cell.find_first_of(",\"\n") == std::string::npos) return cell;
  std::string quoted = "\"";
  for (const char c : cell) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string Join(const std::vector<std::string>& cells, const std::string& between) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) line += (i == 0 ? "" : between) + cells[i];
  return line;
}

std::string Aligned(const std::vector<std::string>& cells, const std::vector<size_t>& widths) {
  std::vector<std::string> padded = cells;
  for (size_t i = 0; i < padded.size(); ++i)
    padded[i].insert(i == 0 ? padded[i].size() : 0, widths[i] - padded[i].size(), ' ');
  return Join(padded, "  ");
}

}  // namespace

std::string Format(const Table& table, TableForm form) {
  std::vector<std::vector<std::string>> lines = {table.header};
  lines.insert(lines.end(), table.rows.begin(), table.rows.end());
  std::vector<size_t> widths(table.header.size(), 0);
  for (const auto& line : lines) {
    EBB_CHECK(line.size() == widths.size());
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    std::vector<std::string> line = lines[i];
    if (form == TableForm::kCsv) {
      std::ranges::transform(line, line.begin(), Quoted);
      text += Join(line, ",") + "\n";
    } else if (form == TableForm::kMarkdown) {
      text += "| " + Join(line, " | ") + " |\n";
      if (i == 0) text += "|" + Join(std::vector<std::string>(line.size(), "---"), "|") + "|\n";
    } else {
      text += Aligned(line, widths) + "\n";
    }
  }
  return text;
}

std::string PlusMinus(const Mean& mean, int digits) {
  if (!std::isfinite(mean.half_width)) return absl::StrFormat("%.*f", digits, mean.value);
  return absl::StrFormat("%.*f +- %.*f", digits, mean.value, digits, mean.half_width);
}

std::string WithInterval(double value, const Interval& interval, int digits) {
  const std::string text = absl::StrFormat("%.*f", digits, value);
  if (!std::isfinite(interval.low) || !std::isfinite(interval.high)) return text;
  return absl::StrFormat("%s [%.*f, %.*f]", text, digits, interval.low, digits, interval.high);
}

void AddTableOptions(Command command, TableForm& form) {
  const Flag csv = command.add_flag_callback(
      "--csv", [&form] { form = TableForm::kCsv; }, "Print CSV");
  const Flag markdown = command.add_flag_callback(
      "--markdown", [&form] { form = TableForm::kMarkdown; }, "Print a Markdown table");
  csv.excludes(markdown);
}

}  // namespace ebb::lab
