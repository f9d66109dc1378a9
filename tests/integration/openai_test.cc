// The OpenAI port over real HTTP: the same tokens as over gRPC, the same doors, and nothing left behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/support/certificates.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_connection.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Json = nlohmann::json;

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kCompletions[] = "/v1/completions";
// What sha256sum makes of the token acme-1.
constexpr char kTokenLine[] = "acme sha256:7974d1de1641df0234e124a5d0f4acfacfc40c99ea69f0295f943074816d1091\n";

// The data of a stream's events.
std::vector<std::string> EventsOf(const std::string& body) {
  std::vector<std::string> events;
  for (const auto event : absl::StrSplit(body, "\n\n", absl::SkipEmpty())) {
    if (event.substr(0, 6) == "data: ") events.emplace_back(event.substr(6));
  }
  return events;
}

// One byte each, with the tiny model.
std::vector<int> BytesOf(const Json& choice) {
  std::vector<int> bytes;
  for (const Json& token : choice.at("logprobs").at("content")) {
    for (const Json& byte : token.at("bytes")) bytes.push_back(byte);
  }
  return bytes;
}

std::vector<int> PiecesOf(const Answer& answer) {
  std::vector<int> bytes;
  for (const v1::DecodeResponse& message : answer.messages) {
    for (const v1::TokenLogprob& token : message.logprobs()) {
      for (const char byte : token.piece()) bytes.push_back(static_cast<uint8_t>(byte));
    }
  }
  return bytes;
}

class OpenAi : public testing::Test {
 protected:
  void Start(const std::function<void(ServerOptions&)>& change = {}) {
    server_ = std::make_unique<TestServer>([&](ServerOptions& options) {
      options.openai = OpenAiOptions{.listen = {.host = "127.0.0.1", .port = 0}};
      options.http_listen = Address{.host = "127.0.0.1", .port = 0};
      if (change) change(options);
    });
    grpc_ = std::make_unique<TestClient>(server_->address());
  }

  int port() const { return server_->server().openai_address()->port; }
  httplib::Client Http() const {
    httplib::Client client("127.0.0.1", port());
    client.set_read_timeout(60);
    return client;
  }
  httplib::Result Post(const std::string& path, const Json& body, const httplib::Headers& headers = {}) const {
    return Http().Post(path, headers, body.dump(), "application/json");
  }
  // The answer's body; fails the test if it is an error.
  Json Ask(const std::string& path, const Json& body) const {
    const httplib::Result answer = Post(path, body);
    if (!answer || answer->status != 200) {
      ADD_FAILURE() << (answer ? answer->body : httplib::to_string(answer.error()));
      return Json::parse(R"({"choices": [{"text": "", "message": {"content": ""}, "logprobs": {"content": []}}]})");
    }
    return Json::parse(answer->body);
  }
  // The code of an answer that must be an error of this HTTP status.
  static std::string CodeOf(const httplib::Result& answer, int status) {
    if (!answer) return "no answer: " + httplib::to_string(answer.error());
    EXPECT_EQ(answer->status, status) << answer->body;
    const Json error = Json::parse(answer->body).at("error");
    EXPECT_TRUE(error.at("message").is_string() && error.at("type").is_string()) << answer->body;
    return error.at("code");
  }
  // Reads a stream until `go_on` says no, and leaves.
  void Stream(const Json& body, const std::function<bool(const std::string&)>& go_on,
              const httplib::Headers& headers = {}) const {
    httplib::Request request;
    request.headers = headers;
    request.method = "POST";
    request.path = kCompletions;
    request.set_header("Content-Type", "application/json");
    request.body = body.dump();
    request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
      return go_on(std::string(data, size));
    };
    Http().send(request);
  }
  // A connection of the test's own, with the request on its way.
  std::unique_ptr<RawConnection> SendRaw(const std::string& request) const {
    return std::make_unique<RawConnection>(*server_->server().openai_address(), request);
  }
  void EventuallyIdle() const {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    const auto idle = [&] {
      const v1::GetStatusResponse status = grpc_->Status();
      return status.work().sessions() == 0 && status.cache().pages_reserved() == 0 &&
             status.work().requests_running() == 0;
    };
    while (!idle() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_TRUE(idle()) << grpc_->Status().ShortDebugString();
  }

  TemporaryFolder folder_;
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<TestClient> grpc_;
};

