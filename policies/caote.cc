#include "policies/caote.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "policies/check.h"

namespace ebb {
namespace {

// What `keep` of a live slot weighs: attention is never negative, and rounding or NaN must not make it so.
float Weight(float keep) { return keep > 0 ? keep : 0.0F; }

// |a - b|. Subtracts first: |a|^2 - 2 ab + |b|^2 cancels where they are close. Four sums, so that the loop is not one
// chain of additions.
float Distance(const float* a, const float* b, int32_t d) {
  float sum[4] = {};
  int32_t c = 0;
  for (; c + 4 <= d; c += 4) {
    for (int i = 0; i < 4; ++i) sum[i] += (a[c + i] - b[c + i]) * (a[c + i] - b[c + i]);
  }
  for (; c < d; ++c) sum[0] += (a[c] - b[c]) * (a[c] - b[c]);
  return std::sqrt((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// out += weight * row.
void AddScaled(float weight, const float* row, std::span<float> out) {
  for (size_t c = 0; c < out.size(); ++c) out[c] += weight * row[c];
}

void Scale(float by, std::span<float> row) {
  for (float& x : row) x *= by;
}

// The cost of a slot that holds most of the attention, without the subtraction 1 - a, which loses everything as a -> 1.
float CostOfTheLargest(const LaneView& lane, std::span<const float> keep, std::span<const float> values,
                       int32_t largest, float total, CaoteForm form, CaoteScratch& scratch) {
  const int32_t d = lane.memory->head_dim();
  const float* v = values.data() + int64_t{largest} * d;
  std::ranges::fill(scratch.output, 0.0F);
  double rest = 0;
  for (size_t slot = 0; slot < keep.size(); ++slot) {
    if (lane.token[slot] < 0 || static_cast<int32_t>(slot) == largest) continue;
    rest += Weight(keep[slot]);
    AddScaled(Weight(keep[slot]), values.data() + static_cast<int64_t>(slot) * d, scratch.output);
  }
  if (rest <= 0) return std::numeric_limits<float>::infinity();
  const float a = Weight(keep[largest]) / total;
  if (form == CaoteForm::kFast) {
    return static_cast<float>(Weight(keep[largest]) / rest * Distance(scratch.center.data(), v, d));
  }
  Scale(static_cast<float>(1 / rest), scratch.output);  // the output without it; c = a |X' - v|
  return a * Distance(scratch.output.data(), v, d);
}

}  // namespace

void Caote(const LaneView& lane, CaoteForm form, CaoteScratch& scratch, std::span<float> keep) {
  EBB_CHECK(lane.memory != nullptr);
  EBB_CHECK(keep.size() == lane.token.size());
  const int32_t d = lane.memory->head_dim();
  const auto n = static_cast<int32_t>(keep.size());
  const std::span<const float> values = lane.memory->Values(0, n);
  double sum = 0;
  for (int32_t slot = 0; slot < n; ++slot) sum += lane.token[slot] >= 0 ? Weight(keep[slot]) : 0.0F;
  if (!(sum > 0)) {
    for (int32_t slot = 0; slot < n; ++slot) keep[slot] = lane.token[slot] >= 0 ? 1.0F : 0.0F;
    sum = lane.live;
  }
  const auto total = static_cast<float>(sum);
  scratch.output.assign(d, 0.0F);
  scratch.center.assign(d, 0.0F);
  int32_t largest = -1;
  for (int32_t slot = 0; slot < n; ++slot) {
    if (lane.token[slot] < 0) continue;
    const float* v = values.data() + int64_t{slot} * d;
    AddScaled(form == CaoteForm::kExact ? Weight(keep[slot]) / total : 1.0F / static_cast<float>(lane.live), v,
              scratch.center);
    if (Weight(keep[slot]) / total > 0.5F) largest = slot;
  }
  const float cost_of_largest = largest < 0 ? 0 : CostOfTheLargest(lane, keep, values, largest, total, form, scratch);
  for (int32_t slot = 0; slot < n; ++slot) {
    if (lane.token[slot] < 0) {
      keep[slot] = 0;
      continue;
    }
    if (slot == largest) continue;
    const float a = Weight(keep[slot]) / total;
    keep[slot] = a / (1 - a) * Distance(scratch.center.data(), values.data() + int64_t{slot} * d, d);
  }
  if (largest >= 0) keep[largest] = cost_of_largest;
}

EvictionLoss MeasureEviction(const LaneView& lane, std::span<const float> attention, std::span<const int32_t> victims,
                             CaoteScratch& scratch) {
  EBB_CHECK(lane.memory != nullptr);
  EBB_CHECK(attention.size() == lane.token.size());
  const int32_t d = lane.memory->head_dim();
  const auto n = static_cast<int32_t>(attention.size());
  const std::span<const float> values = lane.memory->Values(0, n);
  scratch.output.assign(d, 0.0F);
  scratch.center.assign(d, 0.0F);
  double kept = 0;
  EvictionLoss loss;
  for (int32_t slot = 0; slot < n; ++slot) {
    if (lane.token[slot] >= 0) kept += attention[slot];
    AddScaled(attention[slot], values.data() + int64_t{slot} * d, scratch.output);
  }
  for (const int32_t slot : victims) {
    EBB_CHECK(lane.token[slot] >= 0);
    loss.mass += attention[slot];
    const float* v = values.data() + int64_t{slot} * d;
    for (int32_t c = 0; c < d; ++c) scratch.center[c] += attention[slot] * (v[c] - scratch.output[c]);
  }
  kept = std::max(0.0, kept - loss.mass);
  double moved = 0;
  double output = 0;
  for (int32_t c = 0; c < d; ++c) {
    moved += double{scratch.center[c]} * scratch.center[c];
    output += double{scratch.output[c]} * scratch.output[c];
  }
  loss.output = std::sqrt(output);
  loss.error = kept > 1e-12 ? std::sqrt(moved) / kept : 0.0;
  return loss;
}

}  // namespace ebb
