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

std::optional<int32_t> LastLogits::DrawTokenFromFacts(const SamplingOptions& options, std::span<const int32_t> log,
                                                      Sampler& sampler) const {
  return is_away() ? sampler.DrawTokenFrom(options, facts(), log) : std::nullopt;
}

}  // namespace ebb