const Json kEndless = {{"prompt", "On and on"}, {"max_tokens", 1 << 24}, {"ignore_eos", true}};

TEST_F(OpenAi, ACompletionIsWhatGenerateAnswers) {
  Start();
  v1::GenerateRequest request = GenerateText("", "It was a dark night", 24);
  request.mutable_sampling()->set_seed(5);
  *request.mutable_policy() = StreamingPolicy(16);
  const Answer over_grpc = grpc_->Generate(request);
  Json body = {{"model", grpc_->Status().model().name()},
               {"prompt", "It was a dark night"},
               {"max_tokens", 24},
               {"seed", 5},
               {"ignore_eos", true},
               {"ebb", {{"policy", "streaming:budget=16"}}}};
  const Json answer = Ask(kCompletions, body);
  EXPECT_EQ(answer["choices"][0]["text"], over_grpc.text);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 24);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], over_grpc.last().usage().prompt_tokens());
  EXPECT_EQ(answer["usage"]["ebb"]["cache_length"], 16);

  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const httplib::Result streamed = Post(kCompletions, body);
  ASSERT_TRUE(streamed);
  EXPECT_EQ(streamed->get_header_value("Content-Type"), "text/event-stream");
  const auto events = EventsOf(streamed->body);
  ASSERT_GT(events.size(), 3U);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events[events.size() - 2])["usage"]["completion_tokens"], 24);
  std::string text;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    text += Json::parse(events[i])["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, over_grpc.text);
  EventuallyIdle();
}

// The whole list comes with every request, and what is new of it goes onto the warm cache.
TEST_F(OpenAi, AKeptSessionIsTheConversationOverGrpc) {
  Start();
  const std::string name = grpc_
                               ->Create([] {
                                 v1::CreateSessionRequest request;
                                 *request.mutable_policy() = StreamingPolicy(40);
                                 return request;
                               }())
                               .name();
  Json messages = {{{"role", "system"}, {"content", "Be brief."}}};
  v1::Chat chat;
  chat.add_messages()->set_role("system");
  chat.mutable_messages(0)->set_content("Be brief.");
  for (int turn = 0; turn < 3; ++turn) {
    const std::string question = absl::StrCat("Question ", turn, "?");
    messages.push_back({{"role", "user"}, {"content", question}});
    v1::ChatMessage& asked = *chat.add_messages();
    asked.set_role("user");
    asked.set_content(question);
    v1::GenerateRequest request;
    request.set_session(name);
    *request.mutable_prompt()->mutable_chat() = chat;
    request.mutable_sampling()->set_seed(11);
    request.mutable_stopping()->set_max_tokens(12);
    request.mutable_stopping()->set_logprobs(0);
    const Answer over_grpc = grpc_->Generate(request);
    chat.clear_messages();
    ASSERT_TRUE(over_grpc.status.ok()) << client::Describe(over_grpc.status);

    const Json answer = Ask(kChat, {{"messages", messages},
                                    {"seed", 11},
                                    {"max_tokens", 12},
                                    {"logprobs", true},
                                    {"ebb", {{"session", "tour"}, {"policy", "streaming:budget=40"}}}});
    const Json& choice = answer["choices"][0];
    EXPECT_THAT(BytesOf(choice), ElementsAreArray(PiecesOf(over_grpc))) << "turn " << turn;
    EXPECT_EQ(choice["message"]["content"], over_grpc.text);
    EXPECT_EQ(answer["usage"]["prompt_tokens"], over_grpc.last().usage().prompt_tokens()) << "what is new alone";
    EXPECT_EQ(answer["usage"]["ebb"]["session_tokens"], over_grpc.last().usage().session_tokens());
    messages.push_back(choice["message"]);
  }
  EXPECT_EQ(grpc_->Get("sessions/tour").generation(), grpc_->Get(name).generation());
  EXPECT_EQ(
      grpc_->Get("sessions/tour").expire_time().seconds() - grpc_->Get("sessions/tour").last_used_time().seconds(),
      3600);
}

