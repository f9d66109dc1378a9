// What is refused at the door, so that what was let in never runs out.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/eventually.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using client::ReadDetails;
using ::testing::HasSubstr;
using ::testing::SizeIs;

v1::PolicySpec FullPolicy(uint32_t limit) {
  v1::PolicySpec policy;
  policy.mutable_full();
  policy.mutable_trigger()->set_budget(limit);
  return policy;
}

TEST(Limits, OneSessionMoreThanFitsIsUnavailableUntilOneIsDeleted) {
  const TestServer server([](ServerOptions& options) { options.engine.arena_bytes = 1 << 20; });
  TestClient client(server.address());
  const v1::CreateSessionRequest request = SessionWith(StreamingPolicy(200));
  std::vector<std::string> names;
  v1::Session session;
  grpc::Status status;
  while ((status = client.Create(request, &session)).ok()) names.push_back(session.name());

  ASSERT_GT(names.size(), 0U);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReadDetails(status).reason, "NO_PAGES");
  EXPECT_TRUE(ReadDetails(status).retry.has_value());
  ASSERT_TRUE(client.Delete(names.back()).ok());
  EXPECT_TRUE(client.Create(request, &session).ok());
}

TEST(Limits, ASessionThatCanNeverFitIsInvalid) {
  const TestServer server([](ServerOptions& options) { options.engine.arena_bytes = 1 << 20; });
  TestClient client(server.address());
  v1::Session session;
  const grpc::Status status = client.Create(SessionWith(StreamingPolicy(1 << 20)), &session);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReadDetails(status).reason, "SESSION_TOO_LARGE");
  EXPECT_EQ(ReadDetails(status).field, "policy.trigger.budget");
}

TEST(Limits, WhatIsAboveTheLimitOfEveryMethodIsNotEvenParsed) {
  const TestServer server;
  TestClient client(server.address());
  const std::string name = client.Create(SessionWith(StreamingPolicy(16))).name();
  v1::PlanEvictionRequest plan;
  plan.add_rows()->set_scores(std::string(5 << 20, '\0'));
  v1::PlanEvictionResponse planned;
  for (const grpc::Status& status : {client.Prefill(PrefillText(name, std::string(5 << 20, 'x'))),
                                     client.eviction().PlanEviction(client.Context().get(), plan, &planned)}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("Received message larger than max")) << "so gRPC says it";
  }
  EXPECT_EQ(client.Get(name).tokens(), 0U);
  EXPECT_TRUE(client.Prefill(PrefillText(name, "Once")).ok()) << "on the same connection";
}

TEST(Limits, AModelThatLearnedItsPositionsKeepsThem) {
  const TestServer server({}, TinyModel{.architecture = "opt", .kv_heads = 4, .context = 64});
  TestClient client(server.address());
  v1::PolicySpec policy = StreamingPolicy(32);
  policy.set_positions(v1::POSITIONS_COMPACTED);
  v1::Session session;
  const grpc::Status refused = client.Create(SessionWith(policy), &session);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ReadDetails(refused).reason, "POSITIONS_FIXED");
  EXPECT_EQ(ReadDetails(refused).field, "policy.positions");

  const std::string name = client.Create(SessionWith(StreamingPolicy(32))).name();
  EXPECT_EQ(client.Get(name).policy().positions(), v1::POSITIONS_ORIGINAL);
  EXPECT_TRUE(client.Prefill(PrefillText(name, std::string(60, 'a'))).ok());
  const grpc::Status full = client.Prefill(PrefillText(name, "too long"));
  EXPECT_EQ(full.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReadDetails(full).reason, "LENGTH_LIMIT");
}

TEST(Limits, ATenantsQuotaIsItsOwn) {
  const TestServer server([](ServerOptions& options) { options.work.tenants.listed["small"].sessions_max = 1; });
  TestClient small(server.address(), "small");
  TestClient other(server.address(), "other");
  const v1::CreateSessionRequest request = SessionWith(StreamingPolicy(16));
  const std::string name = small.Create(request).name();
  v1::Session session;
  const grpc::Status status = small.Create(request, &session);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReadDetails(status).reason, "TENANT_SESSIONS");
  EXPECT_TRUE(other.Create(request, &session).ok());
  EXPECT_TRUE(small.Delete(name).ok());
  EXPECT_TRUE(small.Create(request, &session).ok());
}

TEST(Limits, AServerHoldsNoMoreSessionsThanConfigured) {
  TestServer server([](ServerOptions& options) { options.work.live.sessions_max = 2; });
  TestClient client(server.address());
  const v1::CreateSessionRequest request = SessionWith(StreamingPolicy(16));
  const std::string name = client.Create(request).name();
  client.Create(request);
  v1::Session session;
  const grpc::Status status = client.Create(request, &session);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReadDetails(status).reason, "SESSIONS_FULL");
  EXPECT_TRUE(ReadDetails(status).retry.has_value());
  EXPECT_TRUE(client.Delete(name).ok());
  EXPECT_TRUE(client.Create(request, &session).ok());

  const auto is_full = [&] { return ReadDetails(client.Create(request, &session)).reason == "SESSIONS_FULL"; };
  EXPECT_TRUE(is_full());
  server.server().SetLive({.sessions_max = 3});
  EXPECT_TRUE(client.Create(request, &session).ok());
  EXPECT_TRUE(is_full());
  server.server().SetLive({.sessions_max = 1});
  EXPECT_EQ(client.Get(session.name()).name(), session.name()) << "those beyond it stay";
  EXPECT_TRUE(client.Delete(session.name()).ok());
  EXPECT_TRUE(is_full());
}

