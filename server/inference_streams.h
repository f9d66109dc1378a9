// The outputs of inference calls: what the worker reports becomes messages of ebb.v1.

#ifndef EBB_SERVER_INFERENCE_STREAMS_H_
#define EBB_SERVER_INFERENCE_STREAMS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ebb/v1/inference.pb.h"
#include "server/call.h"
#include "server/model_hold.h"
#include "server/rpc.h"
#include "server/stream_reactor.h"

namespace ebb {

// Times between the tokens that are written to one stream.
class TokenClock {
 public:
  // Tokens of the model are handed to gRPC now.
  void Write(const Rpc& rpc, ServedModel& model, int tokens);

 private:
  const TenantMetrics* metrics_ = nullptr;  // once there is a token
  absl::Time last_ = {};
};

// A stream's call. Message is what it sends; FromBlock and FromTokens say how.
template <typename Message>
class CallStream : public StreamReactor<Message>, public CallOutput {
 public:
  CallStream(const ServiceParts& parts, std::string_view method, const grpc::CallbackServerContext& context);
  ~CallStream() override { parts_.streams.Remove(context_); }

  const Rpc& rpc() const { return rpc_; }
  // Starts the call, or ends it with the refusal. The stream may be gone when this returns.
  void Begin(absl::StatusOr<ModelCall> call);

 protected:
  void Count(int tokens) { token_clock_.Write(rpc_, hold_.model(), tokens); }
  const ModelHold& hold() const { return hold_; }
  void Ran(const CallUsage& usage) { rpc_.Ran(usage); }
  // The stream ends: nothing comes after this.
  void EndStream(const absl::Status& status, bool discard) { this->Close(rpc_.Finish(status), discard); }
  void OnCaughtUp() override {
    if (hold_.was_taken()) hold_.worker().ReaderReady(hold_.id());
  }
  void OnCancel() override {
    if (hold_.was_taken()) hold_.worker().Cancel(hold_.id());
  }
  void End(const CallEnd& end, bool discard) override;
  const ServiceParts& parts_;

 private:
  void OnScores(std::span<const TokenLogprob> /*scores*/) final {}
  // The call has its number, and begins next.
  virtual void OnBegin(const CallRequest& /*call*/) {}
  // The last messages of a call that ended well.
  virtual void PushEnd(const CallEnd& end) = 0;
  // What is held back, when it did not.
  virtual void PushHeld() {}

  const grpc::CallbackServerContext& context_;
  ModelHold hold_;
  Rpc rpc_;
  TokenClock token_clock_;
};

class PrefillStream final : public CallStream<v1::PrefillResponse> {
 public:
  using CallStream::CallStream;

 private:
  Reader OnBlock(const BlockDone& block) override;
  Reader OnTokens(const TokensDone& /*tokens*/) override { return Reader::kReady; }
  void PushEnd(const CallEnd& end) override;
  void PushHeld() override;
  void OnWrite(v1::PrefillResponse& message, uint64_t sequence) override { message.set_sequence(sequence); }
  bool Merge(v1::PrefillResponse& /*waiting*/, v1::PrefillResponse& /*next*/) override { return false; }

  std::optional<v1::PrefillResponse> last_ = {};  // the last block's: waits for the usage
};

class DecodeStream final : public CallStream<v1::DecodeResponse> {
 public:
  using CallStream::CallStream;

 private:
  Reader OnBlock(const BlockDone& /*block*/) override { return Reader::kReady; }
  Reader OnTokens(const TokensDone& tokens) override;
  void PushEnd(const CallEnd& end) override;
  void OnWrite(v1::DecodeResponse& message, uint64_t sequence) override;
  bool Merge(v1::DecodeResponse& waiting, v1::DecodeResponse& next) override;
};

// One answer, or several, of which each but the first has a call of its own. What ends one with an error ends all.
class GenerateStream final : public CallStream<v1::GenerateResponse> {
 public:
  using CallStream::CallStream;

