#include "policies/caote.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "policies/check.h"
#include "policies/rows.h"
#include "policies/wide.h"

namespace ebb {
namespace {

// What a score weighs: attention is never negative, and rounding or NaN must not make it so.
float Weight(float keep) { return keep > 0 ? keep : 0.0F; }

// Values are read some slots at a time, and again where they are needed again: as floats all of a lane's would no
// longer be in the nearest cache, which costs more than turning them into floats twice.
constexpr size_t kSlotsAtOnce = 32;

// Calls use(rows, first slot, slots) with the values of all slots.
template <typename Use>
void ForValues(const LaneView& lane, const Use& use) {
  for (size_t first = 0; first < lane.token.size(); first += kSlotsAtOnce) {
    const size_t count = std::min(lane.token.size() - first, kSlotsAtOnce);
    use(RowsView{.at = lane.memory->Values(static_cast<int32_t>(first), static_cast<int32_t>(count)),
                 .d = lane.memory->head_dim()},
        first, count);
  }
}

// out [d] = sum_j share[j] v[j], for shares that sum to 1; a slot of share 0 is not read. Sums differences from one of
// the values, so that what all have in common, however large, is not rounded: equal values give just that value.
void Average(const LaneView& lane, std::span<const float> share, std::vector<float>& origin, std::vector<float>& out) {
  out.assign(lane.memory->head_dim(), 0.0F);
  const auto first = std::ranges::find_if(share, [](float s) { return s != 0; }) - share.begin();
  if (first == std::ssize(share)) return;
  const std::span<const float> row = lane.memory->Values(static_cast<int32_t>(first), 1);
  origin.assign(row.begin(), row.end());
  ForValues(lane, [&](const RowsView& values, size_t at, size_t count) {
    AddDifferences(values, share.subspan(at, count), origin, out);
  });
  for (size_t c = 0; c < out.size(); ++c) out[c] += origin[c];
}

// |center - v| of one slot.
float Distance(const LaneView& lane, size_t slot, std::span<const float> center) {
  float distance = 0;
  Distances({.at = lane.memory->Values(static_cast<int32_t>(slot), 1), .d = lane.memory->head_dim()}, center,
            {&distance, 1});
  return distance;
}

// c of a slot that holds more than half. 1 - a loses everything as a -> 1, so what the others hold is added up; in
// terms of X', the output that they leave, c = a |X' - v|.
float CostOfTheLargest(const LaneView& lane, CaoteForm form, std::span<const float> keep, size_t largest, double total,
                       CaoteScratch& scratch) {
  double rest = 0;
  for (size_t slot = 0; slot < keep.size(); ++slot) rest += slot == largest ? 0.0F : keep[slot];
  if (rest <= 0) return std::numeric_limits<float>::infinity();
  if (form == CaoteForm::kFast) {
    return static_cast<float>(keep[largest] / rest * Distance(lane, largest, scratch.center));
  }
  for (size_t slot = 0; slot < keep.size(); ++slot) {
    scratch.share[slot] = slot == largest ? 0.0F : static_cast<float>(keep[slot] / rest);
  }
  Average(lane, scratch.share, scratch.origin, scratch.output);
  return static_cast<float>(keep[largest] / total) * Distance(lane, largest, scratch.output);
}

struct Weights {
  double total = 0;
  float largest = 0;
};

// Writes what a slot weighs, >= 0, over its score; 0 for a free one.
EBB_WIDE Weights WeighSlots(const int32_t* token, float* keep, int64_t n) {
  constexpr int kParts = 16;
  double total[kParts] = {};
  float largest[kParts] = {};
  for (int64_t slot = 0; slot < n; slot += kParts) {
    const int64_t end = std::min<int64_t>(n - slot, kParts);
    for (int64_t i = 0; i < end; ++i) {
      const float weight = token[slot + i] >= 0 ? Weight(keep[slot + i]) : 0.0F;
      keep[slot + i] = weight;
      total[i] += weight;
      largest[i] = std::max(largest[i], weight);
    }
  }
  return {.total = std::accumulate(total, total + kParts, 0.0),
          .largest = *std::max_element(largest, largest + kParts)};
}

// Likewise; where nobody has any, all live slots weigh 1.
Weights Weigh(const LaneView& lane, std::span<float> keep) {
  const Weights weights = WeighSlots(lane.token.data(), keep.data(), std::ssize(keep));
  if (weights.total > 0) return weights;
  for (size_t slot = 0; slot < keep.size(); ++slot) keep[slot] = lane.token[slot] >= 0 ? 1.0F : 0.0F;
  return {.total = static_cast<double>(lane.live), .largest = lane.live > 0 ? 1.0F : 0.0F};
}

// odds [n] = a / (1 - a) of each slot.
EBB_WIDE void Odds(const float* keep, int64_t n, double total, float* odds) {
  for (int64_t slot = 0; slot < n; ++slot) odds[slot] = static_cast<float>(keep[slot] / (total - keep[slot]));
}

EBB_WIDE void Shares(const float* keep, int64_t n, double total, float* share) {
  for (int64_t slot = 0; slot < n; ++slot) share[slot] = static_cast<float>(keep[slot] / total);
}

}  // namespace

void CaoteScratch::Reserve(int32_t slots, int32_t head_dim) {
  for (std::vector<float>* one : {&share, &distance}) one->reserve(static_cast<size_t>(slots));
  for (std::vector<float>* one : {&origin, &output, &center}) one->reserve(static_cast<size_t>(head_dim));
}

void Caote(const LaneView& lane, CaoteForm form, CaoteScratch& scratch, std::span<float> keep) {
  EBB_CHECK(lane.memory != nullptr);
  EBB_CHECK(keep.size() == lane.token.size());
  if (keep.empty()) return;
  const size_t n = keep.size();
  const auto [total, most] = Weigh(lane, keep);
  scratch.share.resize(n);
  scratch.distance.resize(n);
  if (form == CaoteForm::kExact) {
    Shares(keep.data(), std::ssize(keep), total, scratch.share.data());
  } else {
    const float equal = 1 / static_cast<float>(std::max(lane.live, 1));
    for (size_t slot = 0; slot < n; ++slot) scratch.share[slot] = lane.token[slot] >= 0 ? equal : 0.0F;
  }
  Average(lane, scratch.share, scratch.origin, scratch.center);
  const bool dominates = 2 * double{most} > total;
  const auto largest = static_cast<size_t>(dominates ? std::ranges::find(keep, most) - keep.begin() : 0);
  const float cost_of_largest = dominates ? CostOfTheLargest(lane, form, keep, largest, total, scratch) : 0;
  ForValues(lane, [&](const RowsView& values, size_t at, size_t count) {
    Distances(values, scratch.center, std::span(scratch.distance).subspan(at, count));
  });
  Odds(keep.data(), std::ssize(keep), total, scratch.share.data());
  for (size_t slot = 0; slot < n; ++slot) {
    if (keep[slot] != 0) keep[slot] = scratch.share[slot] * scratch.distance[slot];
  }
  if (dominates) keep[largest] = cost_of_largest;
}

EvictionLoss MeasureEviction(const LaneView& lane, std::span<const float> attention, std::span<const int32_t> victims,
                             CaoteScratch& scratch) {
  EBB_CHECK(lane.memory != nullptr);
  EBB_CHECK(attention.size() == lane.token.size());
  const size_t n = attention.size();
  scratch.share.resize(n);
  for (size_t slot = 0; slot < n; ++slot) scratch.share[slot] = lane.token[slot] >= 0 ? Weight(attention[slot]) : 0.0F;
  EvictionLoss loss;
  for (const int32_t slot : victims) {
    EBB_CHECK(lane.token[slot] >= 0);
    loss.mass += Weight(attention[slot]);
    scratch.share[slot] = 0;
  }
  double kept = 0;
  for (const float a : scratch.share) kept += a;
  // In terms of X', the output of what stays, nothing is divided by 1 - mass: error = |sum_E a[j] (v[j] - X')|.
  for (float& a : scratch.share) a = kept > 0 ? static_cast<float>(a / kept) : 0.0F;
  Average(lane, scratch.share, scratch.origin, scratch.center);
  scratch.output.assign(scratch.center.size(), 0.0F);
  for (const int32_t slot : victims) {
    const auto a = static_cast<float>(Weight(attention[slot]) / (kept + loss.mass));
    AddDifferences({.at = lane.memory->Values(slot, 1), .d = lane.memory->head_dim()}, {&a, 1}, scratch.center,
                   scratch.output);
  }
  double moved = 0;
  double output = 0;
  for (size_t c = 0; c < scratch.center.size(); ++c) {
    const double x = double{scratch.center[c]} + scratch.output[c];
    moved += double{scratch.output[c]} * scratch.output[c];
    output += x * x;
  }
  loss.output = std::sqrt(output);
  loss.error = kept > 0 ? std::sqrt(moved) : 0.0;
  return loss;
}

constinit const ModifierRow kCaoteRow = {
    .name = "caote",
    .modifier = Modifier::kCaote,
    .needs = {.memory = true},
    .about = {.summary = "Weighs attention by what the output would lose: exactly so, for one token that leaves.",
              .when = "Over a scorer by attention received, where values differ much. The smaller error holds for one "
                      "eviction by the newest attention; over sums of the past, as in `h2o`, measure it first.",
              .equation = "a[j] = keep[j] / sum keep,  X = sum_j a[j] v[j]\n"
                          "c[j] = a[j] / (1 - a[j]) * |X - v[j]|",
              .origin = "CAOTE: KV Cache Selection for LLMs via Attention Output Error-Based Token Eviction",
              .paper = "arXiv:2504.14051",
              .cost =
                  "Two passes over the live values, O(n d) a decision; with a reduction other than the mean for each "
                  "query head.",
              .turns = "As safe as the scorer that it changes."}};

constinit const ModifierRow kFastCaoteRow = {
    .name = "fast_caote",
    .modifier = Modifier::kFastCaote,
    .needs = {.memory = true},
    .about = {
        .summary = "CAOTE against the plain mean of the values in the place of the attention's output.",
        .when = "To compare with the paper's cheaper form: on the built-in model the errors of the two are close.",
        .equation = "a[j] = keep[j] / sum keep,  M = mean over live tokens j of v[j]\n"
                    "c[j] = a[j] / (1 - a[j]) * |M - v[j]|",
        .origin = "CAOTE: KV Cache Selection for LLMs via Attention Output Error-Based Token Eviction",
        .paper = "arXiv:2504.14051",
        .cost = "Two passes over the live values, O(n d) a decision, like `caote`: the mean is plain, but read "
                "afresh each time.",
        .turns = "As safe as the scorer that it changes."}};

}  // namespace ebb
