#include "server/openai_reply.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace ebb {
namespace {

using Json = nlohmann::json;

// Bytes of a token may be half a character.
std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string EventOf(const Json& json) { return "data: " + Dump(json) + "\n\n"; }

// Null while the answer goes on.
Json FinishWord(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_END_OF_SEQUENCE:
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_MAX_TOKENS:
    case v1::FINISH_REASON_LENGTH_LIMIT:
      return "length";
    default:
      return nullptr;
  }
}

// JSON has no infinity; OpenAI's own word for it.
double Logprob(float value) { return std::isfinite(value) ? value : -9999.0; }

Json ChatLogprob(const v1::TokenLogprob& token) {
  Json bytes = Json::array();
  for (const char byte : token.piece()) bytes.push_back(static_cast<uint8_t>(byte));
  return {{"token", token.piece()}, {"logprob", Logprob(token.logprob())}, {"bytes", std::move(bytes)}};
}

Json ChatLogprobs(const v1::DecodeResponse& decode) {
  Json content = Json::array();
  for (const v1::TokenLogprob& token : decode.logprobs()) {
    Json entry = ChatLogprob(token);
    entry["top_logprobs"] = Json::array();
    for (const v1::TokenLogprob& other : token.top()) entry["top_logprobs"].push_back(ChatLogprob(other));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json CompletionLogprobs(const v1::DecodeResponse& decode, size_t& characters) {
  Json tokens = Json::array(), logprobs = Json::array(), tops = Json::array(), offsets = Json::array();
  for (const v1::TokenLogprob& token : decode.logprobs()) {
    tokens.push_back(token.piece());
    logprobs.push_back(Logprob(token.logprob()));
    Json top = Json::object();
    for (const v1::TokenLogprob& other : token.top()) top[other.piece()] = Logprob(other.logprob());
    tops.push_back(std::move(top));
    offsets.push_back(characters);
    // A character's bytes but its first are 10xxxxxx.
    characters += static_cast<size_t>(
        std::count_if(token.piece().begin(), token.piece().end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
  }
  return {{"tokens", tokens}, {"token_logprobs", logprobs}, {"top_logprobs", tops}, {"text_offset", offsets}};
}

// Both have lists alone, or null, in the same places.
void Append(const Json& more, Json& all) {
  if (all.is_null()) {
    all = more;
    return;
  }
  for (const auto& [name, list] : more.items()) {
    if (list.is_array()) all[name].insert(all[name].end(), list.begin(), list.end());
  }
}

struct Details {
  std::string reason = {}, field = {};
  std::optional<absl::Duration> retry = {};
};

Details DetailsOf(const grpc::Status& status) {
  Details details;
  google::rpc::Status rich;
  if (!rich.ParseFromString(status.error_details())) return details;
  for (const google::protobuf::Any& any : rich.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::RetryInfo retry;
    google::rpc::BadRequest request;
    if (any.UnpackTo(&info)) details.reason = info.reason();
    if (any.UnpackTo(&retry)) {
      details.retry = absl::Seconds(retry.retry_delay().seconds()) + absl::Nanoseconds(retry.retry_delay().nanos());
    }
    if (any.UnpackTo(&request) && request.field_violations_size() > 0) {
      details.field = request.field_violations(0).field();
    }
  }
  return details;
}

int HttpCode(grpc::StatusCode code, std::string_view reason) {
  switch (code) {
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::OUT_OF_RANGE:
      return 400;
    case grpc::StatusCode::UNAUTHENTICATED:
      return 401;
    case grpc::StatusCode::PERMISSION_DENIED:
      return 403;
    case grpc::StatusCode::NOT_FOUND:
      return 404;
    case grpc::StatusCode::ALREADY_EXISTS:
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::CANCELLED:  // somebody deleted the session, say
      return 409;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      if (reason == "REQUEST_TOO_LARGE") return 413;
      return reason == "LENGTH_LIMIT" ? 400 : 429;  // what is too long stays so
    case grpc::StatusCode::UNIMPLEMENTED:
      return 501;
    case grpc::StatusCode::UNAVAILABLE:
      return 503;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return 504;
    default:
      return 500;
  }
}

std::string_view TypeOf(int http) {
  if (http == 401) return "authentication_error";
  if (http == 403) return "permission_error";
  if (http == 429) return "rate_limit_error";
  return http < 500 ? "invalid_request_error" : "server_error";
}

// The field as a caller of the OpenAI API wrote it.
std::string ParamOf(std::string_view field) {
  for (const std::string_view prefix : {"sampling.", "stopping.", "prompt.chat."}) {
    if (field.starts_with(prefix)) return std::string(field.substr(prefix.size()));
  }
  if (field == "end_user") return "user";
  return (field.starts_with("policy") ? "ebb." : "") + std::string(field);
}

}  // namespace

OpenAiError OpenAiErrorFrom(const grpc::Status& status) {
  const Details details = DetailsOf(status);
  OpenAiError error = {.http = HttpCode(status.error_code(), details.reason), .retry = details.retry};
  Json body = {{"message", status.error_message()},
               {"type", TypeOf(error.http)},
               {"param", nullptr},
               {"code", details.reason.empty() ? Json(nullptr) : Json(details.reason)}};
  if (!details.field.empty()) body["param"] = ParamOf(details.field);
  error.body = Dump({{"error", std::move(body)}});
  return error;
}

OpenAiReply::OpenAiReply(const OpenAiRequest& request, Head head)
    : route_(request.route),
      stream_(request.stream),
      include_usage_(request.include_usage),
      logprobs_(request.generate.stopping().has_logprobs()),
      head_(std::move(head)),
      answers_(request.generate.has_n() ? request.generate.n() : 1) {}

Json OpenAiReply::Envelope(bool chunk) const {
  const char* const object = !chat() ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", (chat() ? "chatcmpl-" : "cmpl-") + head_.id},
          {"object", object},
          {"created", head_.created},
          {"model", head_.model}};
}

Json OpenAiReply::LogprobsOf(const v1::DecodeResponse& decode, Answer& answer) const {
  if (!logprobs_ || decode.logprobs().empty()) return nullptr;
  return chat() ? ChatLogprobs(decode) : CompletionLogprobs(decode, answer.characters);
}

std::string OpenAiReply::Event(Json choices) const {
  Json event = Envelope(true);
  event["choices"] = std::move(choices);
  if (include_usage_) event["usage"] = nullptr;
  return EventOf(event);
}

std::string OpenAiReply::Add(const v1::GenerateResponse& message) {
  if (!message.has_decode() || message.index() >= answers_.size()) return {};
  const v1::DecodeResponse& decode = message.decode();
  Answer& answer = answers_[message.index()];
  answer.text += decode.text();
  if (decode.has_usage()) {
    answer.finish = decode.finish_reason();
    completion_tokens_ += decode.usage().completion_tokens();
    if (message.index() == 0) {
      usage_ = decode.usage();
      generation_ = decode.generation();
    }
  }
  Json logprobs = LogprobsOf(decode, answer);
  if (!stream_) {
    if (!logprobs.is_null()) Append(logprobs, answer.logprobs);
    return {};
  }
  std::string events;
  const auto add = [&](Json delta, const Json& finish) {
    Json choice = {
        {"index", message.index()}, {"logprobs", std::exchange(logprobs, nullptr)}, {"finish_reason", finish}};
    choice[chat() ? "delta" : "text"] = std::move(delta);
    events += Event(Json::array({std::move(choice)}));
  };
  if (!answer.begun && chat()) {
    const Json held = std::exchange(logprobs, nullptr);
    add({{"role", "assistant"}, {"content", ""}}, nullptr);
    logprobs = held;
  }
  answer.begun = true;
  const Json text = chat() ? Json{{"content", decode.text()}} : Json(decode.text());
  if (!decode.text().empty() || !logprobs.is_null()) add(text, nullptr);
  if (decode.has_usage()) add(chat() ? Json::object() : Json(""), FinishWord(answer.finish));
  return events;
}

Json OpenAiReply::Usage() const {
  return {{"prompt_tokens", usage_.prompt_tokens()},
          {"completion_tokens", completion_tokens_},
          {"total_tokens", usage_.prompt_tokens() + completion_tokens_},
          {"prompt_tokens_details", {{"cached_tokens", usage_.reused_prompt_tokens()}}},
          {"ebb",
           {{"session_tokens", usage_.session_tokens()},
            {"cache_length", usage_.cache_length()},
            {"evicted_tokens", usage_.evicted_tokens()}}}};
}

std::string OpenAiReply::End() const {
  if (stream_) {
    std::string events;
    if (include_usage_) {
      Json event = Envelope(true);
      event["choices"] = Json::array();
      event["usage"] = Usage();
      events = EventOf(event);
    }
    return events + "data: [DONE]\n\n";
  }
  Json body = Envelope(false);
  body["choices"] = Json::array();
  for (size_t i = 0; i < answers_.size(); ++i) {
    const Answer& answer = answers_[i];
    Json choice = {{"index", i}, {"logprobs", answer.logprobs}, {"finish_reason", FinishWord(answer.finish)}};
    if (chat()) {
      choice["message"] = {{"role", "assistant"}, {"content", answer.text}, {"refusal", nullptr}};
    } else {
      choice["text"] = answer.text;
    }
    body["choices"].push_back(std::move(choice));
  }
  body["usage"] = Usage();
  return Dump(body) + "\n";
}

}  // namespace ebb
