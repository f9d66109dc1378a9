#include "server/openai_reply.h"

#include <gmock/gmock.h>

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "policies/status.h"
#include "server/grpc_status.h"

namespace ebb {
namespace {

using Json = nlohmann::json;
using testing::SizeIs;

const OpenAiReply::Head kHead = {.id = "x1", .created = 12, .model = "tiny"};

OpenAiRequest Request(OpenAiRoute route, bool stream) {
  OpenAiRequest request = {.route = route, .stream = stream};
  return request;
}

v1::GenerateResponse Said(const std::string& text, uint32_t index = 0) {
  v1::GenerateResponse message;
  message.mutable_decode()->set_text(text);
  message.set_index(index);
  return message;
}

v1::GenerateResponse Ended(v1::FinishReason reason, uint32_t index = 0) {
  v1::GenerateResponse message = Said("", index);
  message.mutable_decode()->set_finish_reason(reason);
  message.mutable_decode()->set_generation(7);
  v1::Usage& usage = *message.mutable_decode()->mutable_usage();
  usage.set_prompt_tokens(5);
  usage.set_completion_tokens(3);
  usage.set_reused_prompt_tokens(2);
  usage.set_session_tokens(8);
  usage.set_cache_length(4);
  usage.set_evicted_tokens(1);
  return message;
}

void AddLogprob(v1::GenerateResponse& message, const std::string& piece, float logprob) {
  v1::TokenLogprob& token = *message.mutable_decode()->add_logprobs();
  token.set_piece(piece);
  token.set_logprob(logprob);
  v1::TokenLogprob& top = *token.add_top();
  top.set_piece("z");
  top.set_logprob(-0.5F);
}

// What stands behind "data: " of each event.
std::vector<std::string> Data(const std::string& events) {
  std::vector<std::string> data;
  for (const auto event : absl::StrSplit(events, "\n\n", absl::SkipEmpty())) {
    EXPECT_EQ(event.substr(0, 6), "data: ");
    data.emplace_back(event.substr(6));
  }
  return data;
}

TEST(OpenAiReply, AChatIsOneBody) {
  OpenAiReply reply(Request(OpenAiRoute::kChat, false), kHead);
  EXPECT_EQ(reply.Add(Said("He")), "");
  EXPECT_EQ(reply.Add(Said("llo")), "");
  EXPECT_EQ(reply.Add(Ended(v1::FINISH_REASON_STOP)), "");
  EXPECT_EQ(reply.text(), "Hello");
  EXPECT_EQ(reply.generation(), 7U);
  EXPECT_EQ(Json::parse(reply.End()), Json::parse(R"({
      "id": "chatcmpl-x1", "object": "chat.completion", "created": 12, "model": "tiny",
      "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello", "refusal": null}, "logprobs": null,
                   "finish_reason": "stop"}],
      "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8,
                "prompt_tokens_details": {"cached_tokens": 2},
                "ebb": {"session_tokens": 8, "cache_length": 4, "evicted_tokens": 1}}})"));
}

TEST(OpenAiReply, ACompletionHasTextAndEachOfItsAnswers) {
  OpenAiRequest request = Request(OpenAiRoute::kCompletion, false);
  request.generate.set_n(2);
  OpenAiReply reply(request, kHead);
  reply.Add(Said("b", 1));
  reply.Add(Said("a", 0));
  reply.Add(Ended(v1::FINISH_REASON_LENGTH_LIMIT, 1));
  reply.Add(Ended(v1::FINISH_REASON_END_OF_SEQUENCE, 0));
  const Json body = Json::parse(reply.End());
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["id"], "cmpl-x1");
  EXPECT_EQ(body["choices"], Json::parse(R"([{"index": 0, "text": "a", "logprobs": null, "finish_reason": "stop"},
                                             {"index": 1, "text": "b", "logprobs": null, "finish_reason": "length"}])"));
  EXPECT_EQ(body["usage"]["completion_tokens"], 6) << "of both";
  EXPECT_EQ(body["usage"]["prompt_tokens"], 5) << "read once";
}

TEST(OpenAiReply, AStreamBeginsWithTheRoleAndEndsWithTheReasonAndUsage) {
  OpenAiRequest request = Request(OpenAiRoute::kChat, true);
  request.include_usage = true;
  OpenAiReply reply(request, kHead);
  v1::GenerateResponse block;
  block.mutable_prefill()->set_tokens_done(1);
  EXPECT_EQ(reply.Add(block), "");
  const auto first = Data(reply.Add(Said("He")));
  ASSERT_THAT(first, SizeIs(2));
  EXPECT_EQ(Json::parse(first[0]), Json::parse(R"({
      "id": "chatcmpl-x1", "object": "chat.completion.chunk", "created": 12, "model": "tiny", "usage": null,
      "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null}]})"));
  EXPECT_EQ(Json::parse(first[1])["choices"][0]["delta"], Json::parse(R"({"content": "He"})"));
  EXPECT_EQ(reply.Add(Said("")), "") << "half a character is none yet";
  const auto last = Data(reply.Add(Ended(v1::FINISH_REASON_MAX_TOKENS)));
  ASSERT_THAT(last, SizeIs(1));
  EXPECT_EQ(Json::parse(last[0])["choices"][0],
            Json::parse(R"({"index": 0, "delta": {}, "logprobs": null, "finish_reason": "length"})"));
  const auto end = Data(reply.End());
  ASSERT_THAT(end, SizeIs(2));
  EXPECT_EQ(Json::parse(end[0])["choices"], Json::array());
  EXPECT_EQ(Json::parse(end[0])["usage"]["total_tokens"], 8);
  EXPECT_EQ(end[1], "[DONE]");
}

