// Prompts of a tenant that begin alike: what did not have to run is said, and nothing else tells the sessions apart.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/test_server.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;

const std::string kBegunAlike = std::string(100, 'p') + "what comes behind what all prompts begin with";

class PrefixTest : public testing::Test {
 protected:
  static TestServer Serve(double share) {
    return TestServer([share](ServerOptions& options) {
      options.engine.prefix_share = share;
      options.http_listen = Address{.host = "127.0.0.1", .port = 0};
    });
  }

  static v1::CreateSessionRequest H2o() {
    v1::PolicySpec policy;
    policy.mutable_trigger()->set_budget(48);
    policy.mutable_protect()->set_recent(16);
    policy.mutable_h2o();
    return SessionWith(policy, 16);
  }

  static Answer Ask(TestClient& client, const std::string& text, const v1::CreateSessionRequest& create = H2o()) {
    const std::string name = client.Create(create).name();
    v1::GenerateRequest request = GenerateText(name, text, 20);
    request.mutable_sampling()->set_seed(3);
    Answer answer = client.Generate(request);
    EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
    EXPECT_EQ(client.Get(name).prompt_tokens(), answer.last().usage().prompt_tokens());
    EXPECT_TRUE(client.Delete(name).ok());
    return answer;
  }

  static void ExpectSame(const Answer& a, const Answer& b) {
    EXPECT_THAT(a.tokens, ElementsAreArray(b.tokens));
    EXPECT_EQ(a.last().usage().prompt_tokens(), b.last().usage().prompt_tokens());
    EXPECT_EQ(a.last().usage().evicted_tokens(), b.last().usage().evicted_tokens());
    EXPECT_EQ(a.last().usage().cache_length(), b.last().usage().cache_length());
  }

  TestServer server_ = Serve(0.25);
  TestClient client_{server_.address()};
};

TEST_F(PrefixTest, ASecondSessionBeginsWhereTheFirstOneWas) {
  const Answer first = Ask(client_, kBegunAlike);
  EXPECT_EQ(first.last().usage().reused_prompt_tokens(), 0U);
  const Answer second = Ask(client_, kBegunAlike);
  const uint32_t prompt = second.last().usage().prompt_tokens();
  EXPECT_EQ(second.last().usage().reused_prompt_tokens(), (prompt - 1) / 16 * 16) << "all blocks but the last";
  EXPECT_EQ(second.blocks.size(), 1U) << "which alone ran";
  ExpectSame(second, first);
  const Answer other = Ask(client_, std::string(100, 'p') + "another end");
  EXPECT_EQ(other.last().usage().reused_prompt_tokens(), 96U) << "whole blocks, the begin token included";
  EXPECT_EQ(server_.Metric("ebb_prefix_hits_total{tenant=\"default\"}"), 2);
  EXPECT_EQ(server_.Metric("ebb_prefix_reused_tokens_total{tenant=\"default\"}"),
            second.last().usage().reused_prompt_tokens() + 96);
  EXPECT_GT(server_.Metric("ebb_kv_pages{state=\"kept\"}"), 0);
  EXPECT_EQ(server_.Metric("ebb_kv_pages{state=\"owned\"}"), 0);
  EXPECT_EQ(client_.Status().work().sessions(), 0U);
}

TEST_F(PrefixTest, IsNeverAnotherTenants) {
  Ask(client_, kBegunAlike);
  TestClient other(server_.address(), "other");
  EXPECT_EQ(Ask(other, kBegunAlike).last().usage().reused_prompt_tokens(), 0U);
}

TEST_F(PrefixTest, IsOffWithAShareOfNothing) {
  const TestServer server = Serve(0);
  TestClient client(server.address());
  const Answer first = Ask(client, kBegunAlike);
  EXPECT_EQ(Ask(client, kBegunAlike).last().usage().reused_prompt_tokens(), 0U);
  Ask(client_, kBegunAlike);
  ExpectSame(Ask(client_, kBegunAlike), first);
}

TEST_F(PrefixTest, TokensToBeScoredAreRun) {
  v1::ScoreRequest request;
  request.mutable_context()->set_text(kBegunAlike.substr(0, 60));
  request.mutable_target()->set_text(kBegunAlike.substr(60));
  request.set_block_size(16);
  v1::ScoreResponse first, second;
  ASSERT_TRUE(client_.inference().Score(client_.Context().get(), request, &first).ok());
  ASSERT_TRUE(client_.inference().Score(client_.Context().get(), request, &second).ok());
  EXPECT_EQ(second.usage().reused_prompt_tokens(), 48U) << "of the context";
  EXPECT_EQ(second.tokens_size(), first.tokens_size());
  EXPECT_EQ(second.logprob(), first.logprob());
}

}  // namespace
}  // namespace ebb