// One end user's sessions are in one arm, and one unit, whatever they are called.
TEST_F(OpenAi, TheUserIsWhomASessionIsMadeFor) {
  Start();
  v1::StartExperimentRequest start;
  start.mutable_experiment()->set_name("e");
  for (const char* arm : {"narrow", "wide"}) {
    v1::ExperimentArm& added = *start.mutable_experiment()->add_arms();
    added.set_name(arm);
    *added.mutable_policy() = StreamingPolicy(std::string(arm) == "wide" ? 200 : 24);
  }
  v1::Experiment experiment;
  ASSERT_TRUE(grpc_->admin().StartExperiment(grpc_->Context().get(), start, &experiment).ok());
  const auto ask = [&](const std::string& user, const std::string& session) {
    return Post(kCompletions, {{"prompt", "Once"}, {"max_tokens", 1}, {"user", user}, {"ebb", {{"session", session}}}});
  };
  std::set<std::string> arms;
  for (int i = 0; i < 8; ++i) {
    const std::string session = absl::StrCat("tour-", i);
    EXPECT_EQ(ask("ann", session)->status, 200);
    arms.insert(grpc_->Get("sessions/" + session).arm());
  }
  EXPECT_THAT(arms, SizeIs(1));
  EXPECT_EQ(ask("bob", "tour-0")->status, 200) << "who goes on with it changes nothing";
  v1::GetExperimentRequest get;
  get.set_name("experiments/e");
  ASSERT_TRUE(grpc_->admin().GetExperiment(grpc_->Context().get(), get, &experiment).ok());
  EXPECT_EQ(experiment.results().arms(0).units() + experiment.results().arms(1).units(), 1U);
  const httplib::Result refused = ask(std::string(257, 'u'), "tour-8");
  EXPECT_EQ(CodeOf(refused, 400), "TOO_LONG");
  EXPECT_EQ(Json::parse(refused->body)["error"]["param"], "user");
}

TEST_F(OpenAi, AListThatDoesNotGoOnIsRefusedAndChangesNothing) {
  Start();
  const Json user = {{"role", "user"}, {"content", "Hi"}};
  const auto body = [](const Json& messages, const Json& ebb = {}) {
    Json own = {{"session", "tour"}};
    own.update(ebb.is_null() ? Json::object() : ebb);
    return Json{{"messages", messages}, {"max_tokens", 3}, {"ebb", own}};
  };
  const Json first = Ask(kChat, body(Json::array({user})));
  const Json answer = first["choices"][0]["message"];
  const v1::Session before = grpc_->Get("sessions/tour");
  httplib::Result refused = Post(kChat, body(Json::array({user})));
  EXPECT_EQ(CodeOf(refused, 409), "CONVERSATION_DIFFERS") << "an answer made anew";
  EXPECT_EQ(refused->get_header_value("x-should-retry"), "false");
  EXPECT_EQ(CodeOf(Post(kChat, body({user, {{"role", "assistant"}, {"content", "No"}}, user})), 409),
            "CONVERSATION_DIFFERS");
  EXPECT_EQ(CodeOf(Post(kChat, body({user, answer, user}, {{"policy", "h2o:budget=64"}})), 400), "POLICY_DIFFERS");
  EXPECT_EQ(grpc_->Get("sessions/tour").DebugString(), before.DebugString());

  Ask(kChat, body(Json::array({user}), {{"append", true}}));
  EXPECT_GT(grpc_->Get("sessions/tour").tokens(), before.tokens());
  ASSERT_TRUE(grpc_->Prefill(PrefillText("sessions/tour", "from elsewhere")).ok());
  EXPECT_EQ(CodeOf(Post(kChat, body({user, answer, user})), 409), "CONVERSATION_UNKNOWN");
  Ask(kChat, body(Json::array({user}), {{"append", true}}));
  EXPECT_EQ(CodeOf(Post(kChat, body({user, answer, user})), 409), "CONVERSATION_UNKNOWN") << "still";
}

