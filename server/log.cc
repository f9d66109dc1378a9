#include "server/log.h"

#include <spdlog/async.h>
#include <spdlog/async_logger.h>
#include <spdlog/sinks/base_sink.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/time/clock.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr int32_t kQueueLinesMax = 1000000;

// Payloads are finished lines.
class LineSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LineSink(std::FILE* out) : out_(out) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    std::fwrite(message.payload.data(), 1, message.payload.size(), out_);
    std::fputc('\n', out_);
    std::fflush(out_);
  }
  void flush_() override { std::fflush(out_); }

 private:
  std::FILE* const out_;
};

class AsyncLog;
std::atomic<AsyncLog*> active = nullptr;
std::atomic<uint64_t> dropped_before = 0;  // by logs that are gone

class AsyncLog final : public Log {
 public:
  explicit AsyncLog(const LogOptions& options)
      : options_(options),
        level_(options.level),
        writer_(std::make_shared<spdlog::details::thread_pool>(
            static_cast<size_t>(std::clamp(options.queue_lines, 1, kQueueLinesMax)), 1)),
        logger_(std::make_shared<spdlog::async_logger>("ebb", std::make_shared<LineSink>(options.out), writer_,
                                                       spdlog::async_overflow_policy::overrun_oldest)) {
    logger_->set_level(spdlog::level::trace);
    AsyncLog* none = nullptr;
    EBB_CHECK(active.compare_exchange_strong(none, this));
  }

  ~AsyncLog() override {
    active = nullptr;
    dropped_before += dropped();
    logger_.reset();
    writer_.reset();  // its destructor writes what waits
  }

  bool Takes(LogLevel level) const { return level >= level_; }
  void SetLevel(LogLevel level) { level_ = level; }
  LogFormat format() const { return options_.format; }
  void Write(const std::string& line) { logger_->log(spdlog::level::info, spdlog::string_view_t(line)); }
  uint64_t dropped() const { return writer_->overrun_counter(); }

 private:
  const LogOptions options_;
  std::atomic<LogLevel> level_;
  std::shared_ptr<spdlog::details::thread_pool> writer_;
  std::shared_ptr<spdlog::async_logger> logger_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Log>> StartLog(const LogOptions& options) {
  const auto fail = [](const std::exception& error) {
    return Refuse(absl::StatusCode::kUnavailable, std::string("cannot start the log's thread: ") + error.what(),
                  {.reason = "NO_THREAD"});
  };
  try {
    return std::make_unique<AsyncLog>(options);
  } catch (const spdlog::spdlog_ex& error) {
    return fail(error);
  } catch (const std::system_error& error) {
    return fail(error);
  }
}

bool LogsAt(LogLevel level) {
  const AsyncLog* log = active;
  return log != nullptr ? log->Takes(level) : level >= LogOptions().level;
}

void SetLogLevel(LogLevel level) {
  if (AsyncLog* log = active; log != nullptr) log->SetLevel(level);
}

void WriteLog(LogLevel level, std::string_view event, std::initializer_list<LogField> fields,
              std::string_view message) {
  if (!LogsAt(level)) return;
  AsyncLog* log = active;
  const LogRecord record = {.time = absl::Now(),
                            .level = level,
                            .event = event,
                            .message = message,
                            .fields = {fields.begin(), fields.size()}};
  const std::string line = FormatLogLine(log != nullptr ? log->format() : LogFormat::kText, record);
  if (log != nullptr) {
    log->Write(line);
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
}

uint64_t LogLinesDropped() {
  const AsyncLog* log = active;
  return dropped_before + (log != nullptr ? log->dropped() : 0);
}

std::string HashForLog(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a, then a multiply and a shift to mix the upper bits
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  hash = (hash ^ hash >> 32) * 0x9E3779B97F4A7C15u;
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(hash));
  return std::string(digits, 12);
}

std::string ErrorForLog(const absl::Status& status, std::string_view name) {
  const std::string_view text(status.message().data(), status.message().size());
  // A dot ends a name, as files are called NAME.1.journal.
  const auto goes_on = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
  };
  std::string error;
  size_t done = 0;
  for (size_t at = text.find(name); !name.empty() && at != text.npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    if (at < done || (at > 0 && goes_on(text[at - 1])) || (end < text.size() && goes_on(text[end]))) continue;
    error.append(text.substr(done, at - done)).append(HashForLog(name));
    done = end;
  }
  return error.append(text.substr(done));
}

}  // namespace ebb
