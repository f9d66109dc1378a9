// A log line as text or JSON, from structured fields. Pure.
//
// A line is one line whatever its fields hold: log injection ends here. Invalid UTF-8 becomes U+FFFD, control
// characters (C1 and bidirectional overrides too) are escaped, long values are cut. In JSON every line parses.

#ifndef EBB_SERVER_LOG_LINE_H_
#define EBB_SERVER_LOG_LINE_H_

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "absl/time/time.h"

namespace ebb {

enum class LogLevel { kTrace, kDebug, kInfo, kWarn, kError };
enum class LogFormat { kText, kJson };

// As configuration spells them: trace, debug, info, warn, error; text, json.
std::string_view LogLevelName(LogLevel level);
std::optional<LogLevel> ParseLogLevel(std::string_view name);
std::optional<LogFormat> ParseLogFormat(std::string_view name);

// One key and its value; holds no copy, so it lives no longer than the call it is written in. Keys are ours,
// lower_snake, and not among those that every line has: ts, level, event, msg.
class LogField {
 public:
  using Value = std::variant<std::string_view, int64_t, uint64_t, double, bool>;

  LogField(std::string_view key, std::string_view value) : key_(key), value_(value) {}
  LogField(std::string_view key, const std::string& value) : key_(key), value_(std::string_view(value)) {}
  LogField(std::string_view key, const char* value) : key_(key), value_(std::string_view(value)) {}
  LogField(std::string_view key, std::same_as<bool> auto value) : key_(key), value_(value) {}
  LogField(std::string_view key, std::floating_point auto value) : key_(key), value_(static_cast<double>(value)) {}
  LogField(std::string_view key, std::signed_integral auto value) : key_(key), value_(static_cast<int64_t>(value)) {}
  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) LogField(std::string_view key, T value)
      : key_(key), value_(static_cast<uint64_t>(value)) {}
  LogField(std::string_view key, absl::Duration value) : key_(key), value_(absl::ToDoubleMilliseconds(value)) {}

  std::string_view key() const { return key_; }
  const Value& value() const { return value_; }

 private:
  std::string_view key_;
  Value value_;
};

struct LogRecord {
  absl::Time time = {};
  LogLevel level = LogLevel::kInfo;
  std::string_view event = {};    // what happened, lower_snake: session_opened
  std::string_view message = {};  // the same for a person; may be empty
  std::span<const LogField> fields = {};
};

// Without a line end. JSON has every field; text leaves out those that are empty: `2026-11-21T10:00:00.123Z INFO
// session_opened  a message  tenant=acme pages=3`.
std::string FormatLogLine(LogFormat format, const LogRecord& record);

}  // namespace ebb

#endif  // EBB_SERVER_LOG_LINE_H_
