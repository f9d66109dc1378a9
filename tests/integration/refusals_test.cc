// Malformed requests of every kind get their code, their reason and the path of the field.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/calibration_file.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using Code = grpc::StatusCode;

struct Expected {
  Code code = Code::OK;
  std::string reason = {};
  std::string field = {};
};

// A request that would be taken, one change that makes it wrong, and the answer.
template <typename Request>
struct Case {
  std::function<void(Request&)> change;
  Expected expected;
};

void ExpectRefused(const grpc::Status& status, const Expected& expected) {
  const client::ErrorDetails details = client::ReadDetails(status);
  EXPECT_EQ(status.error_code(), expected.code) << client::Describe(status);
  EXPECT_EQ(details.reason, expected.reason) << client::Describe(status);
  EXPECT_EQ(details.field, expected.field) << client::Describe(status);
  EXPECT_FALSE(status.error_message().empty());
}

class Refusals : public testing::Test {
 protected:
  Refusals() {
    session_ = client_.Create(SessionWith(StreamingPolicy(24))).name();
    EXPECT_TRUE(client_.Prefill(PrefillText(session_, "Once upon a time")).ok());
    empty_ = client_.Create(SessionWith(StreamingPolicy(24))).name();
  }

  template <typename Request, typename Call>
  void Check(const std::vector<Case<Request>>& cases, const Request& good, const Call& call) {
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "case " << i << ", " << cases[i].expected.reason);
      Request request = good;
      cases[i].change(request);
      ExpectRefused(call(request), cases[i].expected);
    }
    EXPECT_TRUE(call(good).ok()) << "the request without the mistake is taken";
  }

  TestServer server_;
  TestClient client_{server_.address()};
  std::string session_;
  std::string empty_;
};

TEST_F(Refusals, OfCreateSession) {
  using Request = v1::CreateSessionRequest;
  const std::vector<Case<Request>> cases = {
      {[](Request& r) { r.set_session_id("Not A Name"); }, {Code::INVALID_ARGUMENT, "INVALID_NAME", "session_id"}},
      {[this](Request& r) { r.set_session_id(session_.substr(9)); },
       {Code::ALREADY_EXISTS, "NAME_TAKEN", "session_id"}},
      {[](Request& r) { r.set_model("gpt-5"); }, {Code::NOT_FOUND, "UNKNOWN_MODEL", "model"}},
      {[](Request& r) { r.mutable_policy()->mutable_trigger()->set_budget(3); },
       {Code::INVALID_ARGUMENT, "BUDGET_TOO_SMALL", "policy.trigger.budget"}},
      {[](Request& r) { r.mutable_policy()->mutable_trigger()->set_budget((1 << 24) + 1); },
       {Code::INVALID_ARGUMENT, "BUDGET_TOO_LARGE", "policy.trigger.budget"}},
      {[](Request& r) { r.mutable_policy()->mutable_trigger()->set_budget_ratio(1.5); },
       {Code::INVALID_ARGUMENT, "RATIO_OUT_OF_RANGE", "policy.trigger.budget_ratio"}},
      {[](Request& r) { r.mutable_policy()->mutable_trigger()->set_slack((1 << 24) + 1); },
       {Code::INVALID_ARGUMENT, "VALUE_TOO_LARGE", "policy.trigger.slack"}},
      {[](Request& r) { r.mutable_policy()->mutable_snapkv()->set_window(0); },
       {Code::INVALID_ARGUMENT, "PARAMETER_OUT_OF_RANGE", "policy.snapkv.window"}},
      {[](Request& r) { r.mutable_policy()->mutable_snapkv()->set_pooling(static_cast<v1::Snapkv::Pooling>(9)); },
       {Code::INVALID_ARGUMENT, "UNKNOWN_ENUM_VALUE", "policy.snapkv.pooling"}},
      {[](Request& r) {
         r.mutable_policy()->mutable_snapkv()->set_pooling(v1::Snapkv::NONE);
         r.mutable_policy()->mutable_snapkv()->set_kernel(5);
       },
       {Code::INVALID_ARGUMENT, "MEANINGLESS_COMBINATION", "policy.snapkv.kernel"}},
      {[](Request& r) {
         r.mutable_policy()->mutable_semantic()->set_semantic_ratio(0);
         r.mutable_policy()->mutable_semantic()->set_recent_ratio(0);
       },
       {Code::INVALID_ARGUMENT, "MEANINGLESS_COMBINATION", "policy.semantic.semantic_ratio"}},
      {[](Request& r) {
         r.mutable_policy()->mutable_full();
         r.mutable_policy()->mutable_protect()->set_sinks(1);
       },
       {Code::INVALID_ARGUMENT, "MEANINGLESS_COMBINATION", "policy.protect.sinks"}},
      {[](Request& r) { r.mutable_policy()->set_positions(static_cast<v1::Positions>(7)); },
       {Code::INVALID_ARGUMENT, "UNKNOWN_ENUM_VALUE", "policy.positions"}},
      {[](Request& r) { r.mutable_sampling()->set_top_p(2); },
       {Code::INVALID_ARGUMENT, "SAMPLING_OUT_OF_RANGE", "sampling.top_p"}},
      {[](Request& r) { r.set_block_size(0); }, {Code::INVALID_ARGUMENT, "OUT_OF_RANGE", "block_size"}},
      {[](Request& r) { r.set_block_size(513); }, {Code::INVALID_ARGUMENT, "OUT_OF_RANGE", "block_size"}},
      {[](Request& r) { r.mutable_ttl()->set_nanos(1); }, {Code::INVALID_ARGUMENT, "OUT_OF_RANGE", "ttl"}},
      {[](Request& r) { r.set_request_id(std::string(129, 'x')); }, {Code::INVALID_ARGUMENT, "TOO_LONG", "request_id"}},
  };
  Check(cases, SessionWith(StreamingPolicy(24)), [this](const Request& request) {
    v1::Session session;
    return client_.Create(request, &session);
  });
}

