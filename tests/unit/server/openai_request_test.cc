#include "server/openai_request.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "google/protobuf/text_format.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using absl::StatusCode;

constexpr char kChatBody[] = R"({"messages": [{"role": "user", "content": "Hi"}])";

absl::StatusOr<OpenAiRequest> Chat(const std::string& more) {
  return OpenAiRequestFrom(OpenAiRoute::kChat, std::string(kChatBody) + (more.empty() ? "" : ", " + more) + "}");
}
absl::StatusOr<OpenAiRequest> Completion(const std::string& body) {
  return OpenAiRequestFrom(OpenAiRoute::kCompletion, body);
}

// The request in protobuf's text form, on one line.
std::string Text(const absl::StatusOr<OpenAiRequest>& request) {
  if (!request.ok()) return DescribeStatus(request.status());
  std::string text;
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  printer.PrintToString(request->generate, &text);
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

TEST(OpenAiRequest, FieldsBecomeThoseOfGenerate) {
  const std::string chat = "prompt { chat { messages { role: \"user\" content: \"Hi\" } } } ";
  const struct {
    std::string json, sampling, stopping, rest;
  } cases[] = {
      {"", "", "", ""},
      {R"("model": "tiny", "user": "u", "store": true, "metadata": {"a": "b"}, "tools": [], "temperature": null)", "",
       "", " model: \"tiny\""},
      {R"("temperature": 0.5, "top_p": 0.25, "top_k": 3)", "temperature: 0.5 top_k: 3 top_p: 0.25", "", ""},
      {R"("min_p": 0.5, "repetition_penalty": 1.5)", "min_p: 0.5 repetition_penalty: 1.5", "", ""},
      {R"("presence_penalty": 1, "frequency_penalty": -1)", "presence_penalty: 1 frequency_penalty: -1", "", ""},
      {R"("logit_bias": {"7": -100}, "seed": 9)", "logit_bias { key: 7 value: -100 } seed: 9", "", ""},
      {R"("seed": -1)", "seed: 18446744073709551615", "", ""},
      {R"("max_tokens": 5)", "", "max_tokens: 5", ""},
      {R"("max_tokens": 5, "max_completion_tokens": 5)", "", "max_tokens: 5", ""},
      {R"("max_completion_tokens": 6, "stop": "x")", "", "max_tokens: 6 stop: \"x\"", ""},
      {R"("stop": ["x", "y"], "ignore_eos": true)", "", "stop: \"x\" stop: \"y\" ignore_eos: true", ""},
      {R"("logprobs": true)", "", "logprobs: 0", ""},
      {R"("logprobs": true, "top_logprobs": 4)", "", "logprobs: 4", ""},
      {R"("logprobs": false, "n": 2)", "", "", " n: 2"},
      {R"("ebb": {"policy": "h2o:budget=64"})", "", "", " policy { trigger { budget: 64 } h2o { } }"},
  };
  for (const auto& [json, sampling, stopping, rest] : cases) {
    const auto group = [](const char* name, const std::string& fields) {
      return std::string(name) + " { " + (fields.empty() ? "" : fields + " ") + "}";
    };
    EXPECT_EQ(Text(Chat(json)), chat + group("sampling", sampling) + " " + group("stopping", stopping) + rest) << json;
  }
}

TEST(OpenAiRequest, PartsOfTextArePutTogetherAndADeveloperIsTheSystem) {
  const auto request = OpenAiRequestFrom(OpenAiRoute::kChat, R"({"messages": [
      {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
      {"role": "assistant", "content": "", "refusal": null, "tool_calls": []}]})");
  ASSERT_THAT(request, IsOk());
  const v1::Chat& chat = request->generate.prompt().chat();
  ASSERT_EQ(chat.messages_size(), 2);
  EXPECT_EQ(chat.messages(0).role() + ": " + chat.messages(0).content(), "system: Be brief.");
  EXPECT_EQ(chat.messages(1).role() + ": " + chat.messages(1).content(), "assistant: ");
}

