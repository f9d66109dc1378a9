#include "client/progress.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace ebb::client {
namespace {

template <typename Request>
Asked AskedOf(const Request& request) {
  Asked asked;
  if (request.has_expected_generation()) asked.expected_generation = request.expected_generation();
  if constexpr (requires { request.prompt(); }) {
    asked.reads = true;
    if (request.has_block_size()) asked.block_size = request.block_size();
    if (request.prompt().has_tokens()) asked.prompt_tokens = request.prompt().tokens().ids_size();
  }
  if constexpr (requires { request.stopping(); }) {
    asked.decodes = true;
    asked.logprobs = request.stopping().has_logprobs();
  }
  return asked;
}

}  // namespace

Asked Asked::For(const v1::PrefillRequest& request) { return AskedOf(request); }
Asked Asked::For(const v1::DecodeRequest& request) { return AskedOf(request); }
Asked Asked::For(const v1::GenerateRequest& request) { return AskedOf(request); }

Progress::Progress(const Asked& asked) : asked_(asked), total_(asked.reads ? asked.prompt_tokens : 0) {}

NextStream Progress::Begin(const v1::Session& before) {
  before_ = before;
  generation_ = before.generation();
  return {.expected_generation = asked_.expected_generation.value_or(generation_)};
}

bool Progress::Take(v1::PrefillResponse& message) {
  total_ = done_ + message.tokens_total();
  message.set_tokens_done(static_cast<uint32_t>(done_ + message.tokens_done()));
  message.set_tokens_total(static_cast<uint32_t>(*total_));
  is_whole_ = !asked_.decodes && message.tokens_done() == message.tokens_total();
  return true;
}

absl::StatusOr<bool> Progress::Take(v1::DecodeResponse& message) {
  const auto sent = static_cast<size_t>(message.tokens_size());
  const size_t old = std::min(sent, tokens_.size() - token_at_);
  const size_t old_text = std::min(message.text().size(), text_.size() - text_at_);
  const auto new_begins = message.tokens().begin() + static_cast<ptrdiff_t>(old);
  if (!std::equal(message.tokens().begin(), new_begins, tokens_.begin() + static_cast<ptrdiff_t>(token_at_))) {
    return absl::AbortedError("the session holds other tokens than those that came before the break");
  }
  token_at_ += sent;
  text_at_ += message.text().size();
  message.mutable_tokens()->erase(message.tokens().begin(), new_begins);
  message.mutable_text()->erase(0, old_text);
  message.set_sequence(sequence_);
  tokens_.insert(tokens_.end(), message.tokens().begin(), message.tokens().end());
  text_ += message.text();
  const bool last = message.finish_reason() != v1::FINISH_REASON_UNSPECIFIED;
  is_whole_ = last;
  if (!last && message.tokens().empty() && message.text().empty() && message.evicted_tokens() == 0) return false;
  ++sequence_;
  return true;
}

absl::StatusOr<std::optional<NextStream>> Progress::AfterBreak(const v1::Session& now) {
  const auto read = static_cast<int64_t>(now.prompt_tokens()) - static_cast<int64_t>(before_.prompt_tokens());
  const auto made = static_cast<int64_t>(now.tokens()) - static_cast<int64_t>(before_.tokens()) - read;
  const int64_t whole = total_.value_or(read);
  const bool alone = now.generation() <= generation_ + 1;  // a call raises it once, however much it appends
  const bool fits = done_ <= read && read <= whole && static_cast<int64_t>(tokens_.size()) <= made;
  if (!fits || (made > 0 && !(asked_.decodes && read == whole)) || (!total_ && !alone)) {
    return absl::AbortedError(absl::StrFormat("%s was changed by others after the stream broke", now.name()));
  }
  generation_ = now.generation();
  if (made > 0 || PromptIsIn(read, now)) {
    if (!asked_.decodes) {
      v1::PrefillResponse& last = last_block_.emplace();
      last.set_tokens_done(static_cast<uint32_t>(read));
      last.set_tokens_total(static_cast<uint32_t>(read));
      last.set_cache_length(now.cache_length());
      last.set_generation(now.generation());
      last.mutable_usage()->set_prompt_tokens(static_cast<uint32_t>(read));
      last.mutable_usage()->set_cache_length(now.cache_length());
      last.mutable_usage()->set_session_tokens(now.tokens());
      return std::optional<NextStream>();
    }
    if (asked_.logprobs && made > 0) {
      return absl::AbortedError("log-probabilities of tokens that were sent are not kept");
    }
    token_at_ = text_at_ = 0;
    return std::optional<NextStream>(
        {.expected_generation = generation_, .resume_from = before_.tokens() + static_cast<uint64_t>(read)});
  }
  if (read == 0) {
    return std::optional<NextStream>({.expected_generation = asked_.expected_generation.value_or(generation_)});
  }
  if (!asked_.prompt_tokens) {
    return absl::AbortedError(
        absl::StrFormat("%d tokens of the prompt are in %s; which are missing is known only of prompts of token ids",
                        read, now.name()));
  }
  done_ = read;
  return std::optional<NextStream>({.expected_generation = generation_, .prompt_skip = read});
}

bool Progress::PromptIsIn(int64_t read, const v1::Session& now) const {
  if (total_) return read == *total_;
  return read % asked_.block_size.value_or(now.block_size()) != 0;  // only a prompt's last block is shorter
}

}  // namespace ebb::client
