#include "server/openai_request.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/convert.h"
#include "server/policy_json.h"

namespace ebb {
namespace {

using Json = nlohmann::json;

constexpr int kDepthMax = 64;                   // of arrays and objects in each other
constexpr double kWholeMax = 9007199254740992;  // 2^53, up to which JSON's numbers are whole

// The fields of an object, each asked for once by name. What is wrong first is kept until the end.
class Fields {
 public:
  // `path`: what the names of the fields stand behind, "messages[0]."; may be empty. REQUIRES: an object.
  explicit Fields(const Json& object, std::string path = {}) : object_(object), path_(std::move(path)) {}

  std::string PathOf(std::string_view name) const { return path_ + std::string(name); }

  // Null where it is absent, or null.
  const Json* Find(const char* name) {
    known_.insert(name);
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  std::optional<double> Number(const char* name) {
    const Json* const value = Find(name);
    if (value == nullptr) return std::nullopt;
    if (value->is_number()) return value->get<double>();
    Wrong(name, "a number");
    return std::nullopt;
  }

  std::optional<uint32_t> Whole(const char* name) {
    const auto number = Number(name);
    if (!number) return std::nullopt;
    if (*number >= 0 && *number <= UINT32_MAX && *number == std::floor(*number)) return static_cast<uint32_t>(*number);
    Wrong(name, "a whole number, 0 or more,");
    return std::nullopt;
  }

  std::string Text(const char* name) {
    const Json* const value = Find(name);
    if (value == nullptr) return {};
    if (value->is_string()) return value->get<std::string>();
    Wrong(name, "a string");
    return {};
  }

  bool Flag(const char* name) {
    const Json* const value = Find(name);
    if (value == nullptr) return false;
    if (value->is_boolean()) return value->get<bool>();
    Wrong(name, "true or false");
    return false;
  }

  // Changes nothing, whatever it is.
  void Ignore(std::initializer_list<const char*> names) { known_.insert(names.begin(), names.end()); }

  // Is taken where it is one of these, which ask for nothing.
  void Only(const char* name, std::initializer_list<Json> harmless) {
    const Json* const value = Find(name);
    if (value == nullptr) return;
    for (const Json& one : harmless) {
      if (*value == one) return;
    }
    Fail(RefuseField("UNSUPPORTED_FIELD", PathOf(name), "this server does not have that; leave it out"));
  }

  void Wrong(const char* name, const char* expected) {
    Fail(RefuseField("WRONG_TYPE", PathOf(name), absl::StrFormat("%s is expected", expected)));
  }
  void Fail(const absl::Status& status) { status_.Update(status); }

  // The first thing that was wrong, else a field that nobody asked for.
  absl::Status Finish() {
    for (const auto& [name, value] : object_.items()) {
      if (!status_.ok()) return status_;
      if (known_.contains(name) || value.is_null()) continue;
      const std::string shown = name.empty() ? R"("")" : name;  // a refusal says which
      Fail(RefuseField("UNSUPPORTED_FIELD", PathOf(shown), "this server knows no such field; leave it out"));
    }
    return status_;
  }

 private:
  const Json& object_;
  const std::string path_;
  std::set<std::string> known_ = {};
  absl::Status status_ = absl::OkStatus();
};

// A string, or parts of text, which are put together.
absl::StatusOr<std::string> ContentFrom(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return RefuseField("WRONG_TYPE", path, "a string or a list of text parts is expected");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = absl::StrFormat("%s[%d]", path, i);
    if (!content[i].is_object()) return RefuseField("WRONG_TYPE", at, "an object is expected");
    Fields part(content[i], at + ".");
    if (const std::string type = part.Text("type"); type != "text") {
      return RefuseField("UNSUPPORTED_FIELD", at + ".type",
                         absl::StrFormat("'%s': this server reads text alone", type));
    }
    text += part.Text("text");
    EBB_TRY(part.Finish());
  }
  return text;
}

absl::Status AddMessage(const Json& json, const std::string& path, v1::Chat& chat) {
  if (!json.is_object()) return RefuseField("WRONG_TYPE", path, "an object is expected");
  Fields fields(json, path + ".");
  std::string role = fields.Text("role");
  if (role == "developer") role = "system";
  if (role != "system" && role != "user" && role != "assistant") {
    return RefuseField("UNKNOWN_ROLE", path + ".role",
                       absl::StrFormat("'%s' is none of system, developer, user, assistant", role));
  }
  v1::ChatMessage& message = *chat.add_messages();
  message.set_role(role);
  const Json* const content = fields.Find("content");
  if (content == nullptr) return RefuseField("MISSING", path + ".content", "every message has one");
  EBB_ASSIGN(*message.mutable_content(), ContentFrom(*content, path + ".content"));
  fields.Only("tool_calls", {Json::array()});
  fields.Only("annotations", {Json::array()});  // what clients send back with an answer
  return fields.Finish();
}

void ReadMessages(Fields& fields, v1::Chat& chat) {
  const Json* const messages = fields.Find("messages");
  if (messages == nullptr) return fields.Fail(RefuseField("MISSING", "messages", "a chat has some"));
  if (!messages->is_array()) return fields.Wrong("messages", "a list");
  for (size_t i = 0; i < messages->size(); ++i) {
    fields.Fail(AddMessage((*messages)[i], absl::StrFormat("messages[%d]", i), chat));
  }
  if (messages->empty()) fields.Fail(RefuseField("MISSING", "messages", "the list is empty"));
}

void ReadPrompt(Fields& fields, v1::Prompt& prompt) {
  const Json* json = fields.Find("prompt");
  if (json == nullptr) return fields.Fail(RefuseField("MISSING", "prompt", "a completion has one"));
  const bool nested = json->is_array() && !json->empty() && !json->front().is_number();
  if (nested && json->size() > 1) {
    return fields.Fail(RefuseField("UNSUPPORTED_FIELD", "prompt", "one prompt at a time: send each in a request"));
  }
  if (nested) json = &json->front();
  if (json->is_string()) return prompt.set_text(json->get<std::string>());
  if (!json->is_array()) return fields.Wrong("prompt", "a string, or a list of token ids,");
  prompt.mutable_tokens();
  for (const Json& id : *json) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX)
      return fields.Wrong("prompt", "a list of token ids");
    prompt.mutable_tokens()->add_ids(static_cast<uint32_t>(id.get<uint64_t>()));
  }
}

