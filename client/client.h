// The C++ client: retries that honour the server's RetryInfo, streams as callbacks, sessions followed to the server
// that has them.
//
//   ebb::client::Client client({.address = "127.0.0.1:7700"});
//   ebb::v1::GenerateRequest request;
//   request.mutable_prompt()->set_text("It was a dark and stormy night");
//   grpc::Status status = client.Generate(request, [](const ebb::v1::GenerateResponse& message) {
//     std::cout << message.decode().text() << std::flush;
//   });
//
// A server that wants a token or speaks TLS: `.credentials = *ReadCredentials({.ca = "ca.pem", .token_file =
// "token"})`. Servers that share their sessions: `.follow = *Follow::Of({"ebb-2.internal:7700"})`, and `.resume =
// RetryPolicy()` for answers that go on there.
//
// Thread safety: a Client may be used by many threads at once; a Cancellation too.

#ifndef EBB_CLIENT_CLIENT_H_
#define EBB_CLIENT_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "client/credentials.h"
#include "client/homes.h"
#include "client/retry.h"
#include "client/servers.h"

namespace ebb::client {

struct ClientOptions {
  std::string address = "127.0.0.1:7700";
  std::string tenant = {};                           // sent as x-ebb-tenant; empty: not sent
  Credentials credentials = {};                      // of ReadCredentials
  absl::Duration unary_timeout = absl::Seconds(60);  // per attempt
  absl::Duration stream_timeout = absl::InfiniteDuration();
  RetryPolicy retry = {};  // of unary calls, and of streams that did nothing: no server got them, or it refused them
                           // since it drains, or since a session that is followed has moved
  // Told before a call waits to be tried again, but for a stream that was followed or broke: how it was refused, and
  // for how long, or a little longer. Default: nobody.
  std::function<void(const grpc::Status&, absl::Duration)> on_wait = {};
  // Other servers that a call may go to, with token and prompt, when its session has moved there. Default: none, and
  // the move is the call's status (UNAVAILABLE, SESSION_MOVED).
  Follow follow = {};
  // Of Prefill, Decode and Generate on a session when their stream breaks: they go on where they stopped, with the same
  // tokens. Tries count since something new came; before the first message `retry` holds. ABORTED where they cannot
  // go on. Default: a break is the stream's status. Streams with a `resume_from` of their own, or of several answers,
  // are never gone on with.
  std::optional<RetryPolicy> resume = {};
  // After such a silence a server that owes an answer is asked for a sign, which it has to give within as long again,
  // 20 s at most: else the connection is broken. A server ends one that asks more often than every 30 s.
  absl::Duration keepalive = absl::Seconds(60);
};

// Lets another thread, or a signal's watcher, end a stream that is under way.
class Cancellation {
 public:
  // Ends the stream that uses this, now or as soon as it starts.
  void Cancel();
  bool cancelled() const;
  // Waits; true, and early, when this is cancelled.
  bool WaitFor(absl::Duration duration) const;

 private:
  friend class Client;
  void Attach(grpc::ClientContext* context);
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  grpc::ClientContext* context_ = nullptr;
  bool cancelled_ = false;
};

class Client {
 public:
  explicit Client(const ClientOptions& options);

  // Waits until the server can be reached; false after `timeout`.
  bool WaitUntilConnected(absl::Duration timeout);

  grpc::Status CreateSession(const v1::CreateSessionRequest& request, v1::Session* session);
  grpc::Status ForkSession(const v1::ForkSessionRequest& request, v1::Session* branch);
  grpc::Status GetSession(const std::string& name, v1::Session* session);
  grpc::Status ListSessions(const v1::ListSessionsRequest& request, v1::ListSessionsResponse* response);
  grpc::Status DeleteSession(const std::string& name, v1::DeleteSessionResponse* response);
  grpc::Status SaveSession(const v1::SaveSessionRequest& request, v1::SaveSessionResponse* response);
  grpc::Status RestoreSession(const v1::RestoreSessionRequest& request, v1::Session* session);
  grpc::Status ListSnapshots(const v1::ListSnapshotsRequest& request, v1::ListSnapshotsResponse* response);
  grpc::Status DeleteSnapshot(const std::string& name, v1::DeleteSnapshotResponse* response);
  grpc::Status Edit(const v1::EditRequest& request, v1::EditResponse* response);
  grpc::Status Score(const v1::ScoreRequest& request, v1::ScoreResponse* response);
  grpc::Status Tokenize(const v1::TokenizeRequest& request, v1::TokenizeResponse* response);
  grpc::Status Detokenize(const v1::DetokenizeRequest& request, v1::DetokenizeResponse* response);
  grpc::Status ReportOutcome(const v1::ReportOutcomeRequest& request, v1::ReportOutcomeResponse* response);
  grpc::Status SetPolicy(const v1::SetPolicyRequest& request, v1::SetPolicyResponse* response);
  grpc::Status Evict(const v1::EvictRequest& request, v1::EvictResponse* response);
  grpc::Status DescribeCache(const v1::DescribeCacheRequest& request, v1::DescribeCacheResponse* response);
  grpc::Status GetStatus(v1::GetStatusResponse* response);
  grpc::Status ListModels(v1::ListModelsResponse* response);
  grpc::Status ListPolicies(const v1::ListPoliciesRequest& request, v1::ListPoliciesResponse* response);
  grpc::Status ReloadConfig(v1::ReloadConfigResponse* response);
  grpc::Status ListTenants(const v1::ListTenantsRequest& request, v1::ListTenantsResponse* response);
  grpc::Status SetTenant(const v1::SetTenantRequest& request, v1::Tenant* tenant);
  grpc::Status StartExperiment(const v1::StartExperimentRequest& request, v1::Experiment* experiment);
  grpc::Status StopExperiment(const std::string& name, v1::Experiment* experiment);
  grpc::Status RampExperiment(const std::string& name, double ramp, v1::Experiment* experiment);
  grpc::Status GetExperiment(const std::string& name, v1::Experiment* experiment);
  grpc::Status ListExperiments(v1::ListExperimentsResponse* response);
  // Health of one service, or of the server for an empty name: SERVING, NOT_SERVING, ...
  grpc::Status CheckHealth(const std::string& service, std::string* serving_status);

