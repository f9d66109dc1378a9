#include "engine/drafter.h"

#include <algorithm>

#include "policies/check.h"

namespace ebb {
namespace {

constexpr int32_t kPauseSteps = 32;  // the first
constexpr int32_t kPausesMax = 5;    // doublings

// Where the last `size` tokens stood before, newest first; -1: nowhere.
int64_t FindEarlier(std::span<const int32_t> log, int64_t size) {
  const auto end = static_cast<int64_t>(log.size());
  const int32_t* const last = log.data() + end - size;
  for (int64_t at = end - size - 1; at >= 0; --at) {
    if (std::equal(last, last + size, log.data() + at)) return at;
  }
  return -1;
}

}  // namespace

void LookUp(std::span<const int32_t> log, int32_t most, std::vector<int32_t>& draft) {
  draft.clear();
  log = log.last(std::min<size_t>(log.size(), kLookBackTokens));
  for (const int64_t size : {3, 2}) {
    if (static_cast<int64_t>(log.size()) <= size) continue;
    const int64_t found = FindEarlier(log, size);
    if (found < 0) continue;
    const auto from = static_cast<size_t>(found + size);
    for (size_t i = 0; i < static_cast<size_t>(most); ++i) {
      draft.push_back(from + i < log.size() ? log[from + i] : draft[from + i - log.size()]);
    }
    return;
  }
}

void DraftCost::StepTook(int32_t tokens, double seconds) {
  EBB_CHECK(tokens >= 1);
  for (double* sum : {&weight_, &tokens_, &seconds_, &squares_, &products_}) *sum *= kKept;
  weight_ += 1;
  tokens_ += tokens;
  seconds_ += seconds;
  squares_ += static_cast<double>(tokens) * tokens;
  products_ += tokens * seconds;
}

void DraftCost::DraftTook(int32_t tokens, double seconds) {
  EBB_CHECK(tokens >= 1);
  drafted_ = kKept * drafted_ + tokens;
  draft_seconds_ = kKept * draft_seconds_ + seconds;
}

double DraftCost::BreakEven(int32_t sessions) const {
  EBB_CHECK(sessions >= 1);
  if (weight_ == 0 || drafted_ == 0) return 0;
  const double tokens = tokens_ / weight_;
  const double seconds = seconds_ / weight_;
  const double variance = squares_ / weight_ - tokens * tokens;
  const double covariance = products_ / weight_ - tokens * seconds;
  // Steps that were all of one length say nothing of a longer one; and no step takes less time for more tokens.
  const double slope = variance < 1e-6 ? 0 : std::clamp(covariance / variance, 0.0, seconds / tokens);
  const double step = seconds + slope * (sessions - tokens);
  if (step <= 0) return 0;
  return (slope + draft_seconds_ / drafted_) * sessions / step;
}

int32_t DraftLength::Next() {
  if (pause_ == 0) return std::min(length_, most_);
  --pause_;
  return 0;
}

void DraftLength::Settle(int32_t drafted, int32_t accepted, double pays) {
  EBB_CHECK(accepted >= 0);
  EBB_CHECK(accepted <= drafted);
  rate_ += kNew * (static_cast<double>(accepted) / drafted - rate_);
  length_ = accepted == drafted ? std::min(2 * drafted, most_) : accepted + 1;
  if (accepted == drafted && rate_ >= pays) pauses_ = 0;
  if (rate_ >= pays) return;
  pause_ = kPauseSteps << std::min(pauses_++, kPausesMax);
  rate_ = std::min(pays, 1.0);  // the next draft alone decides whether it goes on
}

}  // namespace ebb