 private:
  // The call of answer `index` >= 1.
  struct Answer final : CallOutput {
    Answer(GenerateStream& of, uint32_t place) : stream(of), index(place) {}

    Reader OnBlock(const BlockDone& /*block*/) override { return Reader::kReady; }
    Reader OnTokens(const TokensDone& tokens) override { return stream.PushTokens(tokens, index); }
    void OnScores(std::span<const TokenLogprob> /*scores*/) override {}
    void End(const CallEnd& end, bool discard) override { stream.EndAnswer(end, discard, index); }

    GenerateStream& stream;
    const uint32_t index;
  };

  Reader OnBlock(const BlockDone& block) override;
  Reader OnTokens(const TokensDone& tokens) override { return PushTokens(tokens, 0); }
  void OnBegin(const CallRequest& call) override;
  CallOutput* Branch(size_t index) override;
  void End(const CallEnd& end, bool discard) override { EndAnswer(end, discard, 0); }
  void PushEnd(const CallEnd& /*end*/) override {}
  void OnCaughtUp() override;
  void OnCancel() override;
  void OnWrite(v1::GenerateResponse& message, uint64_t sequence) override;
  bool Merge(v1::GenerateResponse& waiting, v1::GenerateResponse& next) override;
  Reader PushTokens(const TokensDone& tokens, uint32_t index);
  void EndAnswer(const CallEnd& end, bool discard, uint32_t index);

  std::vector<CallId> calls_ = {};                     // of all answers
  std::vector<std::unique_ptr<Answer>> answers_ = {};  // the worker's, as are those below; from the second on
  size_t running_ = 1;
  absl::Status failure_ = {};  // the first
  bool discard_ = false;
};

// A call that answers once: a class of its own says what of the call goes into the answer.
template <typename Response>
class CallReply : public grpc::ServerUnaryReactor, public CallOutput {
 public:
  CallReply(const ServiceParts& parts, std::string_view method, const grpc::CallbackServerContext& context,
            Response& response)
      : parts_(parts), response_(response), hold_(context), rpc_(parts, method, context) {}

  const Rpc& rpc() const { return rpc_; }
  // As CallStream::Begin.
  void Begin(absl::StatusOr<ModelCall> call);

 protected:
  const Tokenizer& tokenizer() const { return hold_.worker().tokenizer(); }

  const ServiceParts& parts_;
  Response& response_;

 private:
  Reader OnBlock(const BlockDone& /*block*/) override { return Reader::kReady; }
  Reader OnTokens(const TokensDone& /*tokens*/) override { return Reader::kReady; }
  void OnScores(std::span<const TokenLogprob> /*scores*/) override {}
  void End(const CallEnd& end, bool discard) final;
  void OnCancel() final {
    if (hold_.was_taken()) hold_.worker().Cancel(hold_.id());
  }
  void OnDone() final { delete this; }
  // The end of a call that ended well.
  virtual void OnEnd(const CallEnd& end) = 0;

  ModelHold hold_;
  Rpc rpc_;
};

class ScoreReply final : public CallReply<v1::ScoreResponse> {
 public:
  using CallReply::CallReply;

 private:
  void OnScores(std::span<const TokenLogprob> scores) override;
  void OnEnd(const CallEnd& end) override;
};

class VerifyReply final : public CallReply<v1::VerifyResponse> {
 public:
  using CallReply::CallReply;

 private:
  Reader OnTokens(const TokensDone& tokens) override;
  void OnDraft(const DraftDone& draft) override;
  void OnEnd(const CallEnd& end) override;
};

class EditReply final : public CallReply<v1::EditResponse> {
 public:
  using CallReply::CallReply;

 private:
  void OnEdit(const EditDone& edit) override;
  void OnEnd(const CallEnd& end) override;
};

}  // namespace ebb

#endif  // EBB_SERVER_INFERENCE_STREAMS_H_