TEST_F(OpenAi, WhatWasAppendedBelongsToTheList) {
  Start();
  const Json ebb = {{"session", "tour"}};
  const Json append = {{"session", "tour"}, {"append", true}};
  Json messages = {{{"role", "user"}, {"content", "One"}}};
  for (int turn = 0; turn < 3; ++turn) {
    const bool whole = turn != 1;
    const Json sent = whole ? messages : Json::array({messages.back()});
    const Json answer = Ask(kChat, {{"messages", sent}, {"max_tokens", 3}, {"ebb", whole ? ebb : append}});
    messages.push_back(answer["choices"][0]["message"]);
    messages.push_back({{"role", "user"}, {"content", "More"}});
  }
}

TEST_F(OpenAi, ARequestThatIsRefusedLeavesNoSession) {
  Start();
  const Json body = {
      {"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"top_p", 7}, {"ebb", {{"session", "tour"}}}};
  const httplib::Result refused = Post(kChat, body);
  EXPECT_EQ(CodeOf(refused, 400), "SAMPLING_OUT_OF_RANGE");
  EXPECT_EQ(Json::parse(refused->body)["error"]["param"], "top_p");
  EventuallyIdle();
}

TEST_F(OpenAi, SeveralAnswersAndStops) {
  Start();
  const Json two =
      Ask(kCompletions, {{"prompt", "Once"}, {"n", 2}, {"max_tokens", 8}, {"seed", 3}, {"ignore_eos", true}});
  ASSERT_THAT(two["choices"], SizeIs(2));
  const std::string whole = two["choices"][0]["text"];
  EXPECT_NE(whole, two["choices"][1]["text"].get<std::string>());
  EXPECT_EQ(two["usage"]["completion_tokens"], 16);
  std::string printable;  // a stop that the answer has
  for (const char c : whole) {
    if (c > 0x20 && c < 0x7F) printable = c;
  }
  ASSERT_FALSE(printable.empty());
  const Json cut = Ask(kCompletions,
                       {{"prompt", "Once"}, {"max_tokens", 8}, {"seed", 3}, {"ignore_eos", true}, {"stop", printable}});
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(cut["choices"][0]["text"], whole.substr(0, whole.find(printable)));
}

TEST_F(OpenAi, RefusalsAreOpenAisErrors) {
  Start([](ServerOptions& options) { options.message_bytes_max = 64 << 10; });
  const auto chat = [](const Json& more) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
    if (!more.is_null()) body.update(more);
    return body;
  };
  EXPECT_EQ(CodeOf(Post(kChat, chat({{"tools", {{{"type", "function"}}}}})), 400), "UNSUPPORTED_FIELD");
  EXPECT_EQ(CodeOf(Post(kChat, chat({{"stop", 1}})), 400), "WRONG_TYPE");
  EXPECT_EQ(CodeOf(Post(kChat, chat({{"n", 17}})), 400), "OUT_OF_RANGE");
  EXPECT_EQ(CodeOf(Post(kChat, chat({{"n", 0}})), 400), "OUT_OF_RANGE");
  EXPECT_EQ(CodeOf(Post(kChat, chat({{"n", 4000000000}})), 400), "OUT_OF_RANGE");
  EXPECT_EQ(CodeOf(Post(kChat, chat({{"model", "gpt-4"}})), 404), "UNKNOWN_MODEL");
  EXPECT_EQ(CodeOf(Post(kChat, chat({{"ebb", {{"policy", "h2o:x=1"}}}})), 400), "UNKNOWN_PARAMETER");
  EXPECT_EQ(CodeOf(Post(kChat, chat({{"ebb", {{"policy", "h2o:budget=4:sinks=8"}}}})), 400), "BUDGET_TOO_SMALL");
  EXPECT_EQ(CodeOf(Post(kChat, chat({{"ebb", {{"policy", "full:budget=4"}}}})), 400), "LENGTH_LIMIT");
  EXPECT_EQ(CodeOf(Http().Post(kChat, "{", "application/json"), 400), "MALFORMED_BODY");
  EXPECT_EQ(CodeOf(Post("/v1/embeddings", chat({})), 404), "UNKNOWN_PATH");
  EXPECT_EQ(CodeOf(Http().Get(kChat), 405), "WRONG_METHOD");
  EXPECT_EQ(CodeOf(Http().Get("/v1/models/" + std::string(8000, 'x')), 414), "PATH_TOO_LONG");
  EXPECT_EQ(CodeOf(Post(kChat, chat({}), {{"Origin", "http://example.org"}}), 403), "NOT_FOR_PAGES");
  EXPECT_EQ(CodeOf(Post(kChat, chat({}), {{"x-ebb-tenant", "\xE4"}}), 400), "UNPRINTABLE_HEADER");
  EXPECT_EQ(CodeOf(Post(kChat, chat({}), {{"x-ebb-tenant", "A B"}}), 400), "INVALID_TENANT");
  EXPECT_EQ(CodeOf(Post(kChat, chat({}), {{"Content-Encoding", "gzip"}}), 400), "ENCODED_BODY");
  EXPECT_EQ(CodeOf(Post(kChat, chat({{"user", std::string(64 << 10, 'x')}})), 413), "REQUEST_TOO_LARGE");
  EXPECT_GE(server_->Metric("ebb_refusals_total{tenant=\"default\",reason=\"UNSUPPORTED_FIELD\"}"), 1);
  EventuallyIdle();
}

TEST_F(OpenAi, ABodyWithoutItsLengthIsNotRead) {
  Start();
  const std::string answer =
      SendRaw(absl::StrCat("POST ", kChat, " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"))->Rest();
  EXPECT_THAT(answer, HasSubstr("400 Bad Request"));
  EXPECT_THAT(answer, HasSubstr("ENCODED_BODY"));
}

TEST_F(OpenAi, TheTokenIsTheServicesToJudge) {
  const std::string path = folder_.path() + "/tokens";
  std::ofstream(path) << kTokenLine;
  Start([&](ServerOptions& options) { options.auth = {.token = true, .token_file = path}; });
  const Json body = {{"prompt", "Hi"}, {"max_tokens", 2}};
  EXPECT_EQ(CodeOf(Post(kCompletions, body), 401), "NO_CREDENTIAL");
  EXPECT_EQ(CodeOf(Post(kCompletions, body, {{"Authorization", "Bearer other"}}), 401), "BAD_CREDENTIAL");
  const httplib::Headers acme = {{"Authorization", "Bearer acme-1"}};
  EXPECT_EQ(CodeOf(Post(kCompletions, body, {{"Authorization", "Bearer acme-1"}, {"x-ebb-tenant", "ops"}}), 403),
            "OTHER_TENANT");
  EXPECT_EQ(Post(kCompletions, body, acme)->status, 200);
  EXPECT_EQ(CodeOf(Http().Get("/v1/models"), 401), "NO_CREDENTIAL");
  EXPECT_EQ(Http().Get("/v1/models", acme)->status, 200);
  Json kept = body;
  kept["ebb"] = {{"session", "tour"}};
  EXPECT_EQ(CodeOf(Post(kCompletions, kept), 401), "NO_CREDENTIAL");
}

TEST_F(OpenAi, ListsTheModel) {
  Start();
  const std::string name = grpc_->Status().model().name();
  const Json list = Json::parse(Http().Get("/v1/models")->body);
  EXPECT_EQ(list["object"], "list");
  ASSERT_THAT(list["data"], SizeIs(1));
  EXPECT_EQ(list["data"][0]["id"], name);
  EXPECT_EQ(list["data"][0]["context_length"], 512);
  EXPECT_EQ(Json::parse(Http().Get("/v1/models/" + name)->body), list["data"][0]);
  EXPECT_EQ(CodeOf(Http().Get("/v1/models/other"), 404), "UNKNOWN_MODEL");
}

TEST_F(OpenAi, WhoLeavesAStreamLeavesNothingBehind) {
  Start();
  Json body = kEndless;
  body["stream"] = true;
  bool seen = false;
  Stream(body, [&](const std::string& data) {
    seen = data.find("data: ") != std::string::npos;
    return !seen;
  });
  EXPECT_TRUE(seen);
  EventuallyIdle();
}

TEST_F(OpenAi, WhoLeavesBeforeTheAnswerLeavesNothingBehind) {
  Start();
  const std::string body = kEndless.dump();
  const std::string request =
      absl::StrCat("POST ", kCompletions, " HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
  ASSERT_NE(SendRaw(request)->Next(), "") << "it runs";
  EventuallyIdle();
}

TEST_F(OpenAi, AnAnswerThatWasBrokenOffIsNoPartOfTheList) {
  Start();
  Json body = kEndless;
  body["stream"] = true;
  body["ebb"] = {{"session", "tour"}};
  Stream(body, [](const std::string&) { return false; });
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (grpc_->Get("sessions/tour").state() == v1::SESSION_STATE_BUSY && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(
      CodeOf(Post(kChat, {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"ebb", {{"session", "tour"}}}}), 409),
      "CONVERSATION_UNKNOWN");
}

TEST_F(OpenAi, MoreThanItsPlacesAreRefusedAndComeBack) {
  Start([](ServerOptions& options) { options.openai->requests_max = 1; });
  Json body = kEndless;
  body["stream"] = true;
  Stream(body, [&](const std::string&) {
    const httplib::Result refused = Post(kCompletions, {{"prompt", "Hi"}});
    EXPECT_EQ(CodeOf(refused, 503), "FRONT_BUSY");
    EXPECT_EQ(refused->get_header_value("Retry-After"), "1");
    return false;
  });
  EventuallyIdle();
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  int status = 503;
  while (status == 503 && absl::Now() < deadline)
    status = Post(kCompletions, {{"prompt", "Hi"}, {"max_tokens", 1}})->status;
  EXPECT_EQ(status, 200);
}

TEST_F(OpenAi, WhoFillsThePlacesLeavesOthersAsMany) {
  Start([](ServerOptions& options) { options.openai->requests_max = 1; });
  Json body = kEndless;
  body["stream"] = true;
  const httplib::Headers greedy = {{"x-ebb-tenant", "greedy"}}, beta = {{"x-ebb-tenant", "beta"}};
  Stream(
      body,
      [&](const std::string&) {
        EXPECT_EQ(CodeOf(Post(kCompletions, {{"prompt", "Hi"}}, greedy), 503), "FRONT_BUSY");
        const httplib::Result answer = Post(kCompletions, {{"prompt", "Hi"}, {"max_tokens", 1}}, beta);
        EXPECT_EQ(answer ? answer->status : 0, 200) << (answer ? answer->body : httplib::to_string(answer.error()));
        return false;
      },
      greedy);
  EXPECT_EQ(server_->Metric("ebb_refusals_total{tenant=\"greedy\",reason=\"FRONT_BUSY\"}"), 1);
}

// Who sends heads and then nothing has one thread for its place, and few of those that refuse.
TEST_F(OpenAi, BodiesThatDoNotComeHoldNoOthersThreads) {
  Start([](ServerOptions& options) { options.openai->requests_max = 1; });
  const Json short_one = {{"prompt", "Hi"}, {"max_tokens", 1}};
  ASSERT_EQ(Post(kCompletions, short_one, {{"x-ebb-tenant", "greedy"}})->status, 200);  // so that its name is known
  constexpr int kHeads = 40;                                                            // more than there are threads
  std::vector<std::unique_ptr<RawConnection>> slow;
  for (int i = 0; i < kHeads; ++i) {
    slow.push_back(
        SendRaw("POST /v1/completions HTTP/1.1\r\nHost: x\r\nx-ebb-tenant: greedy\r\nContent-Length: 100\r\n\r\n"));
  }
  constexpr int kRead = 8;  // the place, and those that are read to be refused
  EXPECT_TRUE(Eventually([&] {
    return server_->Metric("ebb_refusals_total{tenant=\"greedy\",reason=\"FRONT_BUSY\"}") >= kHeads - kRead;
  }));
  const httplib::Result answer = Post(kCompletions, short_one, {{"x-ebb-tenant", "beta"}});
  EXPECT_EQ(answer ? answer->status : 0, 200);
}

TEST_F(OpenAi, ManyAtOnceAnswerAsOne) {
  Start();
  const Json body = {{"prompt", "Together"}, {"max_tokens", 20}, {"seed", 1}, {"ignore_eos", true}};
  const std::string alone = Ask(kCompletions, body)["choices"][0]["text"];
  std::vector<std::string> texts(24);
  std::vector<std::thread> threads;
  for (std::string& text : texts) {
    threads.emplace_back([&] { text = Ask(kCompletions, body)["choices"][0]["text"]; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(texts, Each(alone));
  EventuallyIdle();
}

TEST_F(OpenAi, AStreamEndsWithTheServer) {
  Start();
  Json body = kEndless;
  body["stream"] = true;
  std::string all;
  std::thread drain;
  Stream(body, [&](const std::string& data) {
    all += data;
    if (!drain.joinable()) drain = std::thread([&] { server_->server().Drain(absl::ZeroDuration()); });
    return true;
  });
  drain.join();
  const auto events = EventsOf(all);
  ASSERT_FALSE(events.empty());
  EXPECT_THAT(events.back(), HasSubstr("\"error\"")) << "it says why";
  EXPECT_THAT(events.back(), HasSubstr("DRAINING"));
}

// With the certificate of the gRPC port, also after it was replaced; whoever does not trust it, or speaks none, gets
// nothing.
TEST_F(OpenAi, SpeaksTlsWithTheCertificateInUse) {
  const Certificates made;
  made.Authority("ca");
  made.Authority("other-ca");
  made.Leaf("server", "ca", "localhost", "DNS:localhost");
  Start([&](ServerOptions& options) {
    options.tls =
        TlsOptions{.cert = made.Path("server.pem"), .key = made.Path("server.key"), .reload = absl::Milliseconds(20)};
    options.openai->tls = true;
  });
  const auto ask = [&](const std::string& ca) {
    httplib::SSLClient client("localhost", port());
    client.set_read_timeout(60);
    client.set_ca_cert_path(made.Path(ca + ".pem"));
    client.enable_server_certificate_verification(true);
    return client.Post(kCompletions, {}, R"({"prompt": "Once", "max_tokens": 8, "stream": true})", "application/json");
  };
  const httplib::Result answer = ask("ca");
  ASSERT_TRUE(answer) << httplib::to_string(answer.error());
  EXPECT_EQ(answer->status, 200) << answer->body;
  EXPECT_EQ(EventsOf(answer->body).back(), "[DONE]");
  EXPECT_EQ(ask("other-ca").error(), httplib::Error::SSLServerVerification);
  EXPECT_FALSE(Post(kCompletions, Json::object())) << "in the clear";

  made.Leaf("server", "other-ca", "localhost", "DNS:localhost");
  const absl::Time end = absl::Now() + absl::Seconds(60);
  while (!ask("other-ca") && absl::Now() < end) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_TRUE(ask("other-ca"));
  EXPECT_EQ(ask("ca").error(), httplib::Error::SSLServerVerification);
}

}  // namespace
}  // namespace ebb
