#include "server/experiments/decision.h"

#include <algorithm>

#include "policies/check.h"

namespace ebb {

Verdict VerdictOn(const std::optional<Difference>& effect, int direction, double margin, bool broken) {
  if (broken) return Verdict::kBroken;
  if (!effect) return Verdict::kCollecting;
  const auto [low, high] = effect->interval;
  if (low == high) return Verdict::kCollecting;  // units that are all alike say nothing of how others may differ
  if (-margin <= low && high <= margin) return Verdict::kSame;
  if (low > 0) return direction > 0 ? Verdict::kBetter : Verdict::kWorse;
  if (high < 0) return direction > 0 ? Verdict::kWorse : Verdict::kBetter;
  return Verdict::kCollecting;
}

Decision DecisionOf(std::span<const Verdict> verdicts, std::span<const std::optional<Difference>> effects,
                    int direction) {
  EBB_CHECK(!verdicts.empty() && verdicts.size() == effects.size());
  std::optional<size_t> best;
  for (size_t i = 0; i < verdicts.size(); ++i) {
    if (verdicts[i] == Verdict::kBroken) return {.verdict = Verdict::kBroken};
    if (verdicts[i] != Verdict::kBetter) continue;
    if (!best || (effects[i]->value - effects[*best]->value) * direction > 0) best = i;
  }
  if (best) return {.verdict = Verdict::kBetter, .arm = *best + 1};
  const auto all_are = [&](auto is) { return std::ranges::all_of(verdicts, is); };
  if (all_are([](Verdict verdict) { return verdict == Verdict::kSame; })) return {.verdict = Verdict::kSame};
  if (all_are([](Verdict verdict) { return verdict == Verdict::kSame || verdict == Verdict::kWorse; })) {
    return {.verdict = Verdict::kWorse};
  }
  return {.verdict = Verdict::kCollecting};
}

}  // namespace ebb
