// Edit as clients see it: what is answered, what the session yields afterwards, and every way to ask wrongly.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/test_server.h"

namespace ebb {
namespace {

using client::ReadDetails;
using ::testing::ElementsAreArray;
using Code = grpc::StatusCode;

constexpr char kProgram[] = "int main() { return answer(6, 7); }";

class EditTest : public testing::Test {
 protected:
  std::string Open(const v1::PolicySpec& policy, uint32_t block_size = 16) {
    v1::CreateSessionRequest request = SessionWith(policy, block_size);
    request.mutable_sampling()->set_temperature(0);
    return client_.Create(request).name();
  }
  std::string Filled(uint32_t budget, const std::string& text = kProgram) {
    std::string name = Open(StreamingPolicy(budget));
    EXPECT_TRUE(client_.Prefill(PrefillText(name, text)).ok());
    return name;
  }
  // Replaces bytes [start, end) of the session's text. The tiny model has one token for each, behind a begin token.
  static v1::EditRequest Replace(const std::string& session, uint64_t start, uint64_t end, const std::string& text) {
    v1::EditRequest request;
    request.set_session(session);
    v1::EditSpan* const span = request.add_spans();
    span->set_start(start + kBegin);
    span->set_end(end + kBegin);
    if (!text.empty()) span->set_text(text);
    return request;
  }
  grpc::Status Edit(const v1::EditRequest& request, v1::EditResponse* response) {
    response->Clear();
    return client_.inference().Edit(client_.Context().get(), request, response);
  }
  v1::EditResponse Edited(const v1::EditRequest& request) {
    v1::EditResponse response;
    const grpc::Status status = Edit(request, &response);
    EXPECT_TRUE(status.ok()) << client::Describe(status);
    return response;
  }
  std::vector<uint32_t> Decoded(const std::string& session, uint32_t count) {
    const Answer answer = client_.Decode(DecodeTokens(session, count));
    EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
    return answer.tokens;
  }
  // The session's log.
  std::vector<uint32_t> Log(const std::string& session) {
    const auto tokens = static_cast<uint32_t>(client_.Get(session).tokens());
    v1::DecodeRequest request = DecodeTokens(session, tokens);
    request.set_resume_from(0);
    const Answer answer = client_.Decode(request);
    EXPECT_EQ(client_.Get(session).tokens(), tokens) << "reading the log adds nothing to it";
    return answer.tokens;
  }
  void ExpectRefusal(const v1::EditRequest& request, Code code, const std::string& reason,
                     const std::string& field = {}) {
    SCOPED_TRACE(reason);
    v1::EditResponse response;
    const grpc::Status status = Edit(request, &response);
    EXPECT_EQ(status.error_code(), code) << client::Describe(status);
    EXPECT_EQ(ReadDetails(status).reason, reason);
    EXPECT_EQ(ReadDetails(status).field, field);
  }

  static constexpr uint64_t kBegin = 1;

