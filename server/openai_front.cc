#include "server/openai_front.h"

#include <httplib.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "ebb/v1/session.grpc.pb.h"
#include "google/protobuf/util/message_differencer.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/conversations.h"
#include "server/convert.h"
#include "server/front_places.h"
#include "server/grpc_status.h"
#include "server/http_body.h"
#include "server/http_server.h"
#include "server/identity.h"
#include "server/log.h"
#include "server/openai_call.h"
#include "server/openai_reply.h"
#include "server/openai_request.h"
#include "server/proto_time.h"
#include "server/reply.h"

namespace ebb {
namespace {

using Json = nlohmann::json;

constexpr int kSpareThreads = 16;                     // that shake hands, and refuse
constexpr int kRefusedRead = 4;                       // requests that are refused for want of a place, and read at once
constexpr absl::Duration kBody = absl::Seconds(60);   // in which a request's body comes, and a second more for 64 KiB
constexpr absl::Duration kPiece = absl::Seconds(10);  // in which a client takes a piece of its answer
constexpr size_t kConversationsMax = 10000;
constexpr absl::Duration kUnaryPatience = absl::Seconds(60);
constexpr absl::Duration kLook = absl::Milliseconds(500);  // between two looks at whether the client is still there
constexpr int kSilentLooksMax = 30;                        // until a stream is sent a comment
constexpr absl::Duration kRetry = absl::Seconds(1);
constexpr absl::Duration kDrainedWithin = absl::Seconds(5);  // for what has begun, when the port closes
constexpr char kJson[] = "application/json";
constexpr char kEvents[] = "text/event-stream";

// Passed on to the services.
constexpr std::array kPassedOn = {"authorization", "x-ebb-tenant", "traceparent"};

// Of each context of TLS; none where `tls` is null.
std::function<bool(SSL_CTX&)> SetUpTls(const ServerTls* tls) {
  if (tls == nullptr) return {};
  return [tls](SSL_CTX& context) {
    const auto present = [](SSL* connection, void* from) {
      return static_cast<const ServerTls*>(from)->Present(*connection) ? 1 : 0;
    };
    SSL_CTX_set_cert_cb(&context, present, const_cast<ServerTls*>(tls));
    return SSL_CTX_set_min_proto_version(&context, TLS1_2_VERSION) == 1;
  };
}

void AnswerError(const grpc::Status& status, httplib::Response& response) {
  const OpenAiError error = OpenAiErrorFrom(status);
  response.status = error.http;
  // OpenAI's own clients try 409 and what is above 429 again unless they are told not to.
  response.set_header("x-should-retry", error.retry ? "true" : "false");
  if (error.retry)
    response.set_header("Retry-After", absl::StrCat(absl::ToInt64Seconds(absl::Ceil(*error.retry, absl::Seconds(1)))));
  response.set_content(error.body + "\n", kJson);
}

bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
}

absl::StatusOr<CallMetadata> MetadataFrom(const httplib::Request& request) {
  CallMetadata metadata;
  for (const char* const key : kPassedOn) {
    for (size_t i = 0; i < request.get_header_value_count(key); ++i) {
      metadata.emplace_back(key, request.get_header_value(key, i));
      if (IsPrintable(metadata.back().second)) continue;
      return Refuse(absl::StatusCode::kInvalidArgument, absl::StrFormat("%s: only printable ASCII may be sent", key),
                    {.reason = "UNPRINTABLE_HEADER"});
    }
  }
  return metadata;
}

std::unique_ptr<grpc::ClientContext> ContextOf(const CallMetadata& metadata) {
  auto context = std::make_unique<grpc::ClientContext>();
  for (const auto& [key, value] : metadata) context->AddMetadata(key, value);
  context->set_deadline(absl::ToChronoTime(absl::Now() + kUnaryPatience));
  return context;
}

// What is refused before the body is read.
absl::Status CheckHead(const httplib::Request& request) {
  const bool is_model = request.path == "/v1/models" || request.path.starts_with("/v1/models/");
  if (!is_model && request.path != "/v1/chat/completions" && request.path != "/v1/completions") {
    return Refuse(absl::StatusCode::kNotFound,
                  "there is no such path; there are /v1/chat/completions, /v1/completions and /v1/models",
                  {.reason = "UNKNOWN_PATH"});
  }
  if (request.method != (is_model ? "GET" : "POST")) {
    return Refuse(absl::StatusCode::kUnimplemented,
                  absl::StrFormat("%s takes %s", request.path, is_model ? "GET" : "POST"), {.reason = "WRONG_METHOD"});
  }
  // Without authentication, a page that somebody reads could otherwise use the server that only their machine reaches.
  if (request.has_header("Origin")) {
    return Refuse(absl::StatusCode::kPermissionDenied, "Origin: this port is not for pages in a browser",
                  {.reason = "NOT_FOR_PAGES"});
  }
  // The library's limit holds for what says its length alone, and it would take forms apart.
  const bool is_long = request.method == "POST" && !request.has_header("Content-Length");
  if (is_long || request.has_header("Transfer-Encoding") || request.has_header("Content-Encoding") ||
      request.is_multipart_form_data()) {
    return Refuse(absl::StatusCode::kInvalidArgument, "the body has to come as it is, with Content-Length",
                  {.reason = "ENCODED_BODY"});
  }
  return absl::OkStatus();
}

// A session that is kept, and what this request adds to it.
struct Turn {
  v1::Session session = {};
  bool made = false;              // by this request
  std::optional<Said> said = {};  // with the new messages; none: nobody will know what the session has had
};

class RunningFront final : public OpenAiFront {
 public:
  RunningFront(const OpenAiOptions& options, const OpenAiServed& served, std::shared_ptr<grpc::Channel> channel)
      : options_(options),
        served_(served),
        channel_(std::move(channel)),
        http_(2 * options.requests_max + kSpareThreads,
              {.body = kBody + absl::Seconds(served.body_bytes_max >> 16), .piece = kPiece}, SetUpTls(served.tls)) {
    http_.set_payload_max_length(served.body_bytes_max);
    http_.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      const absl::Status fine = CheckHead(request);
      if (fine.ok()) return httplib::Server::HandlerResponse::Unhandled;
      Refused(fine, response);
      if (GetRefusal(fine).reason == "WRONG_METHOD") response.status = 405;
      return httplib::Server::HandlerResponse::Handled;
    });
    http_.set_error_handler([this](const httplib::Request&, httplib::Response& response) {
      if (response.body.empty()) ExplainCode(response);
    });
    const auto answer = [this](OpenAiRoute route) {
      return [this, route](const httplib::Request& request, httplib::Response& response,
                           const httplib::ContentReader& read) {
        const std::string tenant = TenantOf(request);
        const absl::Status begun = Answer(route, request, tenant, read, response);
        if (!begun.ok()) Refused(begun, response, tenant);
      };
    };
    http_.Post("/v1/chat/completions", answer(OpenAiRoute::kChat));
    http_.Post("/v1/completions", answer(OpenAiRoute::kCompletion));
    http_.Get(R"(/v1/models(/.*)?)", [this](const httplib::Request& request, httplib::Response& response) {
      AnswerModels(request, response);
    });
  }

  ~RunningFront() override { http_.Stop(kDrainedWithin); }

  absl::Status Listen(const RefusedConnections& refused) {
    EBB_ASSIGN(address_, http_.Start(options_.listen, "openai.listen", {}, refused));
    return absl::OkStatus();
  }

  const Address& address() const override { return address_; }

 private:
  // A call whose first message has come.
  struct Running {
    std::shared_ptr<FrontPlaces::Place> place;
    bool stream;
    std::optional<Turn> turn;
    OpenAiReply reply;
    std::unique_ptr<OpenAiCall> call;
    bool have_message = true;
    int silent_looks = 0;
  };

  std::string TenantOf(const httplib::Request& request) const {
    return served_.tenant(request.get_header_value("authorization"), request.get_header_value("x-ebb-tenant"));
  }

  absl::Status RefuseForPlace(const httplib::ContentReader& read) {
    refused_.Read(read);
    return Refuse(
        absl::StatusCode::kUnavailable,
        absl::StrFormat("%d requests are under way; openai.requests_max is %d", places_.taken(), options_.requests_max),
        {.reason = "FRONT_BUSY", .retry = kRetry});
  }

  // The services count and log what they refuse; this is for what never reached them.
  void Refused(const absl::Status& why, httplib::Response& response, const std::string& tenant = {}) const {
    served_.refused(why, tenant);
    WriteLog(LevelOfCall(why), "openai_refused", {{"reason", GetRefusal(why).reason}}, {});
    AnswerError(ToGrpc(why), response);
  }

  void ExplainCode(httplib::Response& response) const {
    const int code = response.status;
    if (code == 413) {
      Refused(
          Refuse(absl::StatusCode::kResourceExhausted,
                 absl::StrFormat("the body has more than server.message_size_max, %d bytes", served_.body_bytes_max),
                 {.reason = "REQUEST_TOO_LARGE"}),
          response);
    } else if (code == 414) {
      Refused(Refuse(absl::StatusCode::kInvalidArgument, HttpServer::TargetIsTooLong(), {.reason = "PATH_TOO_LONG"}),
              response);
    } else {
      Refused(Refuse(absl::StatusCode::kInvalidArgument, "this is no HTTP request that could be read",
                     {.reason = "MALFORMED_BODY"}),
              response);
    }
    response.status = code;
  }

  // Puts the answer, or what will write it, into `response`; else the refusal.
  absl::Status Answer(OpenAiRoute route, const httplib::Request& request, const std::string& tenant,
                      const httplib::ContentReader& read, httplib::Response& response) {
    std::shared_ptr<FrontPlaces::Place> place = places_.Take(tenant);
    if (place == nullptr) return RefuseForPlace(read);
    std::string body;
    if (!ReadBody(read, body)) return absl::OkStatus();  // the library has said why, for ExplainCode
    EBB_ASSIGN(const CallMetadata metadata, MetadataFrom(request));
    EBB_ASSIGN(OpenAiRequest asked, OpenAiRequestFrom(route, body));
    std::string model = asked.generate.model().empty() ? served_.models().front().name : asked.generate.model();
    std::optional<Turn> turn;
    if (!asked.session.empty()) {
      Turn kept;
      const absl::StatusOr<grpc::Status> joined = Join(metadata, asked, kept);
      EBB_TRY(joined.status());
      if (!joined->ok()) {
        AnswerError(*joined, response);
        return absl::OkStatus();
      }
      model = kept.session.model();
      turn = std::move(kept);
    }
    auto call = std::make_unique<OpenAiCall>(*inference_, asked.generate, metadata);
    if (call->Wait(absl::InfiniteDuration()) == OpenAiCall::Event::kEnded) {
      if (turn && turn->made) Discard(metadata, turn->session);
      AnswerError(call->status(), response);
      return absl::OkStatus();
    }
    const bool stream = asked.stream;
    OpenAiReply reply(asked, {.id = NewSessionId(), .created = absl::ToUnixSeconds(absl::Now()), .model = model});
    const auto running = std::make_shared<Running>(
        Running{std::move(place), stream, std::move(turn), std::move(reply), std::move(call)});
    if (stream) response.set_header("Cache-Control", "no-store");
    response.set_chunked_content_provider(
        stream ? kEvents : kJson,
        [this, running](size_t /*offset*/, httplib::DataSink& sink) { return Feed(*running, sink); });
    return absl::OkStatus();
  }

  // Finds the session that `asked` names or makes it, and leaves in `asked` what is new of its messages. What the
  // services say stays as they say it.
  absl::StatusOr<grpc::Status> Join(const CallMetadata& metadata, OpenAiRequest& asked, Turn& turn) {
    v1::GetSessionRequest get;
    get.set_name("sessions/" + asked.session);
    grpc::Status status = sessions_->GetSession(ContextOf(metadata).get(), get, &turn.session);
    if (status.error_code() == grpc::StatusCode::NOT_FOUND) {
      v1::CreateSessionRequest create;
      create.set_session_id(asked.session);
      create.set_model(asked.generate.model());
      create.set_end_user(asked.end_user);
      if (asked.generate.has_policy()) *create.mutable_policy() = asked.generate.policy();
      *create.mutable_ttl() = DurationProto(options_.session_ttl);
      status = sessions_->CreateSession(ContextOf(metadata).get(), create, &turn.session);
      turn.made = status.ok();
    }
    if (!status.ok()) return status;
    EBB_TRY(CheckPolicy(asked, turn.session));
    EBB_TRY(CheckModel(asked.generate.model(), turn.session));
    asked.generate.clear_model();
    asked.generate.clear_policy();
    asked.generate.set_session(turn.session.name());
    asked.generate.set_expected_generation(turn.session.generation());
    turn.said = turn.session.tokens() == 0 ? Said() : conversations_.Find(turn.session);
    if (asked.route != OpenAiRoute::kChat) {
      turn.said.reset();  // text is no message
      return status;
    }
    v1::Chat& chat = *asked.generate.mutable_prompt()->mutable_chat();
    if (!asked.append) {
      EBB_ASSIGN(const size_t had, MessagesHad(chat, turn.said, asked.session));
      chat.mutable_messages()->DeleteSubrange(0, static_cast<int>(had));
    }
    if (!turn.said) return status;
    for (const v1::ChatMessage& message : chat.messages()) turn.said->Add(message.role(), message.content());
    return status;
  }

  // A policy that is sent again with every request says what the session has.
  static absl::Status CheckPolicy(const OpenAiRequest& asked, const v1::Session& session) {
    v1::PolicySpec given = asked.generate.policy();
    // What a ratio of the first prompt became, nobody can tell from the ratio.
    if (given.trigger().has_budget_ratio() && session.policy().trigger().has_budget())
      given.mutable_trigger()->clear_size();
    v1::PolicySpec merged = session.policy();
    merged.MergeFrom(given);
    if (google::protobuf::util::MessageDifferencer::Equals(merged, session.policy())) return absl::OkStatus();
    return Refuse(
        absl::StatusCode::kFailedPrecondition,
        absl::StrFormat("ebb.policy: %s has another; leave it out, or change it with SetPolicy", session.name()),
        {.reason = "POLICY_DIFFERS", .field = "ebb.policy"});
  }

  static absl::Status CheckModel(const std::string& asked, const v1::Session& session) {
    if (asked.empty() || asked == session.model()) return absl::OkStatus();
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("model: %s is of the model '%s'; leave it out, or name another session",
                                  session.name(), session.model()),
                  {.reason = "MODEL_DIFFERS", .field = "model"});
  }

  // A session that was made for a request which was refused, and that nobody wrote to.
  void Discard(const CallMetadata& metadata, const v1::Session& session) {
    v1::DeleteSessionRequest request;
    request.set_name(session.name());
    request.set_expected_generation(session.generation());
    v1::DeleteSessionResponse response;
    sessions_->DeleteSession(ContextOf(metadata).get(), request, &response);
  }

  // Writes what comes next; false once the client is gone, which cancels the call.
  bool Feed(Running& running, httplib::DataSink& sink) {
    const auto write = [&](const std::string& text) { return sink.write(text.data(), text.size()); };
    const OpenAiCall::Event event =
        std::exchange(running.have_message, false) ? OpenAiCall::Event::kMessage : running.call->Wait(kLook);
    if (event == OpenAiCall::Event::kEnded) return FeedEnd(running, sink);
    std::string text;
    if (event == OpenAiCall::Event::kMessage) text = running.reply.Add(running.call->message());
    if (running.stream && text.empty() && ++running.silent_looks >= kSilentLooksMax) text = ":\n\n";
    if (text.empty()) return sink.is_writable();
    running.silent_looks = 0;
    return write(text);
  }

  bool FeedEnd(Running& running, httplib::DataSink& sink) {
    const grpc::Status& status = running.call->status();
    if (!status.ok() && !running.stream) return false;  // 200 is out; what is cut off, no client takes for an answer
    std::string text;
    if (status.ok()) {
      if (running.turn && running.turn->said) {
        running.turn->said->Add("assistant", running.reply.text());
        conversations_.Put(running.turn->session, running.reply.generation(), *running.turn->said);
      }
      text = running.reply.End();
    } else {
      text = absl::StrCat("data: ", OpenAiErrorFrom(status).body, "\n\n");
    }
    if (!sink.write(text.data(), text.size())) return false;
    sink.done();
    return true;
  }

  // The models that are served, for whoever may call at all.
  void AnswerModels(const httplib::Request& request, httplib::Response& response) {
    const auto metadata = MetadataFrom(request);
    if (!metadata.ok()) return Refused(metadata.status(), response);
    v1::ListSessionsRequest list;
    list.set_page_size(1);
    v1::ListSessionsResponse sessions;
    const grpc::Status allowed = sessions_->ListSessions(ContextOf(*metadata).get(), list, &sessions);
    if (!allowed.ok()) return AnswerError(allowed, response);
    const std::string name = request.matches[1].length() > 1 ? request.matches[1].str().substr(1) : "";
    Json data = Json::array();
    std::string known;
    for (const OpenAiModel& model : served_.models()) {
      known += absl::StrFormat("%s'%s'", known.empty() ? "" : ", ", model.name);
      if (!name.empty() && name != model.name) continue;
      data.push_back({{"id", model.name},
                      {"object", "model"},
                      {"created", absl::ToUnixSeconds(started_)},
                      {"owned_by", "ebb"},
                      {"context_length", model.context}});
    }
    if (data.empty()) {
      return Refused(Refuse(absl::StatusCode::kNotFound,
                            absl::StrFormat("there is no model '%s'; this server has %s", name, known),
                            {.reason = "UNKNOWN_MODEL"}),
                     response);
    }
    const Json all = {{"object", "list"}, {"data", data}};
    response.set_content((name.empty() ? all : data.front()).dump() + "\n", kJson);
  }

  const OpenAiOptions options_;
  const OpenAiServed served_;
  const absl::Time started_ = absl::Now();
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::SessionService::Stub> sessions_ = v1::SessionService::NewStub(channel_);
  const std::unique_ptr<v1::InferenceService::Stub> inference_ = v1::InferenceService::NewStub(channel_);
  Conversations conversations_{kConversationsMax};
  FrontPlaces places_{options_.requests_max};
  RefusedBodies refused_{kRefusedRead};
  Address address_ = {};
  HttpServer http_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<OpenAiFront>> OpenAiFront::Start(const OpenAiOptions& options,
                                                                const OpenAiServed& served,
                                                                std::shared_ptr<grpc::Channel> channel,
                                                                const RefusedConnections& refused) {
  EBB_CHECK(served.tenant != nullptr);
  EBB_CHECK(served.refused != nullptr);
  auto front = std::make_unique<RunningFront>(options, served, std::move(channel));
  EBB_TRY(front->Listen(refused));
  return front;
}

}  // namespace ebb