TEST(OpenAiRequest, APromptIsATextOrTokens) {
  EXPECT_EQ(Completion(R"({"prompt": "Hi"})")->generate.prompt().text(), "Hi");
  EXPECT_EQ(Completion(R"({"prompt": ["Hi"]})")->generate.prompt().text(), "Hi");
  for (const std::string json : {"[1, 2]", "[[1, 2]]"}) {
    const auto request = Completion(R"({"prompt": )" + json + "}");
    ASSERT_THAT(request, IsOk());
    EXPECT_THAT(request->generate.prompt().tokens().ids(), testing::ElementsAre(1, 2));
  }
  EXPECT_EQ(Completion(R"({"prompt": "Hi", "logprobs": 2})")->generate.stopping().logprobs(), 2U);
}

TEST(OpenAiRequest, StreamsAndSessions) {
  const auto request = Chat(R"("stream": true, "stream_options": {"include_usage": true},
                               "ebb": {"session": "sessions/tour", "append": true})");
  ASSERT_THAT(request, IsOk());
  EXPECT_TRUE(request->stream && request->include_usage && request->append);
  EXPECT_EQ(request->session, "tour");
  EXPECT_EQ(Chat(R"("ebb": {"session": "tour"})")->session, "tour");
}

TEST(OpenAiRequest, TheUserIsTheEndUser) {
  EXPECT_EQ(Chat(R"("user": "u-7")")->end_user, "u-7");
  EXPECT_EQ(Completion(R"({"prompt": "Hi", "user": "u-7"})")->end_user, "u-7");
  EXPECT_EQ(Chat(R"("user": null)")->end_user, "");
}

TEST(OpenAiRequest, RefusesByName) {
  const struct {
    const char* json;
    const char* reason;
    const char* field;
  } cases[] = {
      {R"("tools": [{"type": "function"}])", "UNSUPPORTED_FIELD", "tools"},
      {R"("functions": [{}])", "UNSUPPORTED_FIELD", "functions"},
      {R"("tool_choice": "required")", "UNSUPPORTED_FIELD", "tool_choice"},
      {R"("response_format": {"type": "json_object"})", "UNSUPPORTED_FIELD", "response_format"},
      {R"("reasoning_effort": "high")", "UNSUPPORTED_FIELD", "reasoning_effort"},
      {R"("temprature": 1)", "UNSUPPORTED_FIELD", "temprature"},
      {R"("": 1)", "UNSUPPORTED_FIELD", R"("")"},
      {R"("stream_options": {"x": 1})", "UNSUPPORTED_FIELD", "stream_options.x"},
      {R"("ebb": {"polcy": "h2o"})", "UNSUPPORTED_FIELD", "ebb.polcy"},
      {R"("temperature": "hot")", "WRONG_TYPE", "temperature"},
      {R"("max_tokens": 1.5)", "WRONG_TYPE", "max_tokens"},
      {R"("max_tokens": -1)", "WRONG_TYPE", "max_tokens"},
      {R"("max_tokens": 5000000000)", "WRONG_TYPE", "max_tokens"},
      {R"("seed": 1e300)", "WRONG_TYPE", "seed"},
      {R"("stop": [1])", "WRONG_TYPE", "stop"},
      {R"("stream": 1)", "WRONG_TYPE", "stream"},
      {R"("user": 7)", "WRONG_TYPE", "user"},
      {R"("logit_bias": {"a": 1})", "WRONG_TYPE", "logit_bias"},
      {R"("ebb": 1)", "WRONG_TYPE", "ebb"},
      {R"("ebb": {"policy": {"h2o": 3}})", "WRONG_TYPE", "ebb.policy"},
      {R"("ebb": {"policy": 3})", "WRONG_TYPE", "ebb.policy"},
      {R"("ebb": {"policy": "h2o:budgt=3"})", "UNKNOWN_PARAMETER", "ebb.policy"},
      {R"("ebb": {"policy": "h2o@pyramd"})", "UNKNOWN_PARAMETER", "ebb.policy"},
      {R"("max_tokens": 1, "max_completion_tokens": 2)", "OUT_OF_RANGE", "max_tokens"},
      {R"("top_logprobs": 2)", "OUT_OF_RANGE", "top_logprobs"},
      {R"("ebb": {"session": "A B"})", "INVALID_NAME", "ebb.session"},
      {R"("ebb": {"append": true})", "MISSING", "ebb.session"},
  };
  for (const auto& [json, reason, field] : cases) {
    EXPECT_THAT(Chat(json), IsRefusal(StatusCode::kInvalidArgument, reason, field)) << json;
  }
  EXPECT_EQ(Chat(R"("model": "gpt-4")")->generate.model(), "gpt-4");  // the service knows which there are
  EXPECT_THAT(Chat(R"("ebb": {"policy": "h3o"})"), IsRefusal(StatusCode::kNotFound, "UNKNOWN_SCORER", "ebb.policy"));
}

