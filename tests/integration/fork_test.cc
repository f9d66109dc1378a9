// Branches of sessions as clients see them: ForkSession, and several answers to one prompt.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/support/test_server.h"

namespace ebb {
namespace {

using client::ReadDetails;
using testing::ElementsAreArray;
using testing::SizeIs;

// Bytes, and so tokens of the model; a block size of 16 cuts it into four blocks.
const std::string kPrompt = "The lighthouse keeper wrote a letter to the harbour master.";

v1::PolicySpec Full(uint32_t budget) {
  v1::PolicySpec policy;
  policy.mutable_full();
  policy.mutable_trigger()->set_budget(budget);
  return policy;
}

class ForkTest : public testing::Test {
 protected:
  // A session whose prompt is in.
  std::string Open(const v1::PolicySpec& policy, const std::string& id = "trunk") {
    v1::CreateSessionRequest request = SessionWith(policy);
    request.set_session_id(id);
    const std::string name = client_.Create(request).name();
    const grpc::Status status = client_.Prefill(PrefillText(name, kPrompt));
    EXPECT_TRUE(status.ok()) << client::Describe(status);
    return name;
  }

  grpc::Status Fork(const v1::ForkSessionRequest& request, v1::Session* branch) {
    return client_.sessions().ForkSession(client_.Context().get(), request, branch);
  }
  v1::Session Fork(const v1::ForkSessionRequest& request) {
    v1::Session branch;
    const grpc::Status status = Fork(request, &branch);
    EXPECT_TRUE(status.ok()) << client::Describe(status);
    return branch;
  }
  static v1::ForkSessionRequest BranchOf(const std::string& session, const std::string& id = "") {
    v1::ForkSessionRequest request;
    request.set_session(session);
    request.set_session_id(id);
    return request;
  }
  std::string Refusal(const v1::ForkSessionRequest& request) {
    v1::Session branch;
    return ReadDetails(Fork(request, &branch)).reason;
  }

  std::vector<uint32_t> Decode(const std::string& session, uint32_t tokens) {
    const Answer answer = client_.Decode(DecodeTokens(session, tokens));
    EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
    return answer.tokens;
  }
  // Calls that ended a moment ago may still hold pages.
  bool EventuallyFree() {
    for (int i = 0; i < 10000; ++i) {
      if (client_.Status().cache().pages_reserved() == 0) return true;
    }
    return false;
  }

