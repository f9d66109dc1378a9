// Results as rows: a table for people, an object a line for programs, always with the machine and the command.

#ifndef EBB_BENCH_REPORT_H_
#define EBB_BENCH_REPORT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bench/statistics.h"
#include "engine/lab/table.h"

namespace ebb::bench {

using Value = std::variant<std::string, int64_t, double, Spread>;

struct Column {
  std::string key = {};     // in JSON, where values are in base units: seconds, bytes, shares
  std::string header = {};  // in the table, with its unit
  double scale = 1;         // from the base unit to the header's
  int digits = 0;           // behind the point, in the table
};

class Report {
 public:
  // `facts`: what holds for all rows, in the order to be shown: ("model", "perf.gguf").
  Report(std::string verb, std::vector<Column> columns, std::vector<std::pair<std::string, Value>> facts);

  // REQUIRES: a value for each column.
  void Add(std::vector<Value> row);

  // One object a row: {"bench": verb, facts..., "command": ..., columns...}; a Spread is {"median", "low", "high"}, the
  // quartiles.
  std::vector<nlohmann::json> Json() const;
  // A line of facts, the command, and the table; a Spread is "median [low, high]".
  std::string Text(lab::TableForm form) const;
  void Print(bool json, lab::TableForm form) const;

 private:
  std::string verb_;
  std::vector<Column> columns_;
  std::vector<std::pair<std::string, Value>> facts_;
  std::vector<std::vector<Value>> rows_ = {};
};

// "AMD EPYC 9654 96-Core Processor", from the system; "unknown CPU" where it does not say.
std::string CpuName();

// This process's command line, as it would be typed.
std::string CommandLine();

}  // namespace ebb::bench

#endif  // EBB_BENCH_REPORT_H_