TEST(Limits, AServerTakesNoMoreCallsThanConfigured) {
  TestServer server([](ServerOptions& options) {
    options.http_listen = {.host = "127.0.0.1", .port = 0};
    options.work.live.queue_max = 1;
  });
  TestClient client(server.address());
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  // Begins an answer that goes on; what it was refused for, else empty.
  const auto answer = [&] {
    contexts.push_back(client.Context());
    v1::GenerateRequest request = GenerateText("", "on and on", 1 << 20);
    *request.mutable_policy() = StreamingPolicy(16);
    auto reader = client.inference().Generate(contexts.back().get(), request);
    v1::GenerateResponse first;
    return reader->Read(&first) ? "" : ReadDetails(reader->Finish()).reason;
  };
  EXPECT_EQ(answer(), "");
  EXPECT_EQ(answer(), "QUEUE_FULL");
  const auto limit_is = [&](int calls) {
    return Eventually([&] { return server.Metric("ebb_requests_limit") == calls; });
  };
  EXPECT_TRUE(limit_is(1));
  server.server().SetLive({.queue_max = 2});
  EXPECT_TRUE(limit_is(2));
  EXPECT_EQ(answer(), "");
  EXPECT_EQ(answer(), "QUEUE_FULL");
  server.server().SetLive({.queue_max = 1});
  EXPECT_TRUE(limit_is(1));
  EXPECT_EQ(answer(), "QUEUE_FULL");
  // Not by GetStatus: a call that waits for the worker's mailbox, of one message now, may meet one that is there.
  EXPECT_TRUE(Eventually([&] { return server.Metric("ebb_requests_running") == 2; })) << "those beyond it go on";
}

TEST(Limits, APromptHasNoMoreTokensThanTheLargestBudget) {
  const TestServer server([](ServerOptions& options) { options.message_bytes_max = 32 << 20; });
  TestClient client(server.address());
  v1::PrefillRequest request = PrefillText(client.Create(SessionWith(StreamingPolicy(16))).name(), "");
  request.mutable_prompt()->mutable_tokens()->mutable_ids()->Resize((1 << 24) + 1, 1);
  const grpc::Status status = client.Prefill(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReadDetails(status).reason, "PROMPT_TOO_LONG");
  EXPECT_EQ(ReadDetails(status).field, "prompt");
}

// 512 lanes of 300 slots are more than the 2^17 that a description lists.
TEST(Limits, ADescriptionThatNoMessageHoldsNamesTheStrideThatFits) {
  const TestServer server({}, {.layers = 64, .heads = 8, .kv_heads = 8});
  TestClient client(server.address());
  v1::DescribeCacheRequest request;
  request.set_session(client.Create(SessionWith(StreamingPolicy(300))).name());
  ASSERT_TRUE(client.Prefill(PrefillText(request.session(), std::string(320, 'x'))).ok());
  v1::DescribeCacheResponse response;
  const auto describe = [&] { return client.eviction().DescribeCache(client.Context().get(), request, &response); };
  const grpc::Status status = describe();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReadDetails(status).reason, "ANSWER_TOO_LARGE");
  EXPECT_EQ(ReadDetails(status).field, "stride");
  EXPECT_NE(status.error_message().find("use at least 2"), std::string::npos) << status.error_message();
  request.set_stride(2);
  EXPECT_TRUE(describe().ok());
  EXPECT_THAT(response.lanes(), SizeIs(512));
}

TEST(Limits, APromptThatCannotFitAFullSessionChangesNothing) {
  const TestServer server;
  TestClient client(server.address());
  const std::string name = client.Create(SessionWith(FullPolicy(30))).name();
  ASSERT_TRUE(client.Prefill(PrefillText(name, "twenty characters ..")).ok());  // and the begin token
  const v1::Session before = client.Get(name);
  const grpc::Status status = client.Prefill(PrefillText(name, "ten more.."));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReadDetails(status).reason, "LENGTH_LIMIT");
  EXPECT_EQ(client.Get(name).tokens(), before.tokens());
  EXPECT_EQ(client.Get(name).generation(), before.generation());
}

TEST(Limits, DecodeOfAFullSessionEndsAtItsLimit) {
  const TestServer server;
  TestClient client(server.address());
  const std::string name = client.Create(SessionWith(FullPolicy(30))).name();
  ASSERT_TRUE(client.Prefill(PrefillText(name, "twenty characters ..")).ok());
  const Answer answer = client.Decode(DecodeTokens(name, 100));
  ASSERT_TRUE(answer.status.ok()) << client::Describe(answer.status);
  EXPECT_THAT(answer.tokens, SizeIs(9));
  EXPECT_EQ(answer.last().finish_reason(), v1::FINISH_REASON_LENGTH_LIMIT);
  EXPECT_EQ(answer.last().usage().session_tokens(), 30U);
  const Answer none = client.Decode(DecodeTokens(name, 1));
  ASSERT_TRUE(none.status.ok()) << client::Describe(none.status);
  EXPECT_THAT(none.tokens, SizeIs(0));
  EXPECT_EQ(none.last().finish_reason(), v1::FINISH_REASON_LENGTH_LIMIT);
}

}  // namespace
}  // namespace ebb
