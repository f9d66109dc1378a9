// Calls without gRPC: what they ask of a dispatcher or a worker, and all that came of them.
//
//   RecordedCall call;
//   worker.Start(worker.NewCallId(), AnswerRequest("a", 20, 5), call);
//   EXPECT_THAT(call.Wait().status, IsOk());
//   EXPECT_THAT(call.tokens(), SizeIs(5));

#ifndef EBB_TESTS_UNIT_SERVER_TEST_CALLS_H_
#define EBB_TESTS_UNIT_SERVER_TEST_CALLS_H_

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/call.h"
#include "tests/support/test_engine.h"

namespace ebb {

inline constexpr int32_t kEndless = 1 << 24;  // tokens
inline constexpr int32_t kTestBlock = 16;

inline SessionRequest OpenRequest(const std::string& id, int32_t budget = 24) {
  return {.tenant = "default",
          .id = id,
          .policy = TestPolicy({.scorer = "streaming", .budget = budget}),
          .block_size = kTestBlock};
}

// A prompt of random bytes, then an answer that end tokens do not end. Without a prompt: the session goes on.
inline CallRequest AnswerRequest(const std::string& session, int32_t prompt, int32_t tokens) {
  return {.method = "Generate",
          .tenant = "default",
          .session = session,
          .prompt = RandomTokens(5, prompt, 256),
          .decodes = tokens > 0,
          .sampling = {.seed = 7},
          .stopping = {.max_tokens = tokens, .ignore_eos = true}};
}

class RecordedCall final : public CallOutput {
 public:
  // What the reader says to each block and token; called by who steps the call, after it was recorded.
  using Reading = std::function<Reader(const RecordedCall&)>;
  explicit RecordedCall(Reading reading = {}) : reading_(std::move(reading)) {}

  // Waits for the end. What was recorded may be read after that, or by who steps the call.
  const CallEnd& Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
    return end_;
  }

  bool ended() const {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  const CallEnd& end() const { return end_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<int32_t>& blocks() const { return blocks_; }  // tokens_done of each

 private:
  Reader OnBlock(const BlockDone& block) override {
    EXPECT_FALSE(ended());
    blocks_.push_back(block.tokens_done);
    return reading_ ? reading_(*this) : Reader::kReady;
  }
  Reader OnTokens(const TokensDone& done) override {
    EXPECT_FALSE(ended());
    tokens_.insert(tokens_.end(), done.tokens.begin(), done.tokens.end());
    return reading_ ? reading_(*this) : Reader::kReady;
  }
  void OnScores(std::span<const TokenLogprob> /*scores*/) override { EXPECT_FALSE(ended()); }
  void End(const CallEnd& end, bool /*discard*/) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_) << "a call ends once";
    end_ = end;
    ended_ = true;
    changed_.notify_all();  // while locked: who waits may destroy this
  }

  const Reading reading_;
  std::vector<int32_t> blocks_;
  std::vector<int32_t> tokens_;
  CallEnd end_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
};

}  // namespace ebb

#endif  // EBB_TESTS_UNIT_SERVER_TEST_CALLS_H_