TEST(OpenAiReply, LogprobsOfAChatHaveBytes) {
  OpenAiRequest request = Request(OpenAiRoute::kChat, false);
  request.generate.mutable_stopping()->set_logprobs(1);
  OpenAiReply reply(request, kHead);
  v1::GenerateResponse message = Said("A");
  AddLogprob(message, "A", -1);
  reply.Add(message);
  message = Said("");
  AddLogprob(message, "\xC3", -std::numeric_limits<float>::infinity());
  reply.Add(message);
  reply.Add(Ended(v1::FINISH_REASON_STOP));
  const Json logprobs = Json::parse(reply.End())["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["content"][0], Json::parse(R"({"token": "A", "logprob": -1.0, "bytes": [65],
      "top_logprobs": [{"token": "z", "logprob": -0.5, "bytes": [122]}]})"));
  EXPECT_EQ(logprobs["content"][1]["bytes"], Json::parse("[195]"));
  EXPECT_EQ(logprobs["content"][1]["token"], "\uFFFD");
  EXPECT_EQ(logprobs["content"][1]["logprob"], -9999.0);
}

TEST(OpenAiReply, LogprobsOfACompletionHaveOffsets) {
  OpenAiRequest request = Request(OpenAiRoute::kCompletion, false);
  request.generate.mutable_stopping()->set_logprobs(1);
  OpenAiReply reply(request, kHead);
  for (const std::string piece : {"\xC3\xA4", "bc", "d"}) {
    v1::GenerateResponse message = Said(piece);
    AddLogprob(message, piece, -1);
    reply.Add(message);
  }
  reply.Add(Ended(v1::FINISH_REASON_STOP));
  const Json logprobs = Json::parse(reply.End())["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json::parse(R"(["ä", "bc", "d"])"));
  EXPECT_EQ(logprobs["text_offset"], Json::parse("[0, 1, 3]"));
  EXPECT_EQ(logprobs["token_logprobs"], Json::parse("[-1.0, -1.0, -1.0]"));
  EXPECT_EQ(logprobs["top_logprobs"][2], Json::parse(R"({"z": -0.5})"));
}

TEST(OpenAiReply, ErrorsHaveOurReasonAndTheirNames) {
  const auto error = [](absl::StatusCode code, const Refusal& refusal) {
    return OpenAiErrorFrom(ToGrpc(Refuse(code, "no", refusal)));
  };
  const OpenAiError wrong = error(absl::StatusCode::kInvalidArgument, {.reason = "R", .field = "sampling.top_p"});
  EXPECT_EQ(wrong.http, 400);
  EXPECT_FALSE(wrong.retry);
  EXPECT_EQ(Json::parse(wrong.body), Json::parse(R"({"error": {"message": "no", "type": "invalid_request_error",
                                                      "param": "top_p", "code": "R"}})"));
  const OpenAiError full = error(absl::StatusCode::kUnavailable, {.reason = "NO_PAGES", .retry = absl::Seconds(2)});
  EXPECT_EQ(full.http, 503);
  EXPECT_EQ(full.retry, absl::Seconds(2));
  EXPECT_EQ(error(absl::StatusCode::kResourceExhausted, {.reason = "LENGTH_LIMIT"}).http, 400);
  EXPECT_EQ(error(absl::StatusCode::kResourceExhausted, {.reason = "REQUEST_TOO_LARGE"}).http, 413);
  EXPECT_EQ(error(absl::StatusCode::kResourceExhausted, {.reason = "TENANT_SESSIONS"}).http, 429);
  EXPECT_EQ(error(absl::StatusCode::kUnauthenticated, {.reason = "R"}).http, 401);
  EXPECT_EQ(error(absl::StatusCode::kAborted, {.reason = "R"}).http, 409);
  EXPECT_EQ(
      Json::parse(
          error(absl::StatusCode::kInvalidArgument, {.reason = "R", .field = "policy.trigger"}).body)["error"]["param"],
      "ebb.policy.trigger");
  EXPECT_EQ(OpenAiErrorFrom(grpc::Status(grpc::StatusCode::INTERNAL, "oh")).http, 500);
}

}  // namespace
}  // namespace ebb