  // Streams: `on_message` is called for each message, on the caller's thread, until the stream ends.
  template <typename Message>
  using OnMessage = std::function<void(const Message&)>;
  grpc::Status Prefill(const v1::PrefillRequest& request, const OnMessage<v1::PrefillResponse>& on_message,
                       Cancellation* cancellation = nullptr);
  grpc::Status Decode(const v1::DecodeRequest& request, const OnMessage<v1::DecodeResponse>& on_message,
                      Cancellation* cancellation = nullptr);
  grpc::Status Generate(const v1::GenerateRequest& request, const OnMessage<v1::GenerateResponse>& on_message,
                        Cancellation* cancellation = nullptr);
  grpc::Status WatchEvictions(const v1::WatchEvictionsRequest& request,
                              const OnMessage<v1::WatchEvictionsResponse>& on_message,
                              Cancellation* cancellation = nullptr);
  grpc::Status ExportExperiment(const std::string& name, const OnMessage<v1::ExperimentPart>& on_message,
                                Cancellation* cancellation = nullptr);

 private:
  template <typename Request, typename Response, typename Stub>
  using UnaryMethod = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);
  template <typename Request, typename Message, typename Stub>
  using StreamMethod = std::unique_ptr<grpc::ClientReader<Message>> (Stub::*)(grpc::ClientContext*, const Request&);
  // What may be repeated where the connection broke, so that the server may have done it.
  enum class Repeat { kAlways, kAfterRefusal };
  // How one try ended; `at_once`: it may be repeated elsewhere without waiting.
  struct Tried {
    grpc::Status status = {};
    bool at_once = false;
  };

  // One try, at the server that has the session.
  template <typename Request, typename Response, typename Stub>
  Tried TryUnary(UnaryMethod<Request, Response, Stub> method, const Request& request, Response* response,
                 Cancellation* cancellation);
  // `take` may change the message, and says whether to go on.
  template <typename Request, typename Message, typename Stub>
  Tried TryStream(StreamMethod<Request, Message, Stub> method, const Request& request,
                  const std::function<bool(Message&)>& take, Cancellation* cancellation);

  template <typename Request, typename Response, typename Stub>
  grpc::Status Unary(UnaryMethod<Request, Response, Stub> method, const Request& request, Response* response,
                     Repeat repeat = Repeat::kAlways);
  template <typename Request, typename Message, typename Stub>
  grpc::Status Stream(StreamMethod<Request, Message, Stub> method, const Request& request,
                      const OnMessage<Message>& on_message, Cancellation* cancellation);
  // A Stream that goes on after a break, where that was asked for and can be.
  template <typename Request, typename Message>
  grpc::Status Resuming(StreamMethod<Request, Message, v1::InferenceService::Stub> method, const Request& request,
                        const OnMessage<Message>& on_message, Cancellation* cancellation);
  void Prepare(grpc::ClientContext& context, absl::Duration timeout) const;
  Tried Heed(const std::string& session, const std::string& address, const grpc::Status& status);
  std::optional<absl::Duration> DelayAfter(Tries& tries, const RetryPolicy& policy, const grpc::Status& status) const;
  // True, and early, when that cancels the wait.
  bool Wait(absl::Duration delay, const grpc::Status& status, Cancellation* cancellation);

  ClientOptions options_;
  Servers servers_;
  Homes homes_;
  std::atomic<bool> heard_ = false;  // any server
};

}  // namespace ebb::client

#endif  // EBB_CLIENT_CLIENT_H_
