#include "server/inference_streams.h"

#include <utility>

#include "server/convert_edit.h"
#include "server/reply.h"

namespace ebb {
namespace {

constexpr int kMergedTokensMax = 16;  // tokens in a message when the reader lags

v1::PrefillResponse BlockProto(const BlockDone& block) {
  v1::PrefillResponse proto;
  proto.set_tokens_done(static_cast<uint32_t>(block.tokens_done));
  proto.set_tokens_total(static_cast<uint32_t>(block.tokens_total));
  proto.set_cache_length(static_cast<uint32_t>(block.cache_length));
  proto.set_evicted_tokens(static_cast<uint32_t>(block.evicted));
  proto.set_elapsed_ms(absl::ToDoubleMilliseconds(block.elapsed));
  return proto;
}

v1::DecodeResponse TokensProto(const TokensDone& done, const Tokenizer& tokenizer) {
  v1::DecodeResponse proto;
  proto.mutable_tokens()->Add(done.tokens.begin(), done.tokens.end());
  proto.set_text(done.text);
  if (done.drawn != nullptr && !done.tokens.empty()) *proto.add_logprobs() = LogprobProto(*done.drawn, tokenizer);
  proto.set_evicted_tokens(static_cast<uint32_t>(done.evicted));
  proto.set_cache_length(static_cast<uint32_t>(done.cache_length));
  return proto;
}

v1::DecodeResponse EndProto(const CallEnd& end) {
  v1::DecodeResponse proto;
  proto.set_text(end.text);
  proto.set_evicted_tokens(static_cast<uint32_t>(end.evicted));
  proto.set_cache_length(static_cast<uint32_t>(end.usage.cache_length));
  proto.set_finish_reason(FinishProto(end.finish));
  *proto.mutable_usage() = UsageProto(end.usage);
  *proto.mutable_timings() = TimingsProto(end.timings);
  proto.set_generation(end.generation);
  return proto;
}

bool MergeTokens(v1::DecodeResponse& waiting, v1::DecodeResponse& next) {
  if (waiting.tokens_size() + next.tokens_size() > kMergedTokensMax) return false;
  const std::string text = waiting.text() + next.text();
  const uint32_t evicted = waiting.evicted_tokens() + next.evicted_tokens();
  waiting.MergeFrom(next);  // appends lists, takes the rest of `next` where it is set
  waiting.set_text(text);
  waiting.set_evicted_tokens(evicted);
  return true;
}

}  // namespace

void TokenClock::Write(const Rpc& rpc, ServedModel& model, int tokens) {
  if (tokens == 0) return;
  const absl::Time now = model.worker().Now();
  if (metrics_ == nullptr) {
    metrics_ = &model.metrics().tenant(*rpc.tenant());
    metrics_->ttft.Observe(now - rpc.received());
  } else {
    for (int i = 0; i < tokens; ++i) metrics_->inter_token.Observe((now - last_) / tokens);
  }
  last_ = now;
}

template <typename Message>
CallStream<Message>::CallStream(const ServiceParts& parts, std::string_view method,
                                const grpc::CallbackServerContext& context)
    : StreamReactor<Message>(parts.stream_buffer),
      parts_(parts),
      context_(context),
      hold_(context),
      rpc_(parts, method, context) {
  parts_.streams.Add(context_);
}

template <typename Message>
void CallStream<Message>::Begin(absl::StatusOr<ModelCall> call) {
  if (!call.ok()) return End({.status = call.status()}, false);
  const ModelLease model = hold_.Take(std::move(call->model));
  rpc_.About(call->question.session, model->name());
  OnBegin(call->question);
  model->worker().Start(hold_.id(), std::move(call->question), *this);
}

template <typename Message>
void CallStream<Message>::End(const CallEnd& end, bool discard) {
  rpc_.Ran(end.usage);
  if (end.status.ok()) {
    if (end.finish != FinishReason::kNone) hold_.model().metrics().finished(FinishProto(end.finish)).Add();
    PushEnd(end);
  } else {
    PushHeld();
  }
  EndStream(end.status, discard);
}

template class CallStream<v1::PrefillResponse>;
template class CallStream<v1::DecodeResponse>;
template class CallStream<v1::GenerateResponse>;

Reader PrefillStream::OnBlock(const BlockDone& block) {
  if (block.tokens_done < block.tokens_total) return Push(BlockProto(block));
  last_ = BlockProto(block);
  return Reader::kReady;
}

void PrefillStream::PushHeld() {
  if (last_) Push(*std::move(last_));
}

void PrefillStream::PushEnd(const CallEnd& end) {
  *last_->mutable_usage() = UsageProto(end.usage);
  *last_->mutable_timings() = TimingsProto(end.timings);
  last_->set_generation(end.generation);
  PushHeld();
}

Reader DecodeStream::OnTokens(const TokensDone& tokens) {
  return Push(TokensProto(tokens, hold().worker().tokenizer()));
}

void DecodeStream::PushEnd(const CallEnd& end) { Push(EndProto(end)); }

void DecodeStream::OnWrite(v1::DecodeResponse& message, uint64_t sequence) {
  message.set_sequence(sequence);
  Count(message.tokens_size());
}

bool DecodeStream::Merge(v1::DecodeResponse& waiting, v1::DecodeResponse& next) { return MergeTokens(waiting, next); }

Reader GenerateStream::OnBlock(const BlockDone& block) {
  v1::GenerateResponse proto;
  *proto.mutable_prefill() = BlockProto(block);
  return Push(std::move(proto));
}

void GenerateStream::OnBegin(const CallRequest& call) {
  calls_.push_back(hold().id());
  for (const AnswerBranch& branch : call.branches) calls_.push_back(branch.call);
}

CallOutput* GenerateStream::Branch(size_t index) {
  ++running_;
  return answers_.emplace_back(std::make_unique<Answer>(*this, static_cast<uint32_t>(index) + 1)).get();
}

Reader GenerateStream::PushTokens(const TokensDone& tokens, uint32_t index) {
  v1::GenerateResponse proto;
  *proto.mutable_decode() = TokensProto(tokens, hold().worker().tokenizer());
  proto.set_index(index);
  return Push(std::move(proto));
}

void GenerateStream::EndAnswer(const CallEnd& end, bool discard, uint32_t index) {
  discard_ = discard_ || discard;
  Ran(end.usage);
  if (end.status.ok()) {
    hold().model().metrics().finished(FinishProto(end.finish)).Add();
    v1::GenerateResponse proto;
    *proto.mutable_decode() = EndProto(end);
    proto.set_index(index);
    Push(std::move(proto));
  } else if (failure_.ok()) {
    failure_ = end.status;
    for (const CallId call : calls_) hold().worker().Cancel(call);
  }
  if (--running_ == 0) EndStream(failure_, discard_);
}

void GenerateStream::OnCaughtUp() {
  if (!hold().was_taken()) return;
  for (const CallId call : calls_) hold().worker().ReaderReady(call);
}

void GenerateStream::OnCancel() {
  if (!hold().was_taken()) return;
  for (const CallId call : calls_) hold().worker().Cancel(call);
}

void GenerateStream::OnWrite(v1::GenerateResponse& message, uint64_t sequence) {
  if (message.has_prefill()) return message.mutable_prefill()->set_sequence(sequence);
  message.mutable_decode()->set_sequence(sequence);
  if (message.index() == 0) Count(message.decode().tokens_size());
}

bool GenerateStream::Merge(v1::GenerateResponse& waiting, v1::GenerateResponse& next) {
  return waiting.has_decode() && next.has_decode() && waiting.index() == next.index() &&
         MergeTokens(*waiting.mutable_decode(), *next.mutable_decode());
}

template <typename Response>
void CallReply<Response>::Begin(absl::StatusOr<ModelCall> call) {
  if (!call.ok()) return End({.status = call.status()}, false);
  const ModelLease model = hold_.Take(std::move(call->model));
  rpc_.About(call->question.session, model->name());
  model->worker().Start(hold_.id(), std::move(call->question), *this);
}

template <typename Response>
void CallReply<Response>::End(const CallEnd& end, bool /*discard*/) {
  rpc_.Ran(end.usage);
  if (end.status.ok()) OnEnd(end);
  Finish(rpc_.Finish(end.status));
}

template class CallReply<v1::ScoreResponse>;
template class CallReply<v1::VerifyResponse>;
template class CallReply<v1::EditResponse>;

void ScoreReply::OnScores(std::span<const TokenLogprob> scores) {
  for (const TokenLogprob& score : scores) {
    *response_.add_tokens() = LogprobProto(score, tokenizer());
    response_.set_logprob(response_.logprob() + score.logprob);
  }
}

void ScoreReply::OnEnd(const CallEnd& end) { *response_.mutable_usage() = UsageProto(end.usage); }

void VerifyReply::OnDraft(const DraftDone& draft) {
  for (const Drawn& score : draft.scores) *response_.add_scores() = LogprobProto(score, tokenizer());
  response_.set_accepted(static_cast<uint32_t>(draft.accepted));
  response_.set_pending(static_cast<uint32_t>(draft.pending));
  if (draft.likeliest != nullptr) *response_.mutable_next() = LogprobProto(*draft.likeliest, tokenizer());
}

Reader VerifyReply::OnTokens(const TokensDone& tokens) {
  if (tokens.drawn != nullptr) *response_.mutable_next() = LogprobProto(*tokens.drawn, tokenizer());
  return Reader::kReady;
}

void VerifyReply::OnEnd(const CallEnd& end) {
  // That a Verify adds one token at most is no reason to stop.
  if (end.finish != FinishReason::kMaxTokens) response_.set_finish_reason(FinishProto(end.finish));
  *response_.mutable_usage() = UsageProto(end.usage);
  *response_.mutable_timings() = TimingsProto(end.timings);
  response_.set_generation(end.generation);
}

void EditReply::OnEdit(const EditDone& edit) { FillEdit(edit, response_); }

void EditReply::OnEnd(const CallEnd& end) {
  *response_.mutable_usage() = UsageProto(end.usage);
  *response_.mutable_timings() = TimingsProto(end.timings);
  response_.set_generation(end.generation);
}

}  // namespace ebb
