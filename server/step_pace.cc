#include "server/step_pace.h"

#include <algorithm>
#include <cmath>

namespace ebb {
namespace {

constexpr double kShare = 1.0 / 16;  // of a new step in the means
constexpr double kSpreadMin = 1.0;   // tokens squared: below, all steps count as equally long

}  // namespace

void StepPace::Took(int32_t tokens, absl::Duration took) {
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(took));
  const bool is_first = longest_ == 0;
  longest_ = std::max<double>(tokens, (1 - kShare) * longest_);
  if (is_first) {
    mean_tokens_ = tokens;
    mean_ = seconds;
    return;
  }
  const double more_tokens = tokens - mean_tokens_;
  const double longer = seconds - mean_;
  mean_tokens_ += kShare * more_tokens;
  mean_ += kShare * longer;
  spread_ = (1 - kShare) * (spread_ + kShare * more_tokens * more_tokens);
  shared_ = (1 - kShare) * (shared_ + kShare * more_tokens * longer);
}

int32_t StepPace::tokens() const {
  if (longest_ == 0 || std::isinf(target_)) return kFree;
  const double most = mean_ / mean_tokens_;  // a line through nothing
  const double each = spread_ < kSpreadMin ? most : std::clamp(shared_ / spread_, 0.0, most);
  const double left = target_ - (mean_ - each * mean_tokens_);
  if (left < each) return 0;
  const double tokens_max = std::min<double>(2 * longest_, kFree);
  return static_cast<int32_t>(left >= each * tokens_max ? tokens_max : left / each);
}

}  // namespace ebb