  TestServer server_{[](ServerOptions& options) {
    options.http_listen = {.host = "127.0.0.1", .port = 0};
    options.work.live.shadow = {.share = 1};  // every session has a twin, which must not go on with what was replaced
  }};
  TestClient client_{server_.address(), "acme"};
};

TEST_F(EditTest, ARecomputedTailYieldsWhatAFreshSessionYields) {
  const std::string session = Filled(300);
  ASSERT_EQ(client_.Get(session).tokens(), sizeof(kProgram) - 1 + kBegin);
  const uint64_t generation = client_.Get(session).generation();
  v1::EditRequest request = Replace(session, 27, 31, "8, 9");
  request.set_expected_generation(generation);
  request.set_require_exact(true);
  const v1::EditResponse response = Edited(request);
  EXPECT_EQ(response.exactness(), v1::EDIT_EXACTNESS_EXACT);
  EXPECT_EQ(response.tokens_recomputed(), 8U);
  EXPECT_EQ(response.tokens_reused(), 27 + kBegin);
  EXPECT_EQ(response.tokens_stale(), 0U);
  EXPECT_EQ(response.tokens_inserted(), 4U);
  EXPECT_EQ(response.tokens_removed(), 4U);
  EXPECT_GT(response.elapsed_ms(), 0);
  EXPECT_GT(response.generation(), generation);
  EXPECT_EQ(response.generation(), client_.Get(session).generation());
  EXPECT_EQ(response.usage().session_tokens(), sizeof(kProgram) - 1 + kBegin);
  EXPECT_EQ(response.usage().prompt_tokens(), 0U);
  const std::string fresh = Filled(300, "int main() { return answer(8, 9); }");
  EXPECT_THAT(Log(session), ElementsAreArray(Log(fresh)));
  EXPECT_THAT(Decoded(session, 30), ElementsAreArray(Decoded(fresh, 30)));
  EXPECT_EQ(server_.Metric("ebb_edit_recomputed_tokens_total{tenant=\"acme\"}"), 8);
  EXPECT_EQ(server_.Metric("ebb_edit_reused_tokens_total{tenant=\"acme\"}"), 27 + kBegin);
}

TEST_F(EditTest, SeveralSpansDeletionsAndTokensGoTogether) {
  const std::string session = Filled(300);
  v1::EditRequest request = Replace(session, 0, 4, "");
  *request.add_spans() = Replace(session, 20, 26, "f").spans(0);
  v1::EditSpan* const span = request.add_spans();
  span->set_start(35 + kBegin);
  span->set_end(35 + kBegin);
  span->mutable_tokens()->add_ids('!');
  Edited(request);
  EXPECT_THAT(Log(session), ElementsAreArray(Log(Filled(300, "main() { return f(6, 7); }!"))));
}

TEST_F(EditTest, WhatWasEvictedStaysSoUnlessItIsRestored) {
  const std::string session = Filled(24);
  v1::EditRequest request = Replace(session, 27, 31, "8, 9");
  request.set_require_exact(true);
  ExpectRefusal(request, Code::FAILED_PRECONDITION, "EDIT_NOT_EXACT", "require_exact");
  request.set_require_exact(false);
  v1::EditResponse response = Edited(request);
  EXPECT_EQ(response.exactness(), v1::EDIT_EXACTNESS_EVICTED);
  EXPECT_EQ(response.usage().cache_length(), 24U);
  EXPECT_EQ(response.tokens_recomputed(), 8U);
  EXPECT_EQ(response.usage().evicted_tokens(), 0U);

  request = Replace(session, 27, 31, "6, 5");
  request.set_restore(true);
  request.set_require_exact(true);
  response = Edited(request);
  EXPECT_EQ(response.exactness(), v1::EDIT_EXACTNESS_EXACT);
  EXPECT_EQ(response.tokens_recomputed(), sizeof(kProgram) - 1 + kBegin);
  EXPECT_EQ(response.tokens_reused(), 0U);
  const std::string fresh = Filled(24, "int main() { return answer(6, 5); }");
  EXPECT_THAT(Decoded(session, 30), ElementsAreArray(Decoded(fresh, 30)));
}

TEST_F(EditTest, ApproximateModesSayWhatIsStale) {
  const std::string session = Filled(300);
  v1::EditRequest request = Replace(session, 4, 8, "start");
  request.set_mode(v1::EDIT_MODE_REPOSITION);
  v1::EditResponse response = Edited(request);
  EXPECT_EQ(response.exactness(), v1::EDIT_EXACTNESS_STALE);
  EXPECT_EQ(response.tokens_recomputed(), 6U);
  EXPECT_EQ(response.tokens_reused(), 30 + kBegin);
  EXPECT_EQ(response.tokens_stale(), 26U);
  EXPECT_THAT(Log(session), ElementsAreArray(Log(Filled(300, "int start() { return answer(6, 7); }"))));
  Decoded(session, 5);

  request = Replace(session, 4, 9, "begin");
  request.set_mode(v1::EDIT_MODE_RECOMPUTE_SPAN);
  request.set_window(3);
  response = Edited(request);
  EXPECT_EQ(response.tokens_recomputed(), 5U + 3 + 1);
  EXPECT_EQ(response.exactness(), v1::EDIT_EXACTNESS_STALE);

  // The way back to an exact session begins before all that is stale.
  response = Edited(Replace(session, 4, 9, "main"));
  EXPECT_EQ(response.exactness(), v1::EDIT_EXACTNESS_EXACT);
}

TEST_F(EditTest, SaysWhatWasAskedWrongly) {
  const std::string session = Filled(300);
  const Code kInvalid = Code::INVALID_ARGUMENT;
  v1::EditRequest request;
  request.set_session(session);
  ExpectRefusal(request, kInvalid, "EDIT_EMPTY", "spans");
  ExpectRefusal(Replace(session, 3, 3, ""), kInvalid, "EDIT_EMPTY", "spans[0]");
  ExpectRefusal(Replace(session, 3, 2, "x"), kInvalid, "OUT_OF_RANGE", "spans[0].end");
  ExpectRefusal(Replace(session, 30, 1000, "x"), kInvalid, "OUT_OF_RANGE", "spans[0].end");
  ExpectRefusal(Replace(session, 0, uint64_t{1} << 40, "x"), kInvalid, "OUT_OF_RANGE", "spans[0].end");
  ExpectRefusal(Replace(session, 1000, 1001, "x"), kInvalid, "OUT_OF_RANGE", "spans[0].start");
  ExpectRefusal(Replace("sessions/nobody", 0, 1, "x"), Code::NOT_FOUND, "UNKNOWN_SESSION");
  ExpectRefusal(Replace("nobody", 0, 1, "x"), kInvalid, "INVALID_NAME", "session");
  ExpectRefusal(Replace(Open(StreamingPolicy(24)), 0, 0, "x"), Code::FAILED_PRECONDITION, "EMPTY_SESSION");
  request = Replace(session, 5, 7, "x");
  *request.add_spans() = Replace(session, 6, 8, "y").spans(0);
  ExpectRefusal(request, kInvalid, "SPANS_OVERLAP", "spans[1]");
  request = Replace(session, 0, sizeof(kProgram) - 1, "");
  request.mutable_spans(0)->set_start(0);
  ExpectRefusal(request, kInvalid, "NOTHING_WOULD_STAY", "spans");
  request = Replace(session, 0, 1, "");
  request.mutable_spans(0)->mutable_tokens()->add_ids(4000);
  ExpectRefusal(request, kInvalid, "TOKEN_OUT_OF_RANGE", "spans[0].tokens.ids[0]");
  request = Replace(session, 0, 1, "x");
  request.set_mode(static_cast<v1::EditMode>(9));
  ExpectRefusal(request, kInvalid, "UNKNOWN_ENUM_VALUE", "mode");
  request.set_mode(v1::EDIT_MODE_REPOSITION);
  request.set_window(3);
  ExpectRefusal(request, kInvalid, "WINDOW_NEEDS_SPAN", "window");
  request.clear_window();
  request.set_restore(true);
  ExpectRefusal(request, kInvalid, "RESTORE_NEEDS_TAIL", "restore");
  request = Replace(session, 0, 1, "x");
  request.set_mode(v1::EDIT_MODE_RECOMPUTE_SPAN);
  request.set_window((1U << 24) + 1);
  ExpectRefusal(request, kInvalid, "OUT_OF_RANGE", "window");
  request = Replace(session, 0, 1, "x");
  request.set_block_size(17);
  ExpectRefusal(request, kInvalid, "OUT_OF_RANGE", "block_size");
  request = Replace(session, 0, 1, "x");
  request.set_expected_generation(99);
  ExpectRefusal(request, Code::ABORTED, "GENERATION_MISMATCH");
  request = {};
  request.set_session(session);
  for (int i = 0; i < 4097; ++i) request.add_spans();
  ExpectRefusal(request, kInvalid, "TOO_MANY", "spans");

  v1::PolicySpec full;
  full.mutable_full();
  full.mutable_trigger()->set_budget(40);
  const std::string limited = Open(full);
  ASSERT_TRUE(client_.Prefill(PrefillText(limited, kProgram)).ok());
  ExpectRefusal(Replace(limited, 0, 1, "more than fits"), Code::RESOURCE_EXHAUSTED, "LENGTH_LIMIT");
  EXPECT_THAT(Decoded(session, 10), ElementsAreArray(Decoded(Filled(300), 10))) << "a refusal changes nothing";
}

TEST_F(EditTest, IsOneWriterAmongOthersAndWaitsForNoDraft) {
  const std::string session = Filled(300);
  const std::unique_ptr<grpc::ClientContext> context = client_.Context();
  const auto stream = client_.inference().Decode(context.get(), DecodeTokens(session, 1 << 20));
  v1::DecodeResponse message;
  ASSERT_TRUE(stream->Read(&message));
  ExpectRefusal(Replace(session, 0, 1, "x"), Code::ABORTED, "SESSION_BUSY");
  context->TryCancel();
  while (stream->Read(&message)) continue;
  stream->Finish();

  const std::string drafted = Filled(300);
  v1::VerifyRequest verify;
  verify.set_session(drafted);
  verify.add_draft_tokens('a');
  verify.set_mode(v1::VERIFY_MODE_MANUAL);
  v1::VerifyResponse verified;
  ASSERT_TRUE(client_.inference().Verify(client_.Context().get(), verify, &verified).ok());
  ExpectRefusal(Replace(drafted, 0, 1, "x"), Code::FAILED_PRECONDITION, "DRAFT_PENDING");
}

// However far it came, the log is the edited one up to a token, or the one before, and the session goes on as a fresh
// one with that log does.
TEST_F(EditTest, ThatIsCancelledOrLateLeavesABeginningOfTheEditedLog) {
  const std::string text(400, 'e');
  v1::PolicySpec full;
  full.mutable_full();
  full.mutable_trigger()->set_budget(500);
  for (int i = 0; i < 12; ++i) {
    SCOPED_TRACE(i);
    const std::string session = Open(full, 4), fresh = Open(full, 4);
    ASSERT_TRUE(client_.Prefill(PrefillText(session, text)).ok());
    const std::vector<uint32_t> before = Log(session);
    const std::unique_ptr<grpc::ClientContext> context = client_.Context();
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(i));
    v1::EditResponse response;
    const grpc::Status status = client_.inference().Edit(context.get(), Replace(session, 10, 11, "XYZ"), &response);
    EXPECT_TRUE(status.ok() || status.error_code() == Code::DEADLINE_EXCEEDED) << client::Describe(status);
    v1::EvictRequest nothing;  // goes through once nobody writes to the session any more
    nothing.set_session(session);
    nothing.mutable_range()->set_start(1 << 20);
    nothing.mutable_range()->set_end((1 << 20) + 1);
    nothing.set_dry_run(true);
    v1::EvictResponse evicted;
    while (!client_.eviction().Evict(client_.Context().get(), nothing, &evicted).ok()) continue;
    std::vector<uint32_t> edited = before;
    edited.erase(edited.begin() + 10 + kBegin);
    for (const char c : {'Z', 'Y', 'X'}) edited.insert(edited.begin() + 10 + kBegin, static_cast<uint8_t>(c));
    const std::vector<uint32_t> log = Log(session);
    if (log != before) {
      ASSERT_LE(log.size(), edited.size());
      EXPECT_THAT(log, ElementsAreArray(edited.begin(), edited.begin() + static_cast<int64_t>(log.size())));
    }
    v1::PrefillRequest prefill;
    prefill.set_session(fresh);
    prefill.mutable_prompt()->mutable_tokens()->mutable_ids()->Add(log.begin(), log.end());
    ASSERT_TRUE(client_.Prefill(prefill).ok());
    EXPECT_THAT(Decoded(session, 10), ElementsAreArray(Decoded(fresh, 10)));
    EXPECT_TRUE(client_.Delete(session).ok());
    EXPECT_TRUE(client_.Delete(fresh).ok());
  }
  EXPECT_EQ(client_.Status().cache().pages_reserved(), 0U);
}

}  // namespace
}  // namespace ebb
