// Any bytes as an event, a field's key, its value and a message (they end at 0xFF) of a log line. Text and JSON stay
// one line of printable UTF-8, and the JSON parses to an object.

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/text/utf8.h"
#include "policies/check.h"
#include "server/log_line.h"

namespace ebb {
namespace {

void CheckLine(std::string_view line) {
  EBB_CHECK(ValidUtf8Size(line) == line.size());
  EBB_CHECK(std::all_of(line.begin(), line.end(), [](unsigned char c) { return c >= 0x20 && c != 0x7F; }));
}

}  // namespace
}  // namespace ebb

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::array<std::string_view, 4> parts;
  for (std::string_view& part : parts) {
    part = rest.substr(0, rest.find('\xFF'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
  }
  const std::array<ebb::LogField, 2> fields = {ebb::LogField(parts[1], parts[2]), ebb::LogField("size", size)};
  const ebb::LogRecord record = {.event = parts[0], .message = parts[3], .fields = fields};
  ebb::CheckLine(FormatLogLine(ebb::LogFormat::kText, record));
  const std::string json = FormatLogLine(ebb::LogFormat::kJson, record);
  ebb::CheckLine(json);
  EBB_CHECK(nlohmann::json::parse(json).is_object());
  return 0;
}
