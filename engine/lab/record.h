// What a long command has measured so far, in a file that a later run goes on from (--resume). A JSON object a line:
//
//   {"ebb-lab":"passkey","record":"1","engine":"ebb-tiny-q8_0.gguf 7d09... avx512 exact",...,"--length":"900"}
//   {"what":"h2o 128 stream, depth 0.25","is":"0110111010"}
//
// The first line is the run: whatever decides numbers and is not in the names of the others, so that two runs never
// mix. The others are added as they are measured, each number with all its bits: the tables of a run that went on are
// those of one that nothing interrupted.

#ifndef EBB_ENGINE_LAB_RECORD_H_
#define EBB_ENGINE_LAB_RECORD_H_

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ebb::lab {

// What a flag, a file or the engine is in this run.
struct Setting {
  std::string name = {};   // "--length", "TEXT"
  std::string value = {};  // "900", what HashOf says of the file
};
using Settings = std::vector<Setting>;

// 16 hexadecimal digits.
std::string HashOf(std::string_view text);

class Record {
 public:
  // Goes on with the file where there is one; an empty path keeps nothing. A line that an interruption cut is measured
  // again. DATA_LOSS naming the line when it is no such file, which is left as it was; FAILED_PRECONDITION naming what
  // differs when it is of another run; UNAVAILABLE when it cannot be written.
  static absl::StatusOr<Record> Open(const std::string& path, const Settings& run);

  // What was measured under this name, or nothing. DATA_LOSS naming the line when it holds something else, or what does
  // not fit: `fits` tells of a Value whether it does.
  template <typename Value, typename Fits>
  absl::StatusOr<std::optional<Value>> Find(const std::string& what, const Fits& fits) const {
    const auto found = lines_.find(what);
    if (found == lines_.end()) return std::nullopt;
    try {
      const auto value = found->second.value.get<Value>();
      if (fits(value)) return value;
    } catch (const nlohmann::json::exception&) {  // of another type
    }
    return NotALine(found->second.number);
  }

  // UNAVAILABLE when it cannot be written.
  absl::Status Add(const std::string& what, const nlohmann::json& value);

 private:
  struct Line {
    size_t number = 0;  // in the file, from 1
    nlohmann::json value = {};
  };

  absl::Status NotALine(size_t number) const;
  absl::Status NotWritten() const;
  absl::Status Read(const std::string& text);
  absl::Status Append(const std::string& line);

  std::string path_ = {};
  std::ofstream file_ = {};
  std::map<std::string, Line> lines_ = {};
};

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_RECORD_H_
