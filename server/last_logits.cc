#include "server/last_logits.h"

#include <iterator>
#include <optional>

#include "policies/check.h"
#include "policies/status.h"

namespace ebb {

void LastLogits::TakeWhole(std::span<const float> whole) {
  whole_.assign(whole.begin(), whole.end());
  largest_.clear();
}

void LastLogits::TakeFacts(const RowFacts& facts) {
  whole_.clear();
  asked_ = facts.asked;
  largest_.assign(facts.largest.begin(), facts.largest.end());
  mass_ = facts.mass;
}

absl::StatusOr<std::span<const float>> LastLogits::Whole(Engine& engine, Session& session) {
  if (is_away()) {
    EBB_ASSIGN(whole_, engine.TakeLogits(session));
    EBB_CHECK(std::ssize(whole_) == engine.config().vocab);
  }
  return std::span<const float>(whole_);
}

absl::StatusOr<int32_t> LastLogits::DrawToken(const SamplingOptions& options, Engine& engine, Session& session,
                                              Sampler& sampler) {
  if (is_away()) {
    const std::optional<int32_t> token = sampler.DrawTokenFrom(options, facts(), session.log());
    if (token) return *token;
  }
  EBB_ASSIGN(const std::span<const float> whole, Whole(engine, session));
  return sampler.DrawToken(options, whole, session.log());
}

}  // namespace ebb
