#include "server/log_line.h"

#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "engine/text/utf8.h"
#include "server/bounded_text.h"

namespace ebb {
namespace {

constexpr size_t kValueBytesMax = 1024;
constexpr size_t kMessageBytesMax = 4096;
constexpr std::array<std::string_view, 5> kLevels = {"trace", "debug", "info", "warn", "error"};

// Ends a line, moves a cursor or turns text around, where a person or a terminal reads it.
bool IsUnsafe(char32_t code) {
  return code < 0x20 || (code >= 0x7F && code <= 0x9F) || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069);
}

// Valid UTF-8 with what is unsafe as \u00XX; with `quoted`, also " and \.
void AppendEscaped(std::string_view text, size_t bytes_max, bool quoted, std::string& line) {
  const std::string valid = BoundedText(text, bytes_max);
  for (std::string_view rest = valid; !rest.empty();) {
    const Utf8Unit unit = FirstUtf8(rest);
    const char32_t code = unit.code;
    const std::string_view character = rest.substr(0, static_cast<size_t>(unit.size));
    rest.remove_prefix(character.size());
    if (IsUnsafe(code)) {
      absl::StrAppendFormat(&line, "\\u%04x", static_cast<uint32_t>(code));
    } else if (quoted && (code == '"' || code == '\\')) {
      line.append("\\").append(character);
    } else {
      line.append(character);
    }
  }
}

void AppendQuoted(std::string_view text, size_t bytes_max, std::string& line) {
  line += '"';
  AppendEscaped(text, bytes_max, true, line);
  line += '"';
}

bool NeedsQuotes(std::string_view text) { return text.find_first_of(" \"=\\") != std::string_view::npos; }

void AppendNumber(const LogField::Value& value, std::string& line) {
  if (const auto* number = std::get_if<int64_t>(&value)) absl::StrAppendFormat(&line, "%d", *number);
  if (const auto* number = std::get_if<uint64_t>(&value)) absl::StrAppendFormat(&line, "%d", *number);
  if (const auto* truth = std::get_if<bool>(&value)) line += *truth ? "true" : "false";
  if (const auto* number = std::get_if<double>(&value)) {
    if (std::isfinite(*number)) {
      absl::StrAppendFormat(&line, "%.9g", *number);
    } else {
      line += "null";  // JSON has no other word for it
    }
  }
}

std::string Timestamp(absl::Time time) { return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone()); }

std::string FormatJson(const LogRecord& record) {
  std::string line =
      absl::StrFormat(R"({"ts":"%s","level":"%s","event":)", Timestamp(record.time), LogLevelName(record.level));
  AppendQuoted(record.event, kValueBytesMax, line);
  line += ",\"msg\":";
  AppendQuoted(record.message, kMessageBytesMax, line);
  for (const LogField& field : record.fields) {
    line += ',';
    AppendQuoted(field.key(), kValueBytesMax, line);
    line += ':';
    const auto* text = std::get_if<std::string_view>(&field.value());
    text != nullptr ? AppendQuoted(*text, kValueBytesMax, line) : AppendNumber(field.value(), line);
  }
  return line += '}';
}

std::string FormatText(const LogRecord& record) {
  std::string line = absl::StrFormat("%s %-5s ", Timestamp(record.time),
                                     absl::AsciiStrToUpper(std::string(LogLevelName(record.level))));
  AppendEscaped(record.event, kValueBytesMax, false, line);
  if (!record.message.empty()) {
    line += "  ";
    AppendEscaped(record.message, kMessageBytesMax, false, line);
  }
  std::string_view gap = "  ";
  for (const LogField& field : record.fields) {
    const auto* text = std::get_if<std::string_view>(&field.value());
    if (text != nullptr && text->empty()) continue;
    line += std::exchange(gap, " ");
    AppendEscaped(field.key(), kValueBytesMax, false, line);
    line += '=';
    if (text == nullptr) {
      AppendNumber(field.value(), line);
    } else if (NeedsQuotes(*text)) {
      AppendQuoted(*text, kValueBytesMax, line);
    } else {
      AppendEscaped(*text, kValueBytesMax, false, line);
    }
  }
  return line;
}

}  // namespace

std::string_view LogLevelName(LogLevel level) { return kLevels[static_cast<size_t>(level)]; }

std::optional<LogLevel> ParseLogLevel(std::string_view name) {
  for (size_t i = 0; i < kLevels.size(); ++i) {
    if (kLevels[i] == name) return static_cast<LogLevel>(i);
  }
  return std::nullopt;
}

std::optional<LogFormat> ParseLogFormat(std::string_view name) {
  if (name == "text") return LogFormat::kText;
  if (name == "json") return LogFormat::kJson;
  return std::nullopt;
}

std::string FormatLogLine(LogFormat format, const LogRecord& record) {
  return format == LogFormat::kJson ? FormatJson(record) : FormatText(record);
}

}  // namespace ebb
