#include "server/log.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

std::string Line(LogFormat format, std::initializer_list<LogField> fields, std::string_view message = "a message") {
  return FormatLogLine(format, {.time = absl::FromUnixMillis(1795255200123),
                                .level = LogLevel::kWarn,
                                .event = "session_opened",
                                .message = message,
                                .fields = {fields.begin(), fields.size()}});
}

TEST(FormatLogLine, WritesTextForAPerson) {
  EXPECT_EQ(Line(LogFormat::kText, {{"tenant", "acme"}, {"pages", 3}, {"why", "too \"big\""}, {"empty", ""}}),
            "2026-11-21T10:00:00.123Z WARN  session_opened  a message  tenant=acme pages=3 why=\"too \\\"big\\\"\"");
  EXPECT_EQ(Line(LogFormat::kText, {}, ""), "2026-11-21T10:00:00.123Z WARN  session_opened");
}

TEST(FormatLogLine, WritesEachTypeAsItsJson) {
  const std::string name = "acme";
  const json line = json::parse(Line(LogFormat::kJson, {{"text", name},
                                                        {"negative", -7},
                                                        {"large", std::numeric_limits<uint64_t>::max()},
                                                        {"small", int8_t{3}},
                                                        {"real", 0.25},
                                                        {"nan", std::nan("")},
                                                        {"yes", true},
                                                        {"duration_ms", absl::Microseconds(1500)}}));
  EXPECT_EQ(line["ts"], "2026-11-21T10:00:00.123Z");
  EXPECT_EQ(line["level"], "warn");
  EXPECT_EQ(line["event"], "session_opened");
  EXPECT_EQ(line["msg"], "a message");
  EXPECT_EQ(line["text"], "acme");
  EXPECT_EQ(line["negative"], -7);
  EXPECT_EQ(line["large"], std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(line["small"], 3);
  EXPECT_EQ(line["real"], 0.25);
  EXPECT_TRUE(line["nan"].is_null());
  EXPECT_EQ(line["yes"], true);
  EXPECT_EQ(line["duration_ms"], 1.5);
}

TEST(FormatLogLine, LetsNoFieldForgeALine) {
  const std::string attack = "x\n{\"level\":\"error\"}\r\x1B[2J\xC2\x9B\xE2\x80\xAE\xE2\x80\xA8 \x7F";
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    const std::string line = Line(format, {{"tenant", attack}, {attack, 1}}, attack);
    for (const std::string bad : {"\n", "\r", "\x1B", "\xC2\x9B", "\xE2\x80\xAE", "\xE2\x80\xA8", "\x7F"}) {
      EXPECT_THAT(line, Not(HasSubstr(bad)));
    }
  }
  EXPECT_EQ(json::parse(Line(LogFormat::kJson, {{"tenant", attack}}))["tenant"], attack) << "JSON loses nothing";
}

TEST(FormatLogLine, CutsLongValues) {
  const json line =
      json::parse(Line(LogFormat::kJson, {{"text", std::string(1 << 20, 'x')}}, std::string(1 << 20, 'y')));
  EXPECT_THAT(line["text"].get<std::string>(), SizeIs(1024));
  EXPECT_THAT(line["msg"].get<std::string>(), SizeIs(4096));
}

TEST(FormatLogLine, IsOneParsableLineForAnyBytes) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto bytes = [&] {
      std::string text(random() % 40, '\0');
      for (char& byte : text) byte = static_cast<char>(random() % 3 == 0 ? random() % 32 : random());
      return text;
    };
    const std::string key = bytes(), value = bytes(), message = bytes();
    const json line = json::parse(Line(LogFormat::kJson, {{"k" + key, value}}, message));
    EXPECT_EQ(line.size(), 5u);
    EXPECT_THAT(Line(LogFormat::kJson, {{key, value}}, message), Not(HasSubstr("\n")));
    EXPECT_THAT(Line(LogFormat::kText, {{key, value}}, message), Not(HasSubstr("\n")));
  }
}

TEST(ParseLogLevel, ReadsWhatLogLevelNameWrites) {
  for (const LogLevel level :
       {LogLevel::kTrace, LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError}) {
    EXPECT_EQ(ParseLogLevel(LogLevelName(level)), level);
  }
  EXPECT_EQ(ParseLogLevel("loud"), std::nullopt);
  EXPECT_EQ(ParseLogFormat("json"), LogFormat::kJson);
  EXPECT_EQ(ParseLogFormat("text"), LogFormat::kText);
  EXPECT_EQ(ParseLogFormat("xml"), std::nullopt);
}