  TestServer server_{[](ServerOptions& options) { options.http_listen = {.host = "127.0.0.1", .port = 0}; }};
  TestClient client_{server_.address(), "acme"};
  TestClient other_{server_.address(), "other"};
};

TEST_F(ForkTest, ABranchGoesItsOwnWayAndTheSessionStaysAsItWas) {
  const std::string trunk = Open(Full(200));
  const v1::Session before = client_.Get(trunk);
  v1::ForkSessionRequest request = BranchOf(trunk, "twig");
  request.mutable_sampling()->set_seed(before.sampling().seed());
  const v1::Session branch = Fork(request);
  EXPECT_EQ(branch.name(), "sessions/twig");
  EXPECT_EQ(branch.tenant(), "acme");
  EXPECT_EQ(branch.tokens(), before.tokens());
  EXPECT_EQ(branch.cache_length(), before.cache_length());
  EXPECT_EQ(branch.block_size(), before.block_size());
  EXPECT_EQ(branch.prompt_tokens(), 0U);
  EXPECT_EQ(branch.generation(), 1U);
  EXPECT_GT(branch.shared_bytes(), 0U);
  EXPECT_EQ(branch.reserved_bytes(), before.reserved_bytes());
  EXPECT_EQ(client_.Get(trunk).generation(), before.generation());
  EXPECT_EQ(client_.Get(trunk).shared_bytes(), branch.shared_bytes());

  const std::vector<uint32_t> first = Decode("sessions/twig", 30);
  EXPECT_EQ(client_.Get(trunk).tokens(), before.tokens());
  EXPECT_THAT(Decode(trunk, 30), ElementsAreArray(first)) << "the same seed, the same tokens";
  EXPECT_NE(Decode(Fork(BranchOf(trunk)).name(), 30), Decode(Fork(BranchOf(trunk)).name(), 30))
      << "a seed from each name";
}

TEST_F(ForkTest, PagesAreReservedOnceAndComeBackWithTheLastBranch) {
  v1::PolicySpec policy = Full(64);                       // 60 of them are in
  policy.mutable_cache()->set_kv_dtype(v1::KV_TYPE_F32);  // pages of 32 slots, so one is full and one is begun
  const std::string trunk = Open(policy);
  const uint64_t one = client_.Status().cache().pages_reserved();
  std::vector<std::string> names = {trunk};
  for (int i = 0; i < 8; ++i) names.push_back(Fork(BranchOf(trunk)).name());
  const uint64_t nine = client_.Status().cache().pages_reserved();
  EXPECT_EQ(nine, one + 8 * one / 2);
  EXPECT_EQ(server_.Metric("ebb_kv_pages{state=\"owned\"}"), nine);
  EXPECT_EQ(server_.Metric("ebb_kv_pages{state=\"owned\"}") + server_.Metric("ebb_kv_pages{state=\"free\"}"),
            server_.Metric("ebb_kv_pages_limit"));
  EXPECT_GT(server_.Metric("ebb_kv_pages{state=\"shared\"}"), 0);
  EXPECT_EQ(server_.Metric("ebb_session_forks_total{tenant=\"acme\"}"), 8);
  for (const std::string& name : names) Decode(name, 4);
  EXPECT_GT(server_.Metric("ebb_page_copies_total"), 0);
  EXPECT_EQ(client_.Status().cache().pages_reserved(), nine) << "copies were promised";
  for (const std::string& name : names) EXPECT_TRUE(client_.Delete(name).ok());
  EXPECT_TRUE(EventuallyFree());
  EXPECT_EQ(server_.Metric("ebb_kv_pages{state=\"owned\"}"), 0);
  EXPECT_EQ(server_.Metric("ebb_kv_pages{state=\"shared\"}"), 0);
}

// What a late branch has to promise to earlier ones may be more than it shares.
TEST_F(ForkTest, ASecondBranchWithCopiesReservedPaysForTheFirst) {
  const std::string trunk = Open(Full(1024));
  v1::PrefillRequest more = PrefillText(trunk, kPrompt + kPrompt + kPrompt);
  ASSERT_TRUE(client_.Prefill(more).ok());
  const uint64_t alone = client_.Status().cache().pages_reserved();
  Fork(BranchOf(trunk, "first"));
  const uint64_t two = client_.Status().cache().pages_reserved();
  v1::ForkSessionRequest request = BranchOf(trunk, "second");
  request.set_reserve_copies(true);
  Fork(request);
  EXPECT_GT(client_.Status().cache().pages_reserved() - two, alone);
  for (const char* id : {"first", "second", "trunk"}) {
    EXPECT_THAT(Decode(std::string("sessions/") + id, 40), SizeIs(40));
    ASSERT_TRUE(client_.Delete(std::string("sessions/") + id).ok());
  }
  EXPECT_TRUE(EventuallyFree());
}

TEST_F(ForkTest, ABranchMayHaveAPolicyOfItsOwn) {
  const std::string trunk = Open(Full(200));
  v1::ForkSessionRequest request = BranchOf(trunk);
  request.mutable_policy()->mutable_h2o();
  request.mutable_policy()->mutable_trigger()->set_budget(32);
  const v1::Session branch = Fork(request);
  EXPECT_EQ(branch.cache_length(), 32U);
  EXPECT_TRUE(branch.policy().has_h2o());
  EXPECT_EQ(client_.Get(trunk).cache_length(), kPrompt.size() + 1) << "with the begin token";
  // As if the policy had been set on a branch without.
  v1::Session twin = Fork(BranchOf(trunk));
  v1::SetPolicyRequest change;
  change.set_session(twin.name());
  *change.mutable_policy() = request.policy();
  v1::SetPolicyResponse response;
  ASSERT_TRUE(client_.eviction().SetPolicy(client_.Context().get(), change, &response).ok());
  v1::DecodeRequest decode = DecodeTokens(branch.name(), 40);
  decode.mutable_sampling()->set_seed(5);
  v1::DecodeRequest decode_twin = decode;
  decode_twin.set_session(twin.name());
  EXPECT_THAT(client_.Decode(decode).tokens, ElementsAreArray(client_.Decode(decode_twin).tokens));
}

TEST_F(ForkTest, OfOneRequestIdIsOne) {
  const std::string trunk = Open(Full(200));
  v1::ForkSessionRequest request = BranchOf(trunk);
  request.set_request_id("retried");
  const std::string name = Fork(request).name();
  EXPECT_EQ(Fork(request).name(), name);
  EXPECT_TRUE(client_.Delete(name).ok());
  EXPECT_NE(Fork(request).name(), name) << "the first is gone";
}

TEST_F(ForkTest, IsRefusedWithAReason) {
  const std::string trunk = Open(Full(200));
  v1::ForkSessionRequest request = BranchOf(trunk);
  request.set_expected_generation(client_.Get(trunk).generation() + 1);
  EXPECT_EQ(Refusal(request), "GENERATION_MISMATCH");
  EXPECT_EQ(Refusal(BranchOf(trunk, "trunk")), "NAME_TAKEN");
  EXPECT_EQ(Refusal(BranchOf(trunk, "No Name")), "INVALID_NAME");
  EXPECT_EQ(Refusal(BranchOf("sessions/nobody")), "UNKNOWN_SESSION");
  EXPECT_EQ(Refusal(BranchOf("")), "INVALID_NAME");
  request = BranchOf(trunk);
  request.set_request_id(std::string(129, 'x'));
  EXPECT_EQ(Refusal(request), "TOO_LONG");
  request = BranchOf(trunk);
  request.mutable_ttl()->set_seconds(0);
  EXPECT_EQ(Refusal(request), "OUT_OF_RANGE");
  request = BranchOf(trunk);
  request.mutable_sampling()->set_top_p(2);
  EXPECT_NE(Refusal(request), "");
  request = BranchOf(trunk);
  *request.mutable_policy() = Full(8);
  EXPECT_EQ(Refusal(request), "CACHE_TOO_LONG");
  v1::Session branch;
  EXPECT_EQ(ReadDetails(other_.sessions().ForkSession(other_.Context().get(), BranchOf(trunk), &branch)).reason,
            "UNKNOWN_SESSION")
      << "another tenant's session is not there";
  EXPECT_EQ(client_.Status().work().sessions(), 1U);
  EXPECT_EQ(client_.Get(trunk).shared_bytes(), 0U);
}

TEST_F(ForkTest, WaitsForTheCallThatWritesAndForItsDraft) {
  const std::string trunk = Open(StreamingPolicy(32));
  auto context = client_.Context();
  auto stream = client_.inference().Decode(context.get(), DecodeTokens(trunk, kEndless));
  v1::DecodeResponse message;
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_EQ(Refusal(BranchOf(trunk)), "SESSION_BUSY");
  context->TryCancel();
  while (stream->Read(&message)) continue;
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (client_.Get(trunk).state() == v1::SESSION_STATE_BUSY) continue;
  EXPECT_EQ(Refusal(BranchOf(trunk)), "");
  v1::VerifyRequest verify;
  verify.set_session(trunk);
  verify.add_draft_tokens(1);
  verify.set_mode(v1::VERIFY_MODE_MANUAL);
  v1::VerifyResponse verified;
  ASSERT_TRUE(client_.inference().Verify(client_.Context().get(), verify, &verified).ok());
  EXPECT_EQ(Refusal(BranchOf(trunk)), "DRAFT_PENDING");
}

TEST_F(ForkTest, OfADeletedSessionGoesOn) {
  const std::string trunk = Open(StreamingPolicy(32));
  const std::string branch = Fork(BranchOf(trunk)).name();
  v1::DecodeRequest decode = DecodeTokens(trunk, 40);
  decode.mutable_sampling()->set_seed(9);
  const std::vector<uint32_t> expected = client_.Decode(decode).tokens;
  EXPECT_TRUE(client_.Delete(trunk).ok());
  decode.set_session(branch);
  EXPECT_THAT(client_.Decode(decode).tokens, ElementsAreArray(expected));
}

// A small arena: the branch of a session that evicts finds no page for a copy, which ends its call between two steps.
TEST(ForkWithoutPages, ACallEndsWithNoPagesAndGoesOnWhenThereAreSome) {
  const TestServer server([](ServerOptions& options) { options.engine.arena_bytes = 1 << 20; });
  TestClient client(server.address());
  v1::CreateSessionRequest opening = SessionWith(StreamingPolicy(256));
  const std::string trunk = client.Create(opening).name();
  ASSERT_TRUE(client.Prefill(PrefillText(trunk, std::string(400, 'a'))).ok());
  v1::ForkSessionRequest fork;
  fork.set_session(trunk);
  v1::Session branch;
  ASSERT_TRUE(client.sessions().ForkSession(client.Context().get(), fork, &branch).ok());
  std::vector<std::string> others;  // take what is free
  for (uint32_t budget = 1024; budget > 8; budget /= 2) {
    v1::Session taken;
    while (client.Create(SessionWith(Full(budget)), &taken).ok()) others.push_back(taken.name());
  }
  v1::DecodeRequest decode = DecodeTokens(branch.name(), 300);
  decode.mutable_sampling()->set_seed(3);
  const Answer refused = client.Decode(decode);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReadDetails(refused.status).reason, "NO_PAGES");
  EXPECT_TRUE(ReadDetails(refused.status).retry.has_value());
  ASSERT_LT(refused.tokens.size(), 300U);
  EXPECT_EQ(client.Get(branch.name()).tokens(), client.Get(trunk).tokens() + refused.tokens.size());
  for (const std::string& name : others) EXPECT_TRUE(client.Delete(name).ok());
  decode.mutable_stopping()->set_max_tokens(300 - static_cast<uint32_t>(refused.tokens.size()));
  Answer rest = client.Decode(decode);
  EXPECT_TRUE(rest.status.ok()) << client::Describe(rest.status);
  std::vector<uint32_t> all = refused.tokens;
  all.insert(all.end(), rest.tokens.begin(), rest.tokens.end());
  decode = DecodeTokens(trunk, 300);
  decode.mutable_sampling()->set_seed(3);
  EXPECT_THAT(client.Decode(decode).tokens, ElementsAreArray(all));
}

// Several answers to one prompt.

struct Answered {
  grpc::Status status = {};
  int prefills = 0;
  std::map<uint32_t, std::vector<uint32_t>> tokens = {};
  std::map<uint32_t, v1::DecodeResponse> last = {};
  std::vector<uint64_t> sequence = {};
};

class AnswersTest : public ForkTest {
 protected:
  Answered Generate(const v1::GenerateRequest& request) {
    const auto context = client_.Context();
    const auto stream = client_.inference().Generate(context.get(), request);
    Answered answered;
    v1::GenerateResponse message;
    while (stream->Read(&message)) {
      if (message.has_prefill()) {
        ++answered.prefills;
        continue;
      }
      const v1::DecodeResponse& decode = message.decode();
      EXPECT_FALSE(answered.last.contains(message.index())) << "after its end";
      answered.sequence.push_back(decode.sequence());
      auto& tokens = answered.tokens[message.index()];
      tokens.insert(tokens.end(), decode.tokens().begin(), decode.tokens().end());
      if (decode.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) answered.last[message.index()] = decode;
    }
    answered.status = stream->Finish();
    return answered;
  }
  static v1::GenerateRequest Several(const std::string& session, uint32_t n, uint32_t max_tokens) {
    v1::GenerateRequest request = GenerateText(session, kPrompt, max_tokens);
    request.mutable_sampling()->set_seed(11);
    request.set_block_size(16);
    request.set_n(n);
    return request;
  }
};

TEST_F(AnswersTest, DifferAndTheFirstIsTheOneThatWouldBeAlone) {
  const Answered one = Generate(Several("", 1, 24));
  const Answered four = Generate(Several("", 4, 24));
  ASSERT_TRUE(four.status.ok()) << client::Describe(four.status);
  EXPECT_EQ(four.prefills, one.prefills) << "the prompt is read once";
  ASSERT_THAT(four.tokens, SizeIs(4));
  EXPECT_EQ(four.tokens.at(0), one.tokens.at(0));
  std::set<std::vector<uint32_t>> different;
  for (const auto& [index, tokens] : four.tokens) {
    EXPECT_THAT(tokens, SizeIs(24));
    different.insert(tokens);
    ASSERT_TRUE(four.last.contains(index));
    EXPECT_EQ(four.last.at(index).usage().completion_tokens(), 24U);
    EXPECT_EQ(four.last.at(index).usage().prompt_tokens(), index == 0 ? kPrompt.size() + 1 : 0);
  }
  EXPECT_THAT(different, SizeIs(4));
  EXPECT_TRUE(std::ranges::is_sorted(four.sequence));
  EXPECT_EQ(Generate(Several("", 4, 24)).tokens, four.tokens) << "the same seed";
  EXPECT_TRUE(EventuallyFree());
}

TEST_F(AnswersTest, LeaveTheFirstInANamedSession) {
  const std::string session = client_.Create(SessionWith(StreamingPolicy(40))).name();
  const Answered three = Generate(Several(session, 3, 20));
  ASSERT_TRUE(three.status.ok()) << client::Describe(three.status);
  EXPECT_EQ(client_.Get(session).tokens(), kPrompt.size() + 1 + 20);
  const std::string alone = client_.Create(SessionWith(StreamingPolicy(40))).name();
  EXPECT_EQ(Generate(Several(alone, 1, 20)).tokens.at(0), three.tokens.at(0));
  EXPECT_THAT(Decode(session, 5), SizeIs(5));
}

TEST_F(AnswersTest, AreAsManyAsAsked) {
  for (const uint32_t n : {0U, 17U}) {
    const Answered refused = Generate(Several("", n, 4));
    EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(ReadDetails(refused.status).reason, "OUT_OF_RANGE");
  }
  EXPECT_THAT(Generate(Several("", 16, 4)).last, SizeIs(16));
}

TEST_F(AnswersTest, AllEndWithACancel) {
  v1::GenerateRequest request = Several("", 5, kEndless);
  const auto context = client_.Context();
  const auto stream = client_.inference().Generate(context.get(), request);
  v1::GenerateResponse message;
  std::set<uint32_t> seen;
  while (seen.size() < 5 && stream->Read(&message)) {
    if (message.has_decode()) seen.insert(message.index());
  }
  EXPECT_THAT(seen, SizeIs(5));
  context->TryCancel();
  while (stream->Read(&message)) continue;
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(EventuallyFree());
}

TEST_F(AnswersTest, AllEndWithTheDeadline) {
  const auto context = client_.Context();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  const auto stream = client_.inference().Generate(context.get(), Several("", 3, kEndless));
  v1::GenerateResponse message;
  while (stream->Read(&message)) continue;
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(EventuallyFree());
}

TEST_F(AnswersTest, EndTogetherWhenTheSessionIsDeleted) {
  const std::string session = client_.Create(SessionWith(StreamingPolicy(40))).name();
  const auto context = client_.Context();
  const auto stream = client_.inference().Generate(context.get(), Several(session, 3, kEndless));
  v1::GenerateResponse message;
  std::set<uint32_t> seen;
  while (seen.size() < 3 && stream->Read(&message)) {
    if (message.has_decode()) seen.insert(message.index());
  }
  EXPECT_TRUE(client_.Delete(session).ok());
  while (stream->Read(&message)) continue;
  EXPECT_EQ(ReadDetails(stream->Finish()).reason, "SESSION_DELETED");
  EXPECT_TRUE(EventuallyFree());
}

}  // namespace
}  // namespace ebb