void ReadBias(Fields& fields, v1::Sampling& sampling) {
  const Json* const bias = fields.Find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) return fields.Wrong("logit_bias", "an object of token ids and numbers");
  for (const auto& [key, value] : bias->items()) {
    uint32_t token = 0;
    if (!absl::SimpleAtoi(key, &token) || !value.is_number()) {
      return fields.Wrong("logit_bias", "an object of token ids and numbers");
    }
    (*sampling.mutable_logit_bias())[token] = value.get<float>();
  }
}

void ReadSampling(Fields& fields, v1::Sampling& sampling) {
  if (const auto value = fields.Number("temperature")) sampling.set_temperature(static_cast<float>(*value));
  if (const auto value = fields.Number("top_p")) sampling.set_top_p(static_cast<float>(*value));
  if (const auto value = fields.Number("min_p")) sampling.set_min_p(static_cast<float>(*value));
  if (const auto value = fields.Whole("top_k")) sampling.set_top_k(*value);
  if (const auto value = fields.Number("repetition_penalty"))
    sampling.set_repetition_penalty(static_cast<float>(*value));
  if (const auto value = fields.Number("presence_penalty")) sampling.set_presence_penalty(static_cast<float>(*value));
  if (const auto value = fields.Number("frequency_penalty")) sampling.set_frequency_penalty(static_cast<float>(*value));
  if (const auto value = fields.Number("seed")) {
    if (std::abs(*value) > kWholeMax || *value != std::floor(*value))
      fields.Wrong("seed", "a whole number of at most 2^53");
    sampling.set_seed(static_cast<uint64_t>(static_cast<int64_t>(std::clamp(*value, -kWholeMax, kWholeMax))));
  }
  ReadBias(fields, sampling);
}

void ReadStops(Fields& fields, v1::Stopping& stopping) {
  const Json* const stop = fields.Find("stop");
  if (stop == nullptr) return;
  const Json list = stop->is_array() ? *stop : Json::array({*stop});
  for (const Json& text : list) {
    if (!text.is_string()) return fields.Wrong("stop", "a string or a list of strings");
    stopping.add_stop(text.get<std::string>());
  }
}