TEST_F(Refusals, OfSessionsByName) {
  using Request = v1::GetSessionRequest;
  const std::vector<Case<Request>> cases = {
      {[](Request& r) { r.set_name("nonsense"); }, {Code::INVALID_ARGUMENT, "INVALID_NAME", "name"}},
      {[](Request& r) { r.clear_name(); }, {Code::INVALID_ARGUMENT, "INVALID_NAME", "name"}},
      {[](Request& r) { r.set_name("sessions/none"); }, {Code::NOT_FOUND, "UNKNOWN_SESSION", ""}},
  };
  Request good;
  good.set_name(session_);
  Check(cases, good, [this](const Request& request) {
    v1::Session session;
    return client_.sessions().GetSession(client_.Context().get(), request, &session);
  });
  TestClient stranger(server_.address(), "stranger");
  EXPECT_EQ(stranger.Delete(session_).error_code(), Code::NOT_FOUND) << "another tenant's session is not there";
}

TEST_F(Refusals, OfListAndDelete) {
  v1::ListSessionsRequest list;
  v1::ListSessionsResponse listed;
  list.set_page_size(1001);
  ExpectRefused(client_.sessions().ListSessions(client_.Context().get(), list, &listed),
                {Code::INVALID_ARGUMENT, "OUT_OF_RANGE", "page_size"});
  list.set_page_size(1);
  list.set_page_token("***");
  ExpectRefused(client_.sessions().ListSessions(client_.Context().get(), list, &listed),
                {Code::INVALID_ARGUMENT, "INVALID_PAGE_TOKEN", "page_token"});
  v1::DeleteSessionRequest remove;
  v1::DeleteSessionResponse removed;
  remove.set_name(session_);
  remove.set_expected_generation(99);
  const grpc::Status status = client_.sessions().DeleteSession(client_.Context().get(), remove, &removed);
  ExpectRefused(status, {Code::ABORTED, "GENERATION_MISMATCH", ""});
  EXPECT_EQ(client::ReadDetails(status).metadata.at("expected_generation"), "99");
  EXPECT_EQ(client::ReadDetails(status).metadata.at("generation"), std::to_string(client_.Get(session_).generation()));
}