TEST(OpenAiRequest, RefusesWhatIsNoMessage) {
  const struct {
    const char* body;
    const char* reason;
    const char* field;
  } cases[] = {
      {"", "MALFORMED_BODY", ""},
      {"[]", "MALFORMED_BODY", ""},
      {"{\"a\": \"\xff\"}", "MALFORMED_BODY", ""},
      {"{}", "MISSING", "messages"},
      {R"({"messages": []})", "MISSING", "messages"},
      {R"({"messages": "Hi"})", "WRONG_TYPE", "messages"},
      {R"({"messages": ["Hi"]})", "WRONG_TYPE", "messages[0]"},
      {R"({"messages": [{"role": "tool", "content": "Hi"}]})", "UNKNOWN_ROLE", "messages[0].role"},
      {R"({"messages": [{"role": "user"}]})", "MISSING", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": 1}]})", "WRONG_TYPE", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "UNSUPPORTED_FIELD",
       "content[0].type"},
      {R"({"messages": [{"role": "user", "content": "", "name": "Bob"}]})", "UNSUPPORTED_FIELD", "messages[0].name"},
  };
  for (const auto& [body, reason, field] : cases) {
    EXPECT_THAT(OpenAiRequestFrom(OpenAiRoute::kChat, body), IsRefusal(StatusCode::kInvalidArgument, reason, field))
        << body;
  }
  EXPECT_THAT(Completion(R"({"prompt": ["a", "b"]})"),
              IsRefusal(StatusCode::kInvalidArgument, "UNSUPPORTED_FIELD", "prompt"));
  EXPECT_THAT(Completion(R"({"prompt": "a", "echo": true})"),
              IsRefusal(StatusCode::kInvalidArgument, "UNSUPPORTED_FIELD", "echo"));
  EXPECT_THAT(Completion(R"({"prompt": [-1]})"), IsRefusal(StatusCode::kInvalidArgument, "WRONG_TYPE", "prompt"));
  EXPECT_THAT(Completion("{}"), IsRefusal(StatusCode::kInvalidArgument, "MISSING", "prompt"));
  EXPECT_THAT(Completion(R"({"prompt": "a", "messages": []})"),
              IsRefusal(StatusCode::kInvalidArgument, "UNSUPPORTED_FIELD", "messages"));
}

TEST(OpenAiRequest, DeepNestingIsRefusedBeforeItIsCopied) {
  const std::string open(1'000'000, '['), deep = open + std::string(open.size(), ']');
  for (const std::string& fields : {"\"tools\": " + open, "\"tools\": " + deep, "\"stop\": " + deep,
                                    "\"ebb\": {\"policy\": {\"h2o\": " + deep + "}}"}) {
    EXPECT_THAT(Chat(fields), IsRefusal(StatusCode::kInvalidArgument, "MALFORMED_BODY", ""));
  }
}

TEST(OpenAiRequest, APolicyIsAWordOrAnObject) {
  const struct {
    const char* json;
    const char* expected;
  } cases[] = {
      {R"({"h2o": {}, "trigger": {"budget": 64}})", "trigger { budget: 64 } h2o { }"},
      {R"("snapkv:budget=256:window=16:recent=8")",
       "trigger { budget: 256 } protect { recent: 8 } snapkv { window: 16 }"},
      {R"("knorm:keep=long")", "knorm { keep: LONG }"},
      {R"("expected_attention:values=ignore")", "expected_attention { values: VALUES_IGNORE }"},
      {R"("h2o:budget_ratio=0.5+fast_caote")", "trigger { budget_ratio: 0.5 } h2o { } modifier: MODIFIER_FAST_CAOTE"},
      {R"("tova@pyramid:beta=14:exact_total=true")", "tova { } pyramid { beta: 14 exact_total: true }"},
  };
  for (const auto& [json, expected] : cases) {
    v1::GenerateRequest request;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(expected, request.mutable_policy()));
    const auto got = Chat(std::string(R"("ebb": {"policy": )") + json + "}");
    ASSERT_THAT(got, IsOk()) << json;
    EXPECT_EQ(got->generate.policy().DebugString(), request.policy().DebugString()) << json;
  }
}

}  // namespace
}  // namespace ebb
