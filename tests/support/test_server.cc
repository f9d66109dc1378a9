#include "tests/support/test_server.h"

#include <gtest/gtest.h>
#include <httplib.h>

#include <chrono>
#include <cstdlib>

#include "policies/check.h"
#include "server/log.h"

namespace ebb {
namespace {

// An access line per call would bury what a test says.
void StartQuietLog() {
  static const auto log = StartLog({.level = LogLevel::kError});
  EBB_CHECK(log.ok());
}

ServerOptions Options(const std::string& model_path, const std::function<void(ServerOptions&)>& change) {
  StartQuietLog();
  ServerOptions options = {.listen = {.host = "127.0.0.1", .port = 0},
                           .engine = {.model_path = model_path, .threads = 1, .arena_bytes = 64 << 20}};
  if (change) change(options);
  return options;
}

template <typename Message>
void Append(const Message& message, Answer& answer) {
  answer.tokens.insert(answer.tokens.end(), message.tokens().begin(), message.tokens().end());
  answer.text += message.text();
  answer.messages.push_back(message);
}

}  // namespace

TestServer::TestServer(const std::function<void(ServerOptions&)>& change, const TinyModel& model) : model_(model) {
  auto server = Server::Start(Options(model_.path(), change));
  EXPECT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
}

std::vector<double> TestServer::Metrics(std::span<const std::string> series) const {
  std::vector<double> values(series.size());
  const auto answer = httplib::Client("127.0.0.1", server_->http_address()->port).Get("/metrics");
  if (!answer) return values;
  for (size_t i = 0; i < series.size(); ++i) {
    const size_t at = answer->body.find("\n" + series[i] + " ");
    if (at != std::string::npos) values[i] = std::strtod(answer->body.c_str() + at + series[i].size() + 2, nullptr);
  }
  return values;
}

double TestServer::Metric(const std::string& series) const { return Metrics({&series, 1}).front(); }

grpc::Status Answered(const std::function<grpc::Status()>& call) {
  constexpr int kTries = 100;
  const auto is_answered = [](const grpc::Status& status) {
    return client::WhatCameOf(status).error_code() != grpc::StatusCode::UNAVAILABLE ||
           !client::ReadDetails(status).reason.empty();
  };
  grpc::Status status = call();
  for (int i = 1; i < kTries && !is_answered(status); ++i) status = call();
  return status;
}

grpc::ChannelArguments SmallWindows() {
  grpc::ChannelArguments small;
  small.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  small.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4096);
  return small;
}

TestClient::TestClient(const std::string& address, const std::string& tenant, grpc::ChannelArguments arguments)
    : tenant_(tenant) {
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  // gRPC 1.51 looks at errno late, so that it may take a connection under way for one that failed (ENOENT, seen once).
  // It connects again by itself, and calls until then are UNAVAILABLE.
  channel_->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10));
  sessions_ = v1::SessionService::NewStub(channel_);
  inference_ = v1::InferenceService::NewStub(channel_);
  eviction_ = v1::EvictionService::NewStub(channel_);
  admin_ = v1::AdminService::NewStub(channel_);
}

std::unique_ptr<grpc::ClientContext> TestClient::Context() const {
  auto context = std::make_unique<grpc::ClientContext>();
  if (!tenant_.empty()) context->AddMetadata("x-ebb-tenant", tenant_);
  return context;
}

grpc::Status TestClient::Create(const v1::CreateSessionRequest& request, v1::Session* session) {
  return sessions_->CreateSession(Context().get(), request, session);
}

v1::Session TestClient::Create(const v1::CreateSessionRequest& request) {
  v1::Session session;
  const grpc::Status status = Create(request, &session);
  EXPECT_TRUE(status.ok()) << client::Describe(status);
  return session;
}

v1::Session TestClient::Get(const std::string& name) {
  v1::GetSessionRequest request;
  request.set_name(name);
  v1::Session session;
  const grpc::Status status = sessions_->GetSession(Context().get(), request, &session);
  EXPECT_TRUE(status.ok()) << client::Describe(status);
  return session;
}

v1::GetStatusResponse TestClient::Status() {
  v1::GetStatusResponse response;
  const grpc::Status status = Answered([&] { return admin_->GetStatus(Context().get(), {}, &response); });
  EXPECT_TRUE(status.ok()) << client::Describe(status);
  return response;
}

grpc::Status TestClient::Delete(const std::string& name) {
  v1::DeleteSessionRequest request;
  request.set_name(name);
  v1::DeleteSessionResponse response;
  return sessions_->DeleteSession(Context().get(), request, &response);
}

grpc::Status TestClient::Prefill(const v1::PrefillRequest& request, std::vector<v1::PrefillResponse>* blocks) {
  const auto context = Context();
  auto reader = inference_->Prefill(context.get(), request);
  v1::PrefillResponse block;
  while (reader->Read(&block)) {
    if (blocks != nullptr) blocks->push_back(block);
  }
  return reader->Finish();
}

Answer TestClient::Decode(const v1::DecodeRequest& request) {
  const auto context = Context();
  auto reader = inference_->Decode(context.get(), request);
  Answer answer;
  v1::DecodeResponse message;
  while (reader->Read(&message)) Append(message, answer);
  answer.status = reader->Finish();
  return answer;
}

Answer TestClient::Generate(const v1::GenerateRequest& request) {
  const auto context = Context();
  auto reader = inference_->Generate(context.get(), request);
  Answer answer;
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
    if (message.has_prefill()) answer.blocks.push_back(message.prefill());
    if (message.has_decode()) Append(message.decode(), answer);
  }
  answer.status = reader->Finish();
  return answer;
}

v1::PolicySpec PolicyOf(const std::string& scorer, uint32_t budget, uint32_t overflow) {
  v1::PolicySpec policy;
  policy.GetReflection()->MutableMessage(&policy, v1::PolicySpec::descriptor()->FindFieldByName(scorer));
  policy.mutable_trigger()->set_budget(budget);
  if (overflow > 1) policy.mutable_trigger()->set_overflow(overflow);
  return policy;
}

v1::PolicySpec StreamingPolicy(uint32_t budget) { return PolicyOf("streaming", budget); }

v1::CreateSessionRequest SessionWith(const v1::PolicySpec& policy, uint32_t block_size) {
  v1::CreateSessionRequest request;
  *request.mutable_policy() = policy;
  request.set_block_size(block_size);
  request.mutable_sampling()->set_seed(7);
  return request;
}

v1::PrefillRequest PrefillText(const std::string& session, const std::string& text) {
  v1::PrefillRequest request;
  request.set_session(session);
  request.mutable_prompt()->set_text(text);
  return request;
}

v1::DecodeRequest DecodeTokens(const std::string& session, uint32_t max_tokens) {
  v1::DecodeRequest request;
  request.set_session(session);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

v1::GenerateRequest GenerateText(const std::string& session, const std::string& text, uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.set_session(session);
  request.mutable_prompt()->set_text(text);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

}  // namespace ebb