TEST_F(Refusals, OfPrefill) {
  using Request = v1::PrefillRequest;
  const std::vector<Case<Request>> cases = {
      {[](Request& r) { r.set_session("sessions/none"); }, {Code::NOT_FOUND, "UNKNOWN_SESSION", ""}},
      {[](Request& r) { r.clear_prompt(); }, {Code::INVALID_ARGUMENT, "EMPTY_PROMPT", "prompt"}},
      {[](Request& r) { r.mutable_prompt()->set_text(""); }, {Code::INVALID_ARGUMENT, "EMPTY_PROMPT", "prompt"}},
      {[](Request& r) { r.mutable_prompt()->mutable_tokens(); }, {Code::INVALID_ARGUMENT, "EMPTY_PROMPT", "prompt"}},
      {[](Request& r) { r.mutable_prompt()->mutable_tokens()->add_ids(261); },
       {Code::INVALID_ARGUMENT, "TOKEN_OUT_OF_RANGE", "prompt.tokens.ids[0]"}},
      {[](Request& r) { r.mutable_prompt()->mutable_chat(); },
       {Code::INVALID_ARGUMENT, "NO_MESSAGES", "prompt.chat.messages"}},
      {[](Request& r) { r.mutable_prompt()->mutable_chat()->add_messages()->set_role("robot"); },
       {Code::INVALID_ARGUMENT, "UNKNOWN_ROLE", "prompt.chat.messages[0].role"}},
      {[](Request& r) { r.set_block_size(0); }, {Code::INVALID_ARGUMENT, "OUT_OF_RANGE", "block_size"}},
      {[](Request& r) { r.set_block_size(17); }, {Code::INVALID_ARGUMENT, "OUT_OF_RANGE", "block_size"}},
      {[](Request& r) { r.set_expected_generation(99); }, {Code::ABORTED, "GENERATION_MISMATCH", ""}},
  };
  Check(cases, PrefillText(session_, "more"), [this](const Request& request) { return client_.Prefill(request); });
}

TEST_F(Refusals, OfDecode) {
  using Request = v1::DecodeRequest;
  const std::vector<Case<Request>> cases = {
      {[](Request& r) { r.set_session("none"); }, {Code::INVALID_ARGUMENT, "INVALID_NAME", "session"}},
      {[this](Request& r) { r.set_session(empty_); }, {Code::FAILED_PRECONDITION, "EMPTY_SESSION", ""}},
      {[](Request& r) { r.mutable_stopping()->set_max_tokens(0); },
       {Code::INVALID_ARGUMENT, "OUT_OF_RANGE", "stopping.max_tokens"}},
      {[](Request& r) { r.mutable_stopping()->add_stop(""); },
       {Code::INVALID_ARGUMENT, "INVALID_STOP", "stopping.stop[0]"}},
      {[](Request& r) { r.mutable_stopping()->set_logprobs(21); },
       {Code::INVALID_ARGUMENT, "OUT_OF_RANGE", "stopping.logprobs"}},
      {[](Request& r) { r.mutable_sampling()->set_temperature(-1); },
       {Code::INVALID_ARGUMENT, "SAMPLING_OUT_OF_RANGE", "sampling.temperature"}},
      {[](Request& r) { r.set_resume_from(1000000); }, {Code::INVALID_ARGUMENT, "OUT_OF_RANGE", "resume_from"}},
      {[](Request& r) { r.set_resume_from(uint64_t{1} << 63); },
       {Code::INVALID_ARGUMENT, "OUT_OF_RANGE", "resume_from"}},
      {[](Request& r) {
         r.set_resume_from(0);
         r.mutable_stopping()->set_logprobs(1);
       },
       {Code::INVALID_ARGUMENT, "LOGPROBS_NOT_KEPT", "stopping.logprobs"}},
      {[](Request& r) { r.set_expected_generation(99); }, {Code::ABORTED, "GENERATION_MISMATCH", ""}},
  };
  Check(cases, DecodeTokens(session_, 3), [this](const Request& request) { return client_.Decode(request).status; });
}

