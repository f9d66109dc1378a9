// The shipped binary: how it starts, how much memory it takes, how it stops.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/model/calibration_file.h"
#include "engine/model/head_gates_file.h"
#include "tests/support/ebbd_process.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using client::ReadDetails;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

// Sanitizers keep freed memory back, so there the numbers mean nothing.
#if defined(EBB_SANITIZED)
constexpr double kGrowthMax = 10;
#else
constexpr double kGrowthMax = 1.02;
#endif

std::string Primed(TestClient& client, uint32_t budget) {
  const std::string name = client.Create(SessionWith(StreamingPolicy(budget), 8)).name();
  EXPECT_TRUE(client.Prefill(PrefillText(name, "Once upon a time there was a pond.")).ok());
  return name;
}

// Every session generates `tokens` tokens, all at once.
void GenerateOnAll(TestClient& client, const std::vector<std::string>& names, uint32_t tokens) {
  std::vector<std::thread> threads;
  for (const std::string& name : names) {
    threads.emplace_back([&client, &name, tokens] {
      const Answer answer = client.Decode(DecodeTokens(name, tokens));
      EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
      EXPECT_EQ(answer.tokens.size(), tokens);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The built-in model, since two percent of a toy are less than what a transport's buffers come and go by. A leak of
// anything per token or per call shows in every round; the least of the last rounds is what stays.
TEST(Process, SixtyFourSessionsGenerateTenTimesTheirBudgetInTheSameMemory) {
  constexpr uint32_t kBudget = 32;
  constexpr int kRounds = 10, kWarmUp = 5;
  const EbbdProcess ebbd(EBBD_BINARY, {"--model=models/ebb-tiny-q8_0.gguf", "--cache.arena=64MiB"});
  ASSERT_FALSE(ebbd.address().empty()) << ebbd.log();
  TestClient client(ebbd.address());
  std::vector<std::string> names;
  for (int i = 0; i < 64; ++i) names.push_back(Primed(client, kBudget));

  std::vector<uint64_t> resident, used;
  for (int i = 0; i < kRounds; ++i) {
    GenerateOnAll(client, names, kBudget);
    const v1::GetStatusResponse status = client.Status();
    resident.push_back(status.work().resident_bytes());
    used.push_back(status.cache().used_bytes());
  }
  EXPECT_EQ(used.back(), used[kWarmUp - 1]);
  EXPECT_LT(static_cast<double>(*std::min_element(resident.begin() + kWarmUp, resident.end())),
            kGrowthMax * static_cast<double>(resident[kWarmUp - 1]))
      << testing::PrintToString(resident);
  for (const std::string& name : names) {
    const v1::Session session = client.Get(name);
    EXPECT_EQ(session.cache_length(), kBudget);
    EXPECT_EQ(session.completion_tokens(), kRounds * kBudget);
  }
}

TEST(Process, TermUnderLoadLetsStreamsFinishAndRefusesNewWork) {
  const TinyModelFile model({});
  EbbdProcess ebbd(EBBD_BINARY, {"--model=" + model.path(), "--cache.arena=32MiB"});
  ASSERT_FALSE(ebbd.address().empty()) << ebbd.log();
  TestClient client(ebbd.address());
  constexpr uint32_t kTokens = 3000;
  std::vector<std::string> names;
  for (int i = 0; i < 4; ++i) names.push_back(Primed(client, 24));
  std::vector<Answer> answers(names.size());
  std::vector<std::thread> streams;
  for (size_t i = 0; i < names.size(); ++i) {
    streams.emplace_back([&, i] { answers[i] = client.Decode(DecodeTokens(names[i], kTokens)); });
  }
  while (client.Status().work().requests_running() < names.size()) continue;

  ebbd.Signal(SIGTERM);
  while (client.Status().state() != v1::SERVER_STATE_DRAINING) continue;
  v1::Session session;
  const grpc::Status refused = Answered([&] { return client.Create(SessionWith(StreamingPolicy(24)), &session); });
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReadDetails(refused).reason, "DRAINING");
  EXPECT_TRUE(ReadDetails(refused).retry.has_value());

  for (std::thread& stream : streams) stream.join();
  for (const Answer& answer : answers) {
    EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
    EXPECT_EQ(answer.tokens.size(), kTokens);
  }
  EXPECT_EQ(ebbd.Wait(), 0) << ebbd.log();
}

TEST(Process, ACallersTraceIsInItsRefusalAndInTheLog) {
  const TinyModelFile model({});
  EbbdProcess ebbd(EBBD_BINARY, {"--model=" + model.path(), "--cache.arena=32MiB"});
  ASSERT_FALSE(ebbd.address().empty()) << ebbd.log();
  TestClient client(ebbd.address());
  const auto context = client.Context();
  context->AddMetadata("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  v1::GetSessionRequest request;
  request.set_name("sessions/none");
  v1::Session session;
  const grpc::Status status = client.sessions().GetSession(context.get(), request, &session);
  EXPECT_THAT(ReadDetails(status).metadata, Contains(Pair("trace_id", "4bf92f3577b34da6a3ce929d0e0e4736")));
  ebbd.Signal(SIGTERM);
  EXPECT_EQ(ebbd.Wait(), 0);
  EXPECT_THAT(ebbd.log(), HasSubstr("trace_id=4bf92f3577b34da6a3ce929d0e0e4736 span_id=00f067aa0ba902b7"));
}

TEST(Process, PastTheDrainTimeoutStreamsAreCut) {
  const TinyModelFile model({});
  EbbdProcess ebbd(EBBD_BINARY, {"--model=" + model.path(), "--cache.arena=32MiB", "--server.drain_timeout=100ms"});
  ASSERT_FALSE(ebbd.address().empty()) << ebbd.log();
  TestClient client(ebbd.address());
  const std::string name = Primed(client, 24);
  Answer answer;
  std::thread stream([&] { answer = client.Decode(DecodeTokens(name, 1 << 24)); });
  while (client.Status().work().requests_running() == 0) continue;
  ebbd.Signal(SIGTERM);
  stream.join();
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReadDetails(answer.status).reason, "DRAINING");
  EXPECT_EQ(ebbd.Wait(), 0) << ebbd.log();
}

TEST(Process, ASecondSignalEndsItAtOnce) {
  const TinyModelFile model({});
  EbbdProcess ebbd(EBBD_BINARY, {"--model=" + model.path(), "--cache.arena=32MiB"});
  ASSERT_FALSE(ebbd.address().empty()) << ebbd.log();
  TestClient client(ebbd.address());
  const std::string name = Primed(client, 24);
  std::thread stream([&] { client.Decode(DecodeTokens(name, 1 << 24)); });
  while (client.Status().work().requests_running() == 0) continue;
  ebbd.Signal(SIGTERM);
  while (client.Status().state() != v1::SERVER_STATE_DRAINING) continue;
  ebbd.Signal(SIGTERM);
  EXPECT_EQ(ebbd.Wait(), 128 + SIGTERM);
  stream.join();
}

TEST(Process, ServesTheBuiltInModelWithNoConfigurationAtAll) {
  const EbbdProcess ebbd(EBBD_BINARY, {});
  ASSERT_FALSE(ebbd.address().empty()) << ebbd.log();
  TestClient client(ebbd.address());
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text("It was a dark and stormy night");
  request.mutable_stopping()->set_max_tokens(8);
  const Answer answer = client.Generate(request);
  EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
  EXPECT_FALSE(answer.text.empty());
}

// A file of this text, removed with the object.
class TextFile {
 public:
  TextFile(const std::string& name, const std::string& text) : path_(testing::TempDir() + name) {
    std::ofstream(path_) << text;
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
  }
  ~TextFile() { std::filesystem::remove(path_); }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void ExpectOneLine(EbbdProcess& ebbd, int code, const std::string& line) {
  EXPECT_EQ(ebbd.Wait(), code) << ebbd.log();
  EXPECT_THAT(ebbd.log(), HasSubstr(line));
  EXPECT_EQ(std::count(ebbd.log().begin(), ebbd.log().end(), '\n'), 1) << ebbd.log();
}

TEST(Process, WhatIsWrongIsOneLineAndAnExitCode) {
  const TextFile no_yaml("no_yaml.yaml", "server: {listen: \"x\n");
  const TextFile no_path("no_path.yaml", "models: {second: {threads: 1}}\n");
  const TextFile unknown_key("unknown_key.yaml", "server:\n  lisen: x\n");
  struct Case {
    std::vector<std::string> arguments;
    int code;
    std::string line;
  };
  const std::vector<Case> cases = {
      {{"--no-such-flag"}, 2, "ebbd: --no-such-flag"},
      {{"--server.stream_buffer=0"}, 2, "stream_buffer"},
      {{"--model=/nonexistent.gguf"}, 1, "ebbd: /nonexistent.gguf"},
      {{"--model=README.md"}, 1, "ebbd: "},
      {{"--config=" + no_yaml.path()}, 2, "ebbd: " + no_yaml.path() + ":"},
      {{"--config=" + unknown_key.path()}, 2, "server.lisen: there is no such key; the nearest is server.listen"},
      {{"--cache.swap_max=1GiB"}, 2, "ebbd: cache.swap_max: sessions are swapped to store.dir, which is empty"},
      {{"--store.durability=sync", "--store.redis=127.0.0.1:1"},
       2,
       "ebbd: store.durability: sync: store.redis takes step alone; what Redis has synced it does not say"},
      {{"--store.durability=step"}, 2, "ebbd: store.durability: step keeps sessions in store.dir, which is empty"},
      {{"--store.durability=step", "--store.redis=127.0.0.1:1", "--config=" + no_path.path()},
       2,
       "ebbd: models: servers share sessions of one model: it is empty with store.redis"},
      {{"--config=" + no_path.path()}, 2, "ebbd: models.second.path: it is empty"},
      {{"--cache.arena=1TiB", "--model=models/ebb-tiny-q8_0.gguf"}, 1, "ebbd: cache.arena: 1099511627776 bytes"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.line);
    EbbdProcess ebbd(EBBD_BINARY, c.arguments);
    ExpectOneLine(ebbd, c.code, c.line);
  }
}

TEST(Process, APortThatAnotherServerHasIsNotShared) {
  const EbbdProcess first(EBBD_BINARY, {});
  for (const char* flag :
       {"--server.listen=", "--server.http_listen=", "--server.health_listen=", "--openai.listen="}) {
    SCOPED_TRACE(flag);
    EbbdProcess second(EBBD_BINARY, {flag + first.address()});
    ExpectOneLine(second, 1, "cannot listen on " + first.address() + ": Address already in use");
  }
}

TEST(Process, WithoutAModelItSaysWhereItLooked) {
  const std::filesystem::path folder = testing::TempDir() + "ebbd_alone";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(EBBD_BINARY, folder / "ebbd", std::filesystem::copy_options::overwrite_existing);
  {
    const TextFile start("start_ebbd_alone", "#!/bin/sh\ncd '" + folder.string() + "' && exec ./ebbd \"$@\"\n");
    EbbdProcess ebbd(start.path(), {});
    ExpectOneLine(ebbd, 1, "ebbd: the built-in model is not there; name a model with --model (looked for ");
  }
  std::filesystem::remove_all(folder);
}

// A thread's stack as large as the address space, which the system does not have for it. The sanitizers want a say in
// that, too.
#if !defined(EBB_SANITIZED)
TEST(Process, WithoutAThreadForItsLogItDoesNotStart) {
  const TextFile start("start_ebbd", "#!/bin/sh\nulimit -s 137438953472 && exec '" EBBD_BINARY "' \"$@\"\n");  // KiB
  EbbdProcess ebbd(start.path(), {});
  ExpectOneLine(ebbd, 1, "ebbd: cannot start the log's thread: ");
}
#endif

TEST(Process, ACallerIsToldAFilesNameAndTheLogItsFolder) {
  const TinyModelFile model({.calibrated = false});
  EbbdProcess ebbd(EBBD_BINARY, {"--model=" + model.path(), "--cache.arena=32MiB"});
  ASSERT_FALSE(ebbd.address().empty()) << ebbd.log();
  TestClient client(ebbd.address());
  const std::string folder = std::filesystem::path(model.path()).parent_path();
  v1::PolicySpec calibrated = StreamingPolicy(64);
  calibrated.mutable_calibrated();
  v1::PolicySpec duo = StreamingPolicy(400);
  duo.mutable_duo();
  for (const auto& [policy, file] :
       {std::pair(calibrated, CalibrationPath(model.path())), {duo, HeadGatesPath(model.path())}}) {
    v1::Session session;
    const std::string message = client.Create(SessionWith(policy), &session).error_message();
    EXPECT_THAT(message, HasSubstr("there is no " + std::filesystem::path(file).filename().string() + ";"));
    EXPECT_THAT(message, Not(HasSubstr(folder)));
    EXPECT_THAT(ebbd.log(), HasSubstr(file));
  }
}

}  // namespace
}  // namespace ebb
