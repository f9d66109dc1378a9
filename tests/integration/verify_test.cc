// Verify and Accept as clients see them: drafts accepted and rejected on caches of every kind of fullness, and every
// way to ask wrongly.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/test_server.h"

namespace ebb {
namespace {

using client::ReadDetails;
using ::testing::ElementsAreArray;
using ::testing::SizeIs;
using Code = grpc::StatusCode;

constexpr char kFullCache[] = "A cache that is full has room for a draft.";

class VerifyTest : public testing::Test {
 protected:
  std::string Open(uint32_t budget, float temperature, uint32_t block_size = 16) {
    v1::CreateSessionRequest request = SessionWith(StreamingPolicy(budget), block_size);
    request.mutable_sampling()->set_temperature(temperature);
    request.mutable_sampling()->set_seed(11);
    return client_.Create(request).name();
  }
  std::string Filled(uint32_t budget, float temperature = 0) {
    std::string name = Open(budget, temperature);
    EXPECT_TRUE(client_.Prefill(PrefillText(name, kFullCache)).ok());
    return name;
  }
  static v1::VerifyRequest Draft(const std::string& session, const std::vector<uint32_t>& tokens) {
    v1::VerifyRequest request;
    request.set_session(session);
    request.mutable_draft_tokens()->Add(tokens.begin(), tokens.end());
    return request;
  }
  grpc::Status Verify(const v1::VerifyRequest& request, v1::VerifyResponse* response) {
    response->Clear();
    return client_.inference().Verify(client_.Context().get(), request, response);
  }
  v1::VerifyResponse Verified(const v1::VerifyRequest& request) {
    v1::VerifyResponse response;
    const grpc::Status status = Verify(request, &response);
    EXPECT_TRUE(status.ok()) << client::Describe(status);
    return response;
  }
  grpc::Status Accept(const std::string& session, uint32_t count, v1::AcceptResponse* response) {
    v1::AcceptRequest request;
    request.set_session(session);
    request.set_count(count);
    return client_.inference().Accept(client_.Context().get(), request, response);
  }
  std::vector<uint32_t> Decoded(const std::string& session, uint32_t count) {
    const Answer answer = client_.Decode(DecodeTokens(session, count));
    EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
    return answer.tokens;
  }
  // By drafts of which every one but each third is right to its end.
  std::vector<uint32_t> BySpeculation(const std::string& session, const std::vector<uint32_t>& right, size_t length) {
    std::vector<uint32_t> tokens;
    uint64_t generation = client_.Get(session).generation();
    for (uint32_t round = 0; tokens.size() + length < right.size(); ++round) {
      std::vector<uint32_t> draft(right.begin() + tokens.size(), right.begin() + tokens.size() + length);
      const size_t wrong = round % 3 == 2 ? round % length : length;
      if (wrong < length) draft[wrong] = (draft[wrong] + 1) % 256;
      v1::VerifyRequest request = Draft(session, draft);
      request.set_expected_generation(generation);
      const v1::VerifyResponse response = Verified(request);
      EXPECT_EQ(response.accepted(), wrong);
      EXPECT_THAT(response.scores(), SizeIs(length));
      EXPECT_EQ(response.usage().completion_tokens(), wrong + 1);
      EXPECT_EQ(response.finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
      EXPECT_GT(response.generation(), generation);
      generation = response.generation();
      tokens.insert(tokens.end(), draft.begin(), draft.begin() + response.accepted());
      tokens.push_back(response.next().token());
    }
    return tokens;
  }
  void ExpectRefusal(const grpc::Status& status, Code code, const std::string& reason, const std::string& field = {}) {
    EXPECT_EQ(status.error_code(), code) << client::Describe(status);
    EXPECT_EQ(ReadDetails(status).reason, reason);
    EXPECT_EQ(ReadDetails(status).field, field);
  }

  TestServer server_{[](ServerOptions& options) {
    options.http_listen = {.host = "127.0.0.1", .port = 0};
    options.work.live.shadow = {.share = 1};  // every session has a twin, which knows no drafts
  }};
  TestClient client_{server_.address(), "acme"};
};

TEST_F(VerifyTest, YieldsTheTokensOfDecodeAtAnyTemperatureWhileNobodyIsEvicted) {
  for (const float temperature : {0.0F, 0.9F}) {
    SCOPED_TRACE(temperature);
    const std::vector<uint32_t> right = Decoded(Filled(300, temperature), 100);
    const std::string session = Filled(300, temperature);
    const std::vector<uint32_t> tokens = BySpeculation(session, right, 7);
    EXPECT_GT(tokens.size(), 80U);
    EXPECT_THAT(tokens, ElementsAreArray(right.begin(), right.begin() + tokens.size()));
    const v1::Session state = client_.Get(session);
    EXPECT_EQ(state.completion_tokens(), tokens.size());
    EXPECT_EQ(state.tokens(), state.prompt_tokens() + tokens.size());
    // The log goes on where Decode's would.
    EXPECT_THAT(Decoded(session, 3),
                ElementsAreArray(right.begin() + tokens.size(), right.begin() + tokens.size() + 3));
  }
  EXPECT_GT(server_.Metric("ebb_drafted_tokens_total{tenant=\"acme\",source=\"client\"}"), 0);
  EXPECT_LT(server_.Metric("ebb_accepted_draft_tokens_total{tenant=\"acme\",source=\"client\"}"),
            server_.Metric("ebb_drafted_tokens_total{tenant=\"acme\",source=\"client\"}"));
}

TEST_F(VerifyTest, AtAFullCacheRejectedDraftsLeaveNoTrace) {
  for (const char* scorer : {"streaming", "h2o"}) {
    SCOPED_TRACE(scorer);
    v1::CreateSessionRequest request = SessionWith(StreamingPolicy(24), 16);
    if (std::string(scorer) == "h2o") request.mutable_policy()->mutable_h2o();
    request.mutable_sampling()->set_temperature(0);
    const std::string decodes = client_.Create(request).name();
    const std::string speculates = client_.Create(request).name();
    ASSERT_TRUE(client_.Prefill(PrefillText(decodes, kFullCache)).ok());
    ASSERT_TRUE(client_.Prefill(PrefillText(speculates, kFullCache)).ok());
    const std::vector<uint32_t> right = Decoded(decodes, 30);
    std::vector<uint32_t> tokens;
    while (tokens.size() < right.size()) {
      std::vector<uint32_t> draft(16, (right[tokens.size()] + 1) % 256);  // wrong from its first token on
      const v1::VerifyResponse response = Verified(Draft(speculates, draft));
      ASSERT_EQ(response.accepted(), 0U);
      EXPECT_EQ(response.usage().cache_length(), 24U);
      EXPECT_EQ(response.usage().evicted_tokens(), 1U);
      tokens.push_back(response.next().token());
    }
    EXPECT_THAT(tokens, ElementsAreArray(right));
  }
}

TEST_F(VerifyTest, AcceptsAWholeBlockAtAFullCacheAndStaysInItsBudget) {
  const std::string session = Filled(24);
  v1::VerifyRequest request = Draft(session, std::vector<uint32_t>(16, 'a'));
  (*request.mutable_sampling()->mutable_logit_bias())['a'] = 100;  // the model is made to say so
  const v1::Session before = client_.Get(session);
  const v1::VerifyResponse response = Verified(request);
  EXPECT_EQ(response.accepted(), 16U);
  EXPECT_EQ(response.next().token(), 'a');
  EXPECT_EQ(response.usage().evicted_tokens(), 17U);
  EXPECT_EQ(response.usage().cache_length(), 24U);
  const v1::Session after = client_.Get(session);
  EXPECT_EQ(after.tokens(), before.tokens() + 17);
  EXPECT_EQ(after.reserved_bytes(), before.reserved_bytes());
  EXPECT_EQ(after.pending_draft_tokens(), 0U);
}

TEST_F(VerifyTest, EndsAtAnEndToken) {
  const std::string session = Filled(300);
  v1::VerifyRequest request = Draft(session, {kTinyEos, 1, 2});
  (*request.mutable_sampling()->mutable_logit_bias())[kTinyEos] = 100;
  const v1::VerifyResponse response = Verified(request);
  EXPECT_EQ(response.accepted(), 1U);
  EXPECT_THAT(response.scores(), SizeIs(1)) << "what lies behind an end token is ignored";
  EXPECT_FALSE(response.has_next());
  EXPECT_EQ(response.finish_reason(), v1::FINISH_REASON_END_OF_SEQUENCE);
}

TEST_F(VerifyTest, WithProbabilitiesRejectsWhatTheModelWouldNotSay) {
  const std::string session = Filled(300, 1);
  v1::VerifyRequest request = Draft(session, {'x', 'y'});
  for (const uint32_t token : {'x', 'y'}) {
    v1::DraftDistribution* const q = request.add_draft_probabilities();
    q->add_tokens(token);
    q->add_probabilities(1);
  }
  auto& bias = *request.mutable_sampling()->mutable_logit_bias();
  bias['x'] = 100;
  v1::VerifyResponse response = Verified(request);
  EXPECT_EQ(response.accepted(), 1U);
  EXPECT_EQ(response.next().token(), 'x') << "(p - q)+ has nothing but x";
}

TEST_F(VerifyTest, ManualDraftsWaitForAcceptAndNothingElse) {
  const std::string session = Filled(24);
  const std::string twin = Filled(24);
  const v1::Session before = client_.Get(session);
  v1::VerifyRequest request = Draft(session, {1, 2, 3, 4, 5});
  request.set_mode(v1::VERIFY_MODE_MANUAL);
  request.set_logprobs(2);
  const v1::VerifyResponse response = Verified(request);
  EXPECT_EQ(response.pending(), 5U);
  EXPECT_EQ(response.accepted(), 0U);
  ASSERT_THAT(response.scores(), SizeIs(5));
  EXPECT_EQ(response.scores(4).token(), 5U);
  EXPECT_THAT(response.scores(4).top(), SizeIs(2));
  EXPECT_TRUE(response.has_next());
  v1::Session waiting = client_.Get(session);
  EXPECT_EQ(waiting.pending_draft_tokens(), 5U);
  EXPECT_EQ(waiting.tokens(), before.tokens());
  EXPECT_EQ(waiting.cache_length(), before.cache_length());
  EXPECT_EQ(waiting.used_bytes(), before.used_bytes());

  const Code kFailed = Code::FAILED_PRECONDITION;
  v1::VerifyResponse again;
  ExpectRefusal(Verify(request, &again), kFailed, "DRAFT_PENDING");
  ExpectRefusal(client_.Decode(DecodeTokens(session, 1)).status, kFailed, "DRAFT_PENDING");
  ExpectRefusal(client_.Prefill(PrefillText(session, "x")), kFailed, "DRAFT_PENDING");
  v1::EvictRequest evict;
  evict.set_session(session);
  evict.mutable_keep()->set_count(20);
  v1::EvictResponse evicted;
  ExpectRefusal(client_.eviction().Evict(client_.Context().get(), evict, &evicted), kFailed, "DRAFT_PENDING");
  v1::SetPolicyRequest change;
  change.set_session(session);
  *change.mutable_policy() = StreamingPolicy(20);
  v1::SetPolicyResponse changed;
  ExpectRefusal(client_.eviction().SetPolicy(client_.Context().get(), change, &changed), kFailed, "DRAFT_PENDING");

  v1::AcceptResponse accepted;
  ExpectRefusal(Accept(session, 6, &accepted), Code::INVALID_ARGUMENT, "OUT_OF_RANGE", "count");
  ASSERT_TRUE(Accept(session, 3, &accepted).ok());
  EXPECT_EQ(accepted.usage().completion_tokens(), 3U);
  EXPECT_EQ(accepted.usage().evicted_tokens(), 3U);
  EXPECT_EQ(accepted.usage().cache_length(), 24U);
  EXPECT_EQ(accepted.usage().session_tokens(), before.tokens() + 3);
  EXPECT_GT(accepted.generation(), response.generation());
  ExpectRefusal(Accept(session, 0, &accepted), kFailed, "NO_DRAFT");

  // The same three alone, and then the same answer.
  v1::VerifyRequest three = Draft(twin, {1, 2, 3});
  three.set_mode(v1::VERIFY_MODE_MANUAL);
  Verified(three);
  ASSERT_TRUE(Accept(twin, 3, &accepted).ok());
  EXPECT_THAT(Decoded(session, 20), ElementsAreArray(Decoded(twin, 20)));
}

TEST_F(VerifyTest, AManualDraftThatIsNotAcceptedNeverWas) {
  const std::string session = Filled(24);
  const std::string twin = Filled(24);
  v1::VerifyRequest request = Draft(session, {9, 8, 7, 6});
  request.set_mode(v1::VERIFY_MODE_MANUAL);
  Verified(request);
  v1::AcceptResponse accepted;
  ASSERT_TRUE(Accept(session, 0, &accepted).ok());
  EXPECT_EQ(accepted.usage().session_tokens(), client_.Get(twin).tokens());
  EXPECT_THAT(Decoded(session, 20), ElementsAreArray(Decoded(twin, 20)));
  Verified(request);  // a session with a draft can be deleted
  EXPECT_TRUE(client_.Delete(session).ok());
  EXPECT_TRUE(client_.Delete(twin).ok());
  EXPECT_EQ(client_.Status().cache().pages_reserved(), 0U);
}

TEST_F(VerifyTest, SaysWhatWasAskedWrongly) {
  const std::string session = Filled(24);
  v1::VerifyResponse response;
  const auto refuses = [&](const v1::VerifyRequest& request, Code code, const std::string& reason,
                           const std::string& field = {}) {
    SCOPED_TRACE(reason);
    ExpectRefusal(Verify(request, &response), code, reason, field);
  };
  const Code kInvalid = Code::INVALID_ARGUMENT;
  refuses(Draft(session, {}), kInvalid, "DRAFT_EMPTY", "draft_tokens");
  refuses(Draft(session, std::vector<uint32_t>(17, 1)), kInvalid, "DRAFT_TOO_LONG", "draft_tokens");  // block_size 16
  refuses(Draft(session, std::vector<uint32_t>(65, 1)), kInvalid, "DRAFT_TOO_LONG", "draft_tokens");
  refuses(Draft(session, {1, 4000}), kInvalid, "TOKEN_OUT_OF_RANGE", "draft_tokens[1]");
  refuses(Draft("sessions/nobody", {1}), Code::NOT_FOUND, "UNKNOWN_SESSION");
  refuses(Draft(Open(24, 0), {1}), Code::FAILED_PRECONDITION, "EMPTY_SESSION");
  v1::VerifyRequest request = Draft(session, {1});
  request.set_logprobs(21);
  refuses(request, kInvalid, "OUT_OF_RANGE", "logprobs");
  request = Draft(session, {1});
  request.set_mode(static_cast<v1::VerifyMode>(9));
  refuses(request, kInvalid, "UNKNOWN_ENUM_VALUE", "mode");
  request = Draft(session, {1});
  request.mutable_sampling()->set_top_p(2);
  refuses(request, kInvalid, "SAMPLING_OUT_OF_RANGE", "sampling.top_p");
  request = Draft(session, {1});
  request.set_expected_generation(99);
  refuses(request, Code::ABORTED, "GENERATION_MISMATCH");
  request = Draft(session, {1});
  request.add_draft_probabilities()->add_tokens(1);
  refuses(request, kInvalid, "DRAFT_PROBABILITIES", "draft_probabilities[0]");
  request.mutable_draft_probabilities(0)->add_probabilities(std::numeric_limits<float>::quiet_NaN());
  refuses(request, kInvalid, "DRAFT_PROBABILITIES", "draft_probabilities[0].probabilities[0]");
  request.mutable_draft_probabilities(0)->set_probabilities(0, 1);
  EXPECT_TRUE(Verify(request, &response).ok());

  v1::CreateSessionRequest full = SessionWith({}, 16);
  full.mutable_policy()->mutable_full();
  full.mutable_policy()->mutable_trigger()->set_budget(50);
  const std::string limited = client_.Create(full).name();
  ASSERT_TRUE(client_.Prefill(PrefillText(limited, kFullCache)).ok());  // 42 tokens, and perhaps one to begin with
  refuses(Draft(limited, std::vector<uint32_t>(16, 1)), Code::RESOURCE_EXHAUSTED, "LENGTH_LIMIT");
}

TEST_F(VerifyTest, IsOneWriterAmongOthers) {
  const std::string session = Filled(24);
  const std::unique_ptr<grpc::ClientContext> context = client_.Context();
  const auto stream = client_.inference().Decode(context.get(), DecodeTokens(session, 1 << 20));
  v1::DecodeResponse message;
  ASSERT_TRUE(stream->Read(&message));
  v1::VerifyResponse response;
  ExpectRefusal(Verify(Draft(session, {1}), &response), Code::ABORTED, "SESSION_BUSY");
  v1::AcceptResponse accepted;
  ExpectRefusal(Accept(session, 0, &accepted), Code::ABORTED, "SESSION_BUSY");
  context->TryCancel();
  while (stream->Read(&message)) continue;
  stream->Finish();
}

// However far it came, the session is whole, and no draft is left behind that AUTO did not settle.
TEST_F(VerifyTest, ThatIsCancelledOrLateLeavesTheSessionUsable) {
  const std::string session = Filled(24);
  for (int i = 0; i < 20; ++i) {
    const std::unique_ptr<grpc::ClientContext> context = client_.Context();
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::microseconds(200 * i));
    v1::VerifyResponse response;
    const grpc::Status status =
        client_.inference().Verify(context.get(), Draft(session, std::vector<uint32_t>(16, 'a')), &response);
    if (!status.ok() && ReadDetails(status).reason != "SESSION_BUSY") {  // the one before may still be at work
      EXPECT_EQ(status.error_code(), Code::DEADLINE_EXCEEDED);
    }
  }
  Answer answer;
  do {  // the last of them may still be at work
    answer = client_.Decode(DecodeTokens(session, 5));
  } while (ReadDetails(answer.status).reason == "SESSION_BUSY");
  EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
  EXPECT_EQ(client_.Get(session).pending_draft_tokens(), 0U);
  EXPECT_EQ(client_.Get(session).cache_length(), 24U);
}

}  // namespace
}  // namespace ebb