TEST_F(Refusals, OfGenerate) {
  using Request = v1::GenerateRequest;
  const std::vector<Case<Request>> named = {
      {[](Request& r) { r.mutable_policy(); }, {Code::INVALID_ARGUMENT, "ONLY_WITHOUT_SESSION", "policy"}},
      {[](Request& r) { r.set_model("tiny"); }, {Code::INVALID_ARGUMENT, "ONLY_WITHOUT_SESSION", "model"}},
      {[](Request& r) { r.clear_prompt(); }, {Code::INVALID_ARGUMENT, "EMPTY_PROMPT", "prompt"}},
  };
  const auto call = [this](const Request& request) { return client_.Generate(request).status; };
  Check(named, GenerateText(session_, "more", 2), call);
  const std::vector<Case<Request>> once = {
      {[](Request& r) { r.set_model("none"); }, {Code::NOT_FOUND, "UNKNOWN_MODEL", "model"}},
      {[](Request& r) { r.set_expected_generation(1); },
       {Code::INVALID_ARGUMENT, "ONLY_WITH_SESSION", "expected_generation"}},
      {[](Request& r) { r.mutable_policy()->mutable_trigger()->set_overflow(0); },
       {Code::INVALID_ARGUMENT, "OVERFLOW_ZERO", "policy.trigger.overflow"}},
      {[](Request& r) { r.set_block_size(1000); }, {Code::INVALID_ARGUMENT, "OUT_OF_RANGE", "block_size"}},
  };
  Check(once, GenerateText("", "Once", 2), call);
}

TEST_F(Refusals, OfScore) {
  using Request = v1::ScoreRequest;
  const std::vector<Case<Request>> cases = {
      {[](Request& r) { r.clear_target(); }, {Code::INVALID_ARGUMENT, "EMPTY_PROMPT", "target"}},
      {[](Request& r) { r.mutable_context(); }, {Code::INVALID_ARGUMENT, "EMPTY_PROMPT", "context"}},
      {[](Request& r) { r.set_model("none"); }, {Code::NOT_FOUND, "UNKNOWN_MODEL", "model"}},
      {[](Request& r) { r.set_block_size(0); }, {Code::INVALID_ARGUMENT, "OUT_OF_RANGE", "block_size"}},
  };
  Request good;
  good.mutable_target()->set_text("Once upon a time");
  Check(cases, good, [this](const Request& request) {
    v1::ScoreResponse response;
    return client_.inference().Score(client_.Context().get(), request, &response);
  });
}

TEST_F(Refusals, OfTokenizeAndDetokenize) {
  using Request = v1::TokenizeRequest;
  const std::vector<Case<Request>> cases = {
      {[](Request& r) { r.clear_prompt(); }, {Code::INVALID_ARGUMENT, "EMPTY_PROMPT", "prompt"}},
      {[](Request& r) { r.mutable_prompt()->mutable_tokens(); },
       {Code::INVALID_ARGUMENT, "ALREADY_TOKENS", "prompt.tokens"}},
      {[](Request& r) { r.set_model("none"); }, {Code::NOT_FOUND, "UNKNOWN_MODEL", "model"}},
  };
  Request good;
  good.mutable_prompt()->set_text("text");
  Check(cases, good, [this](const Request& request) {
    v1::TokenizeResponse response;
    return client_.inference().Tokenize(client_.Context().get(), request, &response);
  });
  v1::DetokenizeRequest detokenize;
  detokenize.add_ids(5);
  detokenize.add_ids(1 << 30);
  v1::DetokenizeResponse text;
  ExpectRefused(client_.inference().Detokenize(client_.Context().get(), detokenize, &text),
                {Code::INVALID_ARGUMENT, "TOKEN_OUT_OF_RANGE", "ids[1]"});
}

// Names a lane, and slots of it.
void AddLane(v1::EvictRequest& request, uint32_t head, const std::vector<uint32_t>& slots) {
  v1::LaneSlots& lane = *request.mutable_slots()->add_lanes();
  lane.set_head(head);
  lane.mutable_slots()->Add(slots.begin(), slots.end());
}

