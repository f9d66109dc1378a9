// How streams end: cancelled, deleted, late, slow.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/test_server.h"

namespace ebb {
namespace {

using client::ReadDetails;
using ::testing::ElementsAreArray;
using ::testing::SizeIs;

// A stream that a test holds open.
struct Running {
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientReader<v1::DecodeResponse>> reader;
  std::vector<uint32_t> tokens = {};

  bool Read() {
    v1::DecodeResponse message;
    if (!reader->Read(&message)) return false;
    tokens.insert(tokens.end(), message.tokens().begin(), message.tokens().end());
    return true;
  }
  grpc::Status Drain() {
    while (Read()) continue;
    return reader->Finish();
  }
};

Running Start(TestClient& client, const v1::DecodeRequest& request) {
  Running running = {.context = client.Context(), .reader = nullptr};
  running.reader = client.inference().Decode(running.context.get(), request);
  return running;
}

std::string Primed(TestClient& client) {
  const std::string name = client.Create(SessionWith(StreamingPolicy(24))).name();
  EXPECT_TRUE(client.Prefill(PrefillText(name, "The frog jumped into the pond.")).ok());
  return name;
}

// Asks until the session is free; every answer is one step later at most.
v1::Session WaitUntilIdle(TestClient& client, const std::string& name) {
  v1::Session session = client.Get(name);
  while (session.state() == v1::SESSION_STATE_BUSY) session = client.Get(name);
  return session;
}

TEST(Streams, ACancelledStreamStopsAndItsSessionGoesOn) {
  const TestServer server;
  TestClient client(server.address());
  const std::string name = Primed(client);
  const uint64_t start = client.Get(name).tokens();
  Running running = Start(client, DecodeTokens(name, kEndless));
  while (running.tokens.size() < 5) ASSERT_TRUE(running.Read());
  running.context->TryCancel();
  EXPECT_EQ(running.Drain().error_code(), grpc::StatusCode::CANCELLED);

  const v1::Session session = WaitUntilIdle(client, name);
  EXPECT_GE(session.tokens(), start + running.tokens.size()) << "what was sent is in the log";
  const uint64_t steps = client.Status().work().steps();
  EXPECT_EQ(client.Get(name).tokens(), session.tokens());
  EXPECT_EQ(client.Status().work().steps(), steps) << "nothing runs any more";

  // The same tokens as a session that nobody disturbed.
  const uint32_t generated = static_cast<uint32_t>(session.tokens() - start);
  const Answer whole = client.Decode(DecodeTokens(Primed(client), generated + 10));
  v1::DecodeRequest resume = DecodeTokens(name, generated + 10);
  resume.set_resume_from(start);
  EXPECT_THAT(client.Decode(resume).tokens, ElementsAreArray(whole.tokens));
}

TEST(Streams, DeleteEndsARunningStreamAndFreesItsPages) {
  const TestServer server;
  TestClient client(server.address());
  const std::string name = Primed(client);
  Running running = Start(client, DecodeTokens(name, kEndless));
  ASSERT_TRUE(running.Read());
  EXPECT_TRUE(client.Delete(name).ok());
  EXPECT_EQ(client.Status().cache().pages_reserved(), 0U);
  const grpc::Status status = running.Drain();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(ReadDetails(status).reason, "SESSION_DELETED");
}

TEST(Streams, ADeadlineEndsTheWorkAndLeavesTheSession) {
  const TestServer server;
  TestClient client(server.address());
  const std::string name = Primed(client);
  auto context = client.Context();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  auto reader = client.inference().Decode(context.get(), DecodeTokens(name, kEndless));
  v1::DecodeResponse message;
  while (reader->Read(&message)) continue;
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  WaitUntilIdle(client, name);
  EXPECT_THAT(client.Decode(DecodeTokens(name, 5)).tokens, SizeIs(5));
}

TEST(Streams, ASecondWriterIsToldWhoHoldsTheSession) {
  const TestServer server;
  TestClient client(server.address());
  const std::string name = Primed(client);
  Running running = Start(client, DecodeTokens(name, kEndless));
  ASSERT_TRUE(running.Read());
  const Answer second = client.Decode(DecodeTokens(name, 1));
  EXPECT_EQ(second.status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(ReadDetails(second.status).reason, "SESSION_BUSY");
  EXPECT_EQ(ReadDetails(second.status).metadata.at("held_by"), "Decode");
  EXPECT_EQ(client.Prefill(PrefillText(name, "more")).error_code(), grpc::StatusCode::ABORTED);
  running.context->TryCancel();
  running.Drain();
}

TEST(Streams, AThrowAwaySessionIsGoneWhenItsCallEnds) {
  const TestServer server;
  TestClient client(server.address());
  v1::GenerateRequest request = GenerateText("", "Once upon a time", 10);
  *request.mutable_policy() = StreamingPolicy(24);
  request.set_block_size(8);
  EXPECT_THAT(client.Generate(request).tokens, SizeIs(10));
  EXPECT_EQ(client.Status().cache().pages_reserved(), 0U);

  request.mutable_stopping()->set_max_tokens(kEndless);
  const auto context = client.Context();
  auto reader = client.inference().Generate(context.get(), request);
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  context->TryCancel();
  while (reader->Read(&message)) continue;
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (client.Status().work().requests_running() > 0) continue;
  EXPECT_EQ(client.Status().cache().pages_reserved(), 0U);
  EXPECT_EQ(client.Status().work().sessions(), 0U);
}

// A stream whose reader takes nothing: large messages and small windows fill what lies between in no time.
class SlowReader : public testing::Test {
 protected:
  void Serve(absl::Duration patience) {
    server_ = std::make_unique<TestServer>([patience](ServerOptions& options) {
      options.http_listen = {.host = "127.0.0.1", .port = 0};
      options.stream_buffer = 2;
      options.work.live.reader_patience = patience;
    });
    client_ = std::make_unique<TestClient>(server_->address(), "", SmallWindows());
    name_ = Primed(*client_);
    v1::DecodeRequest request = DecodeTokens(name_, kEndless);
    request.mutable_stopping()->set_logprobs(20);
    running_ = Start(*client_, request);
    ASSERT_TRUE(running_.Read());
  }

  // Until the slow session makes no more tokens while another one makes a hundred.
  void WaitUntilStalled() {
    uint64_t before = 0, after = client_->Get(name_).tokens();
    while (before != after) {
      v1::GenerateRequest request = GenerateText("", "Once upon a time", 100);
      *request.mutable_policy() = StreamingPolicy(24);
      request.set_block_size(8);
      EXPECT_THAT(client_->Generate(request).tokens, SizeIs(100));
      before = std::exchange(after, client_->Get(name_).tokens());
    }
  }

  std::unique_ptr<TestServer> server_;
  std::unique_ptr<TestClient> client_;
  std::string name_;
  Running running_;
};

TEST_F(SlowReader, StallsOnlyItselfAndGoesOnWhenItReadsAgain) {
  Serve(absl::Minutes(10));
  WaitUntilStalled();
  const uint64_t stalled_at = client_->Get(name_).tokens();
  while (client_->Get(name_).tokens() < stalled_at + 100) ASSERT_TRUE(running_.Read());
  running_.context->TryCancel();
  running_.Drain();
}

TEST_F(SlowReader, PastThePatienceItsStreamEnds) {
  Serve(absl::Milliseconds(200));
  const v1::Session session = WaitUntilIdle(*client_, name_);
  const grpc::Status status = running_.Drain();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReadDetails(status).reason, "SLOW_READER");
  EXPECT_GE(server_->Metric("ebb_request_phase_seconds_total{phase=\"blocked\"}"), 0.2);
  // Nothing is lost: what was not delivered is in the log.
  v1::DecodeRequest resume = DecodeTokens(name_, 10);
  resume.set_resume_from(session.tokens());
  EXPECT_THAT(client_->Decode(resume).tokens, SizeIs(10));
}

TEST_F(SlowReader, AShorterPatienceCountsForWhoIsWaitedForAlready) {
  Serve(absl::Minutes(10));
  WaitUntilStalled();
  server_->server().SetLive({.reader_patience = absl::Milliseconds(1)});
  EXPECT_EQ(ReadDetails(running_.Drain()).reason, "SLOW_READER");
}

}  // namespace
}  // namespace ebb
