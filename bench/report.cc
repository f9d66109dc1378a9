#include "bench/report.h"

#include <cstdio>
#include <fstream>
#include <iterator>

#include "absl/strings/str_format.h"
#include "policies/check.h"

namespace ebb::bench {
namespace {

using Json = nlohmann::json;

Json AsJson(const Value& value) {
  if (const auto* spread = std::get_if<Spread>(&value)) {
    return {{"median", spread->median}, {"low", spread->low}, {"high", spread->high}};
  }
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* count = std::get_if<int64_t>(&value)) return *count;
  return std::get<double>(value);
}

std::string AsText(const Value& value, const Column& column) {
  if (const auto* spread = std::get_if<Spread>(&value)) {
    return lab::WithInterval(spread->median * column.scale,
                             {.low = spread->low * column.scale, .high = spread->high * column.scale}, column.digits);
  }
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* count = std::get_if<int64_t>(&value)) return absl::StrFormat("%d", *count);
  return absl::StrFormat("%.*f", column.digits, std::get<double>(value) * column.scale);
}

}  // namespace

Report::Report(std::string verb, std::vector<Column> columns, std::vector<std::pair<std::string, Value>> facts)
    : verb_(std::move(verb)), columns_(std::move(columns)), facts_(std::move(facts)) {}

void Report::Add(std::vector<Value> row) {
  EBB_CHECK(row.size() == columns_.size());
  rows_.push_back(std::move(row));
}

std::vector<Json> Report::Json() const {
  std::vector<nlohmann::json> lines;
  for (const std::vector<Value>& row : rows_) {
    nlohmann::json line = {{"bench", verb_}, {"command", CommandLine()}};
    for (const auto& [name, value] : facts_) line[name] = AsJson(value);
    for (size_t i = 0; i < row.size(); ++i) line[columns_[i].key] = AsJson(row[i]);
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string Report::Text(lab::TableForm form) const {
  std::string text;
  for (const auto& [name, value] : facts_) {
    text += (text.empty() ? "" : ", ") + name + " " + AsText(value, {.digits = 2});
  }
  lab::Table table;
  for (const Column& column : columns_) table.header.push_back(column.header);
  for (const std::vector<Value>& row : rows_) {
    std::vector<std::string> cells;
    for (size_t i = 0; i < row.size(); ++i) cells.push_back(AsText(row[i], columns_[i]));
    table.rows.push_back(std::move(cells));
  }
  const std::string rows = lab::Format(table, form);
  if (form == lab::TableForm::kCsv) return rows;
  const bool markdown = form == lab::TableForm::kMarkdown;
  return text + (markdown ? "\n\n    " : "\n") + CommandLine() + "\n\n" + rows;
}

void Report::Print(bool json, lab::TableForm form) const {
  if (!json) {
    std::printf("%s", Text(form).c_str());
    return;
  }
  for (const nlohmann::json& line : Json()) std::printf("%s\n", line.dump().c_str());
}

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

std::string CommandLine() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string line((std::istreambuf_iterator<char>(file)), {});
  while (!line.empty() && line.back() == '\0') line.pop_back();
  for (char& c : line) c = c == '\0' ? ' ' : c;
  const size_t space = line.find(' ');
  const size_t slash = line.rfind('/', space);  // the program by its name alone
  return slash == std::string::npos || slash > space ? line : line.substr(slash + 1);
}

}  // namespace ebb::bench