// A pipe whose ends are files.
struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    read = fdopen(ends[0], "r");
    write = fdopen(ends[1], "w");
  }
  ~Pipe() {
    std::fclose(read);
    if (write != nullptr) std::fclose(write);
  }
  void CloseWrite() { std::fclose(std::exchange(write, nullptr)); }
  // All lines, up to the end of the other side.
  std::vector<std::string> ReadLines() {
    std::vector<std::string> lines;
    char* line = nullptr;
    size_t size = 0;
    while (getline(&line, &size, read) > 0) lines.emplace_back(line);
    std::free(line);
    return lines;
  }
  std::FILE* read = nullptr;
  std::FILE* write = nullptr;
};

TEST(StartLog, WritesEveryLineOfItsLevelBeforeItEnds) {
  Pipe pipe;
  {
    const auto log = StartLog({.level = LogLevel::kWarn, .format = LogFormat::kJson, .out = pipe.write});
    ASSERT_THAT(log, IsOk());
    EXPECT_FALSE(LogsAt(LogLevel::kInfo));
    LogInfo("quiet");
    for (int i = 0; i < 100; ++i) LogWarn("counted", {{"i", i}});
    LogError("last", {}, "it ends");
  }
  pipe.CloseWrite();
  const std::vector<std::string> lines = pipe.ReadLines();
  ASSERT_THAT(lines, SizeIs(101));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(json::parse(lines[i])["i"], i);
  EXPECT_EQ(json::parse(lines[100])["msg"], "it ends");
}

TEST(StartLog, DropsTheOldestAndCountsRatherThanWait) {
  Pipe pipe;
  const uint64_t dropped_before = LogLinesDropped();
  constexpr int kLines = 1000;
  const std::string kilobyte(1000, 'x');
  std::vector<std::string> lines;
  std::thread reader;
  {
    const auto log = StartLog({.format = LogFormat::kJson, .queue_lines = 8, .out = pipe.write});
    ASSERT_THAT(log, IsOk());
    // Nobody reads yet: a pipe holds 64 KiB, so most of these find a full queue, and none may wait.
    for (int i = 0; i < kLines; ++i) LogInfo("flood", {{"i", i}, {"text", kilobyte}});
    EXPECT_GT(LogLinesDropped(), dropped_before + 800);
    reader = std::thread([&] { lines = pipe.ReadLines(); });
  }
  pipe.CloseWrite();
  reader.join();
  EXPECT_EQ(lines.size() + (LogLinesDropped() - dropped_before), static_cast<size_t>(kLines));
  EXPECT_EQ(json::parse(lines.back())["i"], kLines - 1) << "the newest stays";
}

TEST(StartLog, TakesLinesFromManyThreads) {
  Pipe pipe;
  std::vector<std::string> lines;
  std::thread reader([&] { lines = pipe.ReadLines(); });
  {
    const auto log = StartLog({.format = LogFormat::kJson, .out = pipe.write});
    ASSERT_THAT(log, IsOk());
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < 200; ++i) LogInfo("line", {{"thread", t}, {"i", i}});
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  pipe.CloseWrite();
  reader.join();
  EXPECT_THAT(lines, SizeIs(800));
  for (const std::string& line : lines) EXPECT_TRUE(json::accept(line)) << line;
}

TEST(HashForLog, IsStableAndTellsNamesApart) {
  EXPECT_THAT(HashForLog("sessions/1"), SizeIs(12));
  EXPECT_EQ(HashForLog("sessions/1"), HashForLog("sessions/1"));
  EXPECT_NE(HashForLog("sessions/1"), HashForLog("sessions/2"));
}

TEST(ErrorForLog, HasNoSessionsNameInIt) {
  const auto error = [](std::string_view said, std::string_view name) {
    return ErrorForLog(absl::UnavailableError(std::string(said)), name);
  };
  const std::string hash = HashForLog("job");
  EXPECT_EQ(error("writing job.3.journal in /job/job-1: job", "job"),
            "writing " + hash + ".3.journal in /" + hash + "/job-1: " + hash);
  EXPECT_EQ(error("jobs of myjob and job_2 are others", "job"), "jobs of myjob and job_2 are others");
  EXPECT_EQ(error("jobjob", "job"), "jobjob");
  EXPECT_EQ(error("a disk failed", ""), "a disk failed");
  EXPECT_EQ(error("", "job"), "");
}

}  // namespace
}  // namespace ebb