TEST_F(Refusals, OfEvict) {
  using Request = v1::EvictRequest;
  const std::vector<Case<Request>> cases = {
      {[](Request& r) { AddLane(r, 0, {5}); }, {Code::INVALID_ARGUMENT, "LANES_MISSING", "slots.lanes"}},
      {[](Request& r) { AddLane(r, 0, {5}), AddLane(r, 0, {6}); },
       {Code::INVALID_ARGUMENT, "LANE_REPEATED", "slots.lanes[1]"}},
      {[](Request& r) {
         AddLane(r, 0, {5}), AddLane(r, 1, {5, 6});
       },
       {Code::INVALID_ARGUMENT, "LANES_UNEQUAL", "slots.lanes[1]"}},
      {[](Request& r) { AddLane(r, 0, {1000}); }, {Code::INVALID_ARGUMENT, "SLOT_NOT_LIVE", "slots.lanes[0].slots"}},
      {[](Request& r) {
         AddLane(r, 0, {5, 5});
       },
       {Code::INVALID_ARGUMENT, "SLOT_REPEATED", "slots.lanes[0].slots"}},
      {[](Request& r) { r.clear_what(); }, {Code::INVALID_ARGUMENT, "MISSING", "what"}},
      {[](Request& r) { r.set_session("sessions/none"); }, {Code::NOT_FOUND, "UNKNOWN_SESSION", ""}},
      {[](Request& r) { r.mutable_range()->set_start(6); }, {Code::INVALID_ARGUMENT, "RANGE_EMPTY", "range"}},
      {[](Request& r) { r.mutable_keep()->set_count(0); }, {Code::INVALID_ARGUMENT, "KEEP_OUT_OF_RANGE", "keep.count"}},
      {[](Request& r) {
         r.mutable_keep()->set_count(8);
         r.mutable_keep()->set_scorer("oracle");
       },
       {Code::NOT_FOUND, "UNKNOWN_SCORER", "keep.scorer"}},
      {[](Request& r) {
         r.mutable_keep()->set_count(8);
         r.mutable_keep()->set_scorer("nacl");
       },
       {Code::FAILED_PRECONDITION, "SCORER_HAS_NO_STATE", "keep.scorer"}},
      {[](Request& r) {
         r.mutable_keep()->set_count(8);
         r.mutable_keep()->set_scorer("full");
       },
       {Code::INVALID_ARGUMENT, "MEANINGLESS_COMBINATION", "keep.scorer"}},
      {[](Request& r) { r.set_older_than(0); }, {Code::INVALID_ARGUMENT, "NOTHING_WOULD_STAY", "what"}},
      {[](Request& r) { r.mutable_slots()->add_lanes()->set_layer(99); },
       {Code::INVALID_ARGUMENT, "LANE_OUT_OF_RANGE", "slots.lanes[0].layer"}},
      {[](Request& r) { r.set_expected_generation(99); }, {Code::ABORTED, "GENERATION_MISMATCH", ""}},
  };
  Request good;
  good.set_session(session_);
  good.mutable_range()->set_start(5);
  good.mutable_range()->set_end(6);
  Check(cases, good, [this](const Request& request) {
    v1::EvictResponse response;
    return client_.eviction().Evict(client_.Context().get(), request, &response);
  });
}

TEST_F(Refusals, OfDescribeCache) {
  using Request = v1::DescribeCacheRequest;
  const std::vector<Case<Request>> cases = {
      {[](Request& r) { r.set_session("sessions/none"); }, {Code::NOT_FOUND, "UNKNOWN_SESSION", ""}},
      {[](Request& r) { r.set_layer(2); }, {Code::INVALID_ARGUMENT, "OUT_OF_RANGE", "layer"}},
      {[](Request& r) { r.set_head(2); }, {Code::INVALID_ARGUMENT, "OUT_OF_RANGE", "head"}},
      {[](Request& r) { r.set_stride(0); }, {Code::INVALID_ARGUMENT, "OUT_OF_RANGE", "stride"}},
  };
  Request good;
  good.set_session(session_);
  Check(cases, good, [this](const Request& request) {
    v1::DescribeCacheResponse response;
    return client_.eviction().DescribeCache(client_.Context().get(), request, &response);
  });
}

TEST_F(Refusals, OfATenantsName) {
  TestClient nobody(server_.address(), "Not a name");
  v1::Session session;
  const Expected expected = {Code::INVALID_ARGUMENT, "INVALID_TENANT", "x-ebb-tenant"};
  ExpectRefused(nobody.Create(SessionWith(StreamingPolicy(24)), &session), expected);
  ExpectRefused(nobody.Decode(DecodeTokens(session_, 1)).status, expected);
  v1::ListPoliciesResponse policies;
  ExpectRefused(nobody.admin().ListPolicies(nobody.Context().get(), {}, &policies), expected);
}

