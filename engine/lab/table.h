// Rows of results as a terminal, a spreadsheet or a page wants them.

#ifndef EBB_ENGINE_LAB_TABLE_H_
#define EBB_ENGINE_LAB_TABLE_H_

#include <string>
#include <vector>

#include "command_line/command_line.h"
#include "engine/lab/statistics.h"

namespace ebb::lab {

enum class TableForm { kText, kCsv, kMarkdown };

struct Table {
  std::vector<std::string> header = {};
  std::vector<std::vector<std::string>> rows = {};  // each as long as the header
};

// Text is aligned, the first column left and the others right; Markdown is not; CSV quotes what holds a comma or a
// quote. Ends with a newline. REQUIRES: every row is as long as the header.
std::string Format(const Table& table, TableForm form);

// "0.0550 +- 0.0080", or "0.0550" where the interval is not known.
std::string PlusMinus(const Mean& mean, int digits);

// "0.42 [0.29, 0.56]", or "0.42" where the interval is not known.
std::string WithInterval(double value, const Interval& interval, int digits);

// --csv and --markdown, which exclude each other.
void AddTableOptions(Command command, TableForm& form);

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_TABLE_H_
