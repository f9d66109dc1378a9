// The server's log: structured lines to stderr, written by a thread of their own.
//
//   const auto log = StartLog({.level = LogLevel::kInfo, .format = LogFormat::kJson});   // once, in main
//   LogInfo("session_opened", {{"tenant", tenant}, {"pages", pages}}, "a session was opened");
//
// Logging never waits and never throws: when the reader of stderr is slow, the oldest lines are dropped and counted
// (ebb_log_lines_dropped_total). Lines hold no prompt, no completion and no secret: text of a client's goes into a
// field only where it names something (a tenant, a session), and a session's name as HashForLog.
//
// Threads: any. Lines logged while no log is started go to stderr as text at once.

#ifndef EBB_SERVER_LOG_H_
#define EBB_SERVER_LOG_H_

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/log_line.h"

namespace ebb {

struct LogOptions {
  LogLevel level = LogLevel::kInfo;  // lines below it are not written
  LogFormat format = LogFormat::kText;
  int32_t queue_lines = 4096;  // that may wait for the writer, 1 .. 1000000
  std::FILE* out = stderr;     // stays open while the log lives
};

// A started log. Destroying it writes what waits; no other thread may be logging then.
class Log {
 public:
  virtual ~Log() = default;
};

// REQUIRES: no other log lives. UNAVAILABLE when its thread cannot be had.
absl::StatusOr<std::unique_ptr<Log>> StartLog(const LogOptions& options);

bool LogsAt(LogLevel level);
// Of the log that lives, from now on.
void SetLogLevel(LogLevel level);
void WriteLog(LogLevel level, std::string_view event, std::initializer_list<LogField> fields, std::string_view message);

// Lines dropped since the start of the process.
uint64_t LogLinesDropped();

// 12 hexadecimal digits that stand for `name` in logs: equal for equal names, and no way to use the session.
std::string HashForLog(std::string_view name);
// What `status` says, with that in the place of each whole `name` in it.
std::string ErrorForLog(const absl::Status& status, std::string_view name);

inline void LogDebug(std::string_view event, std::initializer_list<LogField> fields = {},
                     std::string_view message = {}) {
  WriteLog(LogLevel::kDebug, event, fields, message);
}
inline void LogInfo(std::string_view event, std::initializer_list<LogField> fields = {},
                    std::string_view message = {}) {
  WriteLog(LogLevel::kInfo, event, fields, message);
}
inline void LogWarn(std::string_view event, std::initializer_list<LogField> fields = {},
                    std::string_view message = {}) {
  WriteLog(LogLevel::kWarn, event, fields, message);
}
inline void LogError(std::string_view event, std::initializer_list<LogField> fields = {},
                     std::string_view message = {}) {
  WriteLog(LogLevel::kError, event, fields, message);
}

}  // namespace ebb

#endif  // EBB_SERVER_LOG_H_