v1::PrefillRequest SystemMessage(const std::string& session) {
  v1::PrefillRequest request;
  request.set_session(session);
  v1::ChatMessage& message = *request.mutable_prompt()->mutable_chat()->add_messages();
  message.set_role("system");
  message.set_content("Be brief.");
  return request;
}

// A policy that needs a calibration is never another one instead.
TEST(RefusalsOfACalibratedPolicy, WithoutACalibrationOrWithAForeignOne) {
  const TinyModelFile other({.seed = 2});
  const std::string foreign = CalibrationPath(other.path());
  for (const auto& [path, reason] :
       {std::pair(std::string(), "CALIBRATION_MISSING"), {foreign, "CALIBRATION_FOREIGN"}}) {
    SCOPED_TRACE(reason);
    TestServer server([&](ServerOptions& options) { options.engine.calibration_path = path; }, {.calibrated = false});
    TestClient client(server.address());
    const Expected expected = {Code::FAILED_PRECONDITION, reason, "policy.calibrated"};
    v1::PolicySpec policy = StreamingPolicy(64);
    policy.mutable_calibrated();
    v1::Session session;
    ExpectRefused(client.Create(SessionWith(policy), &session), expected);

    const std::string name = client.Create(SessionWith(StreamingPolicy(64))).name();
    v1::SetPolicyRequest change;
    change.set_session(name);
    *change.mutable_policy() = policy;
    v1::SetPolicyResponse changed;
    ExpectRefused(client.eviction().SetPolicy(client.Context().get(), change, &changed), expected);
    EXPECT_TRUE(client.Get(name).policy().has_streaming());
  }
}

TEST(RefusalsOfAChat, InATemplateThatFails) {
  const TestServer server({}, {.chat_template = "{% for m in messages %}\n{{ m.content | nope }}{% endfor %}"});
  TestClient client(server.address());
  const std::string session = client.Create(SessionWith(StreamingPolicy(24))).name();
  const grpc::Status status = client.Prefill(SystemMessage(session));
  ExpectRefused(status, {Code::FAILED_PRECONDITION, "CHAT_TEMPLATE_FAILED", ""});
  EXPECT_NE(status.error_message().find("line 2: there is no filter 'nope'"), std::string::npos);
  EXPECT_TRUE(client.Prefill(PrefillText(session, "Be brief.")).ok()) << "texts need no template";
}

TEST(RefusalsOfAChat, OfAModelWithoutATemplate) {
  const TestServer server({}, {.without_chat_template = true});
  TestClient client(server.address());
  const std::string session = client.Create(SessionWith(StreamingPolicy(24))).name();
  ExpectRefused(client.Prefill(SystemMessage(session)), {Code::FAILED_PRECONDITION, "NO_CHAT_TEMPLATE", ""});
}

TEST(RefusalsOfAChat, ThatTheTemplateDoesNotTake) {
  const TestServer server({}, {.chat_template = "{{ raise_exception('System role not supported') }}"});
  TestClient client(server.address());
  const std::string session = client.Create(SessionWith(StreamingPolicy(24))).name();
  const grpc::Status status = client.Prefill(SystemMessage(session));
  ExpectRefused(status, {Code::INVALID_ARGUMENT, "CHAT_TEMPLATE_REFUSED", "prompt.chat.messages"});
  EXPECT_NE(status.error_message().find("System role not supported"), std::string::npos);
}

TEST(RefusalsOfAChat, WithToolsThatAreNoJson) {
  const TestServer server;
  TestClient client(server.address());
  v1::PrefillRequest request = SystemMessage(client.Create(SessionWith(StreamingPolicy(24))).name());
  request.mutable_prompt()->mutable_chat()->add_tools("{");
  ExpectRefused(client.Prefill(request), {Code::INVALID_ARGUMENT, "BAD_CHAT_JSON", "prompt.chat.tools[0]"});
}

TEST_F(Refusals, OfAMessageThatIsTooLarge) {
  v1::TokenizeRequest request;
  request.mutable_prompt()->set_text(std::string(5 << 20, 'x'));
  v1::TokenizeResponse response;
  const grpc::Status status = client_.inference().Tokenize(client_.Context().get(), request, &response);
  EXPECT_EQ(status.error_code(), Code::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace ebb
