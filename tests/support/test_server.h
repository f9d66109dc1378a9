// A real server in this process, on a free port, with a tiny model, and a client of it.
//
//   TestServer server;                       // or TestServer({.arena_bytes = 1 << 20})
//   TestClient client(server.address());
//   v1::Session session = client.Create({});
//   Answer answer = client.Decode(request);  // all messages of a stream, and its status

#ifndef EBB_TESTS_SUPPORT_TEST_SERVER_H_
#define EBB_TESTS_SUPPORT_TEST_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/error.h"
#include "ebb/v1/admin.grpc.pb.h"
#include "ebb/v1/eviction.grpc.pb.h"
#include "ebb/v1/inference.grpc.pb.h"
#include "ebb/v1/session.grpc.pb.h"
#include "server/server.h"
#include "tests/support/tiny_model.h"

namespace ebb {

inline constexpr char kStormyNight[] =
    "It was a dark and stormy night, and the old man sat by the fire, and the frog jumped.";
inline constexpr uint32_t kEndless = 1 << 24;  // tokens, more than any test waits for

class TestServer {
 public:
  explicit TestServer(const std::function<void(ServerOptions&)>& change = {}, const TinyModel& model = {});

  std::string address() const { return FormatAddress(server_->address()); }
  Server& server() { return *server_; }
  // The value of one series on the metrics page, 0 if there is none. REQUIRES: http_listen.
  double Metric(const std::string& series) const;
  // Of several, from one page: what they count goes on between two.
  std::vector<double> Metrics(std::span<const std::string> series) const;

 private:
  TinyModelFile model_;
  std::unique_ptr<Server> server_;
};

// All that came of a stream of tokens.
struct Answer {
  grpc::Status status = {};
  std::vector<uint32_t> tokens = {};
  std::string text = {};
  std::vector<v1::DecodeResponse> messages = {};
  std::vector<v1::PrefillResponse> blocks = {};  // of Generate

  const v1::DecodeResponse& last() const { return messages.back(); }
};

// Of a server that begins to drain: a call that met its connection's GOAWAY half-way is made again.
grpc::Status Answered(const std::function<grpc::Status()>& call);

// Of a client that takes little ahead of its reader, where others take megabytes: soon the server holds back the rest.
grpc::ChannelArguments SmallWindows();

class TestClient {
 public:
  explicit TestClient(const std::string& address, const std::string& tenant = {},
                      grpc::ChannelArguments arguments = {});

  // A context that names the tenant.
  std::unique_ptr<grpc::ClientContext> Context() const;

  grpc::Status Create(const v1::CreateSessionRequest& request, v1::Session* session);
  // The calls below fail the test if they are refused.
  v1::Session Create(const v1::CreateSessionRequest& request);
  v1::Session Get(const std::string& name);
  v1::GetStatusResponse Status();

  grpc::Status Delete(const std::string& name);
  grpc::Status Prefill(const v1::PrefillRequest& request, std::vector<v1::PrefillResponse>* blocks = nullptr);
  Answer Decode(const v1::DecodeRequest& request);
  Answer Generate(const v1::GenerateRequest& request);

  v1::SessionService::Stub& sessions() { return *sessions_; }
  v1::InferenceService::Stub& inference() { return *inference_; }
  v1::EvictionService::Stub& eviction() { return *eviction_; }
  v1::AdminService::Stub& admin() { return *admin_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  std::string tenant_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::SessionService::Stub> sessions_;
  std::unique_ptr<v1::InferenceService::Stub> inference_;
  std::unique_ptr<v1::EvictionService::Stub> eviction_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
};

// Requests that tests make often.
v1::PolicySpec PolicyOf(const std::string& scorer, uint32_t budget, uint32_t overflow = 1);  // a field's name
v1::PolicySpec StreamingPolicy(uint32_t budget);
v1::CreateSessionRequest SessionWith(const v1::PolicySpec& policy, uint32_t block_size = 16);
v1::PrefillRequest PrefillText(const std::string& session, const std::string& text);
v1::DecodeRequest DecodeTokens(const std::string& session, uint32_t max_tokens);  // end tokens do not end it
v1::GenerateRequest GenerateText(const std::string& session, const std::string& text, uint32_t max_tokens);

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_TEST_SERVER_H_