void ReadStopping(Fields& fields, OpenAiRoute route, v1::Stopping& stopping) {
  const auto most = fields.Whole("max_tokens");
  const auto completion = route == OpenAiRoute::kChat ? fields.Whole("max_completion_tokens") : std::nullopt;
  if (most && completion && *most != *completion) {
    fields.Fail(RefuseField("OUT_OF_RANGE", "max_tokens", "it differs from max_completion_tokens; send one of them"));
  }
  if (most || completion) stopping.set_max_tokens(completion.value_or(most.value_or(0)));
  stopping.set_ignore_eos(fields.Flag("ignore_eos"));
  ReadStops(fields, stopping);
  if (route == OpenAiRoute::kCompletion) {
    if (const auto top = fields.Whole("logprobs")) stopping.set_logprobs(*top);
    return;
  }
  const auto top = fields.Whole("top_logprobs");
  if (fields.Flag("logprobs")) {
    stopping.set_logprobs(top.value_or(0));
  } else if (top.value_or(0) > 0) {
    fields.Fail(RefuseField("OUT_OF_RANGE", "top_logprobs", "it goes with logprobs: true"));
  }
}

void ReadStream(Fields& fields, OpenAiRequest& request) {
  request.stream = fields.Flag("stream");
  const Json* const json = fields.Find("stream_options");
  if (json == nullptr) return;
  if (!json->is_object()) return fields.Wrong("stream_options", "an object");
  Fields options(*json, "stream_options.");
  request.include_usage = options.Flag("include_usage");
  options.Ignore({"include_obfuscation"});
  fields.Fail(options.Finish());
}

// What is Ebb's own.
void ReadEbb(Fields& fields, OpenAiRequest& request) {
  const Json* const json = fields.Find("ebb");
  if (json == nullptr) return;
  if (!json->is_object()) return fields.Wrong("ebb", "an object");
  Fields own(*json, "ebb.");
  if (const std::string name = own.Text("session"); !name.empty()) {
    const bool is_name = name.starts_with("sessions/");
    const auto id = SessionIdFrom(is_name ? name : "sessions/" + name, "ebb.session");
    own.Fail(id.status());
    if (id.ok()) request.session = *id;
  }
  if (const Json* const policy = own.Find("policy"); policy != nullptr) {
    auto spec = PolicyFromJson(*policy, "ebb.policy");
    own.Fail(spec.status());
    if (spec.ok()) *request.generate.mutable_policy() = *std::move(spec);
  }
  request.append = own.Flag("append");
  if (request.append && request.session.empty()) {
    own.Fail(RefuseField("MISSING", "ebb.session", "ebb.append goes with it"));
  }
  fields.Fail(own.Finish());
}

void RefuseOthers(Fields& fields, OpenAiRoute route) {
  // Names for the caller's own books, and hints that change no token.
  fields.Ignore({"metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
                 "parallel_tool_calls", "prediction"});
  const Json text = {{"type", "text"}};
  if (route == OpenAiRoute::kChat) {
    fields.Only("tools", {Json::array()});
    fields.Only("functions", {Json::array()});
    fields.Only("tool_choice", {"none", "auto"});
    fields.Only("function_call", {"none", "auto"});
    fields.Only("response_format", {text});
    fields.Only("modalities", {Json::array({"text"})});
  } else {
    fields.Only("echo", {false});
    fields.Only("suffix", {""});
    fields.Only("best_of", {1});
  }
}

}  // namespace

absl::StatusOr<OpenAiRequest> OpenAiRequestFrom(OpenAiRoute route, const std::string& body) {
  // What is nested deeply costs the stack when it is copied, and no request is.
  bool is_deep = false;
  const auto look = [&is_deep](int depth, Json::parse_event_t /*event*/, Json& /*value*/) {
    is_deep = is_deep || depth > kDepthMax;
    return !is_deep;
  };
  const Json json = Json::parse(body, look, false);
  if (is_deep) {
    return Refuse(absl::StatusCode::kInvalidArgument,
                  absl::StrFormat("the body is nested more than %d deep", kDepthMax), {.reason = "MALFORMED_BODY"});
  }
  if (!json.is_object()) {
    return Refuse(absl::StatusCode::kInvalidArgument, "the body is no JSON object", {.reason = "MALFORMED_BODY"});
  }
  OpenAiRequest request = {.route = route};
  Fields fields(json);
  request.generate.set_model(fields.Text("model"));
  if (route == OpenAiRoute::kChat) {
    ReadMessages(fields, *request.generate.mutable_prompt()->mutable_chat());
  } else {
    ReadPrompt(fields, *request.generate.mutable_prompt());
  }
  ReadSampling(fields, *request.generate.mutable_sampling());
  ReadStopping(fields, route, *request.generate.mutable_stopping());
  if (const auto answers = fields.Whole("n")) request.generate.set_n(*answers);
  ReadStream(fields, request);
  request.end_user = fields.Text("user");
  ReadEbb(fields, request);
  RefuseOthers(fields, route);
  EBB_TRY(fields.Finish());
  return request;
}

}  // namespace ebb
