#include "policies/caote.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "policies/check.h"

namespace ebb {
namespace {

// What a score weighs: attention is never negative, and rounding or NaN must not make it so.
float Weight(float keep) { return keep > 0 ? keep : 0.0F; }

// Channels that are worked on together: fixed, so that the compiler uses its vectors, and enough that additions do not
// wait for each other.
constexpr int32_t kTogether = 16;

// |a - b|. Subtracts first: |a|^2 - 2 ab + |b|^2 cancels where they are close.
float Distance(const float* a, const float* b, int32_t d) {
  float sum[kTogether] = {};
  int32_t c = 0;
  for (; c + kTogether <= d; c += kTogether) {
    for (int i = 0; i < kTogether; ++i) sum[i] += (a[c + i] - b[c + i]) * (a[c + i] - b[c + i]);
  }
  for (; c < d; ++c) sum[0] += (a[c] - b[c]) * (a[c] - b[c]);
  for (int half = kTogether / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
  }
  return std::sqrt(sum[0]);
}

// out += weight * (v - origin).
void AddDifference(float weight, const float* v, const float* origin, int32_t d, float* out) {
  int32_t c = 0;
  for (; c + kTogether <= d; c += kTogether) {
    float sum[kTogether];
    for (int i = 0; i < kTogether; ++i) sum[i] = out[c + i] + weight * (v[c + i] - origin[c + i]);
    for (int i = 0; i < kTogether; ++i) out[c + i] = sum[i];
  }
  for (; c < d; ++c) out[c] += weight * (v[c] - origin[c]);
}

// The values of a lane's slots.
class Values {
 public:
  explicit Values(const LaneView& lane)
      : d_(lane.memory->head_dim()), all_(lane.memory->Values(0, static_cast<int32_t>(lane.token.size()))) {}

  int32_t d() const { return d_; }
  const float* operator[](size_t slot) const { return all_.data() + slot * static_cast<size_t>(d_); }

  // out [d] = sum_j share(j) v[j], for shares that sum to 1; a slot of share 0 is not read. Sums differences from one
  // of the values, so that what all have in common, however large, is not rounded: equal values give just that value.
  template <typename Share>
  void Average(size_t slots, const Share& share, std::vector<float>& out) const {
    out.assign(d_, 0.0F);
    const float* origin = nullptr;
    for (size_t slot = 0; slot < slots; ++slot) {
      const float s = share(slot);
      if (s == 0) continue;
      if (origin == nullptr) origin = (*this)[slot];
      AddDifference(s, (*this)[slot], origin, d_, out.data());
    }
    for (int32_t c = 0; c < d_ && origin != nullptr; ++c) out[c] += origin[c];
  }

 private:
  int32_t d_ = 0;
  std::span<const float> all_ = {};
};

// c of a slot that holds more than half. 1 - a loses everything as a -> 1, so what the others hold is added up; in
// terms of X', the output that they leave, c = a |X' - v|.
float CostOfTheLargest(const Values& values, CaoteForm form, std::span<const float> keep, size_t largest, double total,
                       CaoteScratch& scratch) {
  double rest = 0;
  for (size_t slot = 0; slot < keep.size(); ++slot) rest += slot == largest ? 0.0F : keep[slot];
  if (rest <= 0) return std::numeric_limits<float>::infinity();
  if (form == CaoteForm::kFast) {
    return static_cast<float>(keep[largest] / rest * Distance(scratch.center.data(), values[largest], values.d()));
  }
  const auto share = [&](size_t slot) { return slot == largest ? 0.0F : static_cast<float>(keep[slot] / rest); };
  values.Average(keep.size(), share, scratch.output);
  return static_cast<float>(keep[largest] / total) * Distance(scratch.output.data(), values[largest], values.d());
}

}  // namespace

void Caote(const LaneView& lane, CaoteForm form, CaoteScratch& scratch, std::span<float> keep) {
  EBB_CHECK(lane.memory != nullptr);
  EBB_CHECK(keep.size() == lane.token.size());
  const Values values(lane);
  const size_t n = keep.size();
  if (n == 0) return;
  double total = 0;
  for (size_t slot = 0; slot < n; ++slot) {
    keep[slot] = lane.token[slot] >= 0 ? Weight(keep[slot]) : 0.0F;
    total += keep[slot];
  }
  if (!(total > 0)) {
    for (size_t slot = 0; slot < n; ++slot) keep[slot] = lane.token[slot] >= 0 ? 1.0F : 0.0F;
    total = lane.live;
  }
  if (form == CaoteForm::kExact) {
    values.Average(
        n, [&](size_t slot) { return static_cast<float>(keep[slot] / total); }, scratch.center);
  } else {
    const float equal = 1 / static_cast<float>(std::max(lane.live, 1));
    values.Average(
        n, [&](size_t slot) { return lane.token[slot] >= 0 ? equal : 0.0F; }, scratch.center);
  }
  const auto largest = static_cast<size_t>(std::ranges::max_element(keep) - keep.begin());
  const bool dominates = 2 * double{keep[largest]} > total;
  const float cost_of_largest = dominates ? CostOfTheLargest(values, form, keep, largest, total, scratch) : 0;
  for (size_t slot = 0; slot < n; ++slot) {
    if (keep[slot] == 0 || (dominates && slot == largest)) continue;
    const auto odds = static_cast<float>(keep[slot] / (total - keep[slot]));
    keep[slot] = odds * Distance(scratch.center.data(), values[slot], values.d());
  }
  if (dominates) keep[largest] = cost_of_largest;
}

EvictionLoss MeasureEviction(const LaneView& lane, std::span<const float> attention, std::span<const int32_t> victims,
                             CaoteScratch& scratch) {
  EBB_CHECK(lane.memory != nullptr);
  EBB_CHECK(attention.size() == lane.token.size());
  const Values values(lane);
  const size_t n = attention.size();
  scratch.kept.assign(n, 0.0F);
  for (size_t slot = 0; slot < n; ++slot) scratch.kept[slot] = lane.token[slot] >= 0 ? Weight(attention[slot]) : 0.0F;
  EvictionLoss loss;
  for (const int32_t slot : victims) {
    EBB_CHECK(lane.token[slot] >= 0);
    loss.mass += Weight(attention[slot]);
    scratch.kept[slot] = 0;
  }
  double kept = 0;
  for (const float a : scratch.kept) kept += a;
  // In terms of X', the output of what stays, nothing is divided by 1 - mass: error = |sum_E a[j] (v[j] - X')|.
  const auto share = [&](size_t slot) { return kept > 0 ? static_cast<float>(scratch.kept[slot] / kept) : 0.0F; };
  values.Average(n, share, scratch.center);
  scratch.output.assign(values.d(), 0.0F);
  for (const int32_t slot : victims) {
    const auto a = static_cast<float>(Weight(attention[slot]) / (kept + loss.mass));
    AddDifference(a, values[slot], scratch.center.data(), values.d(), scratch.output.data());
  }
  double moved = 0;
  double output = 0;
  for (int32_t c = 0; c < values.d(); ++c) {
    const double x = double{scratch.center[c]} + scratch.output[c];
    moved += double{scratch.output[c]} * scratch.output[c];
    output += x * x;
  }
  loss.output = std::sqrt(output);
  loss.error = kept > 0 ? std::sqrt(moved) : 0.0;
  return loss;
}

}  // namespace ebb
