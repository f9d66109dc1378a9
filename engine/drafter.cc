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

int32_t DraftLength::Next() {
  if (pause_ == 0) return std::min(length_, most_);
  --pause_;
  return 0;
}

void DraftLength::Settle(int32_t drafted, int32_t accepted) {
  EBB_CHECK(accepted >= 0);
  EBB_CHECK(accepted <= drafted);
  rate_ += kNew * (static_cast<double>(accepted) / drafted - rate_);
  length_ = accepted == drafted ? std::min(2 * drafted, most_) : accepted + 1;
  if (accepted == drafted) pauses_ = 0;
  if (rate_ >= kPays) return;
  pause_ = kPauseSteps << std::min(pauses_++, kPausesMax);
  rate_ = kPays;  // the next draft alone decides whether it goes on
}

}  // namespace ebb
