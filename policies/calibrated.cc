#include "policies/calibrated.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "policies/check.h"
#include "policies/geometry.h"
#include "policies/key_likeness.h"

namespace ebb {
namespace {

constexpr std::string_view kAttentionForms[] = {"use", "ignore"};
constexpr ParameterRow kCalibratedParameters[] = {
    Choice("attention", "whether the attention so far counts; ignored, attention has nothing to report",
           kAttentionForms),
};

// What is kept of a token.
enum : size_t { kKeyLength, kValueLength, kAttention };

// ln(age); of most ages from a table, since every token of a lane asks in every decision.
double LogOf(int32_t age) {
  static const std::vector<double> table = [] {
    std::vector<double> logs(size_t{1} << 15);
    for (size_t i = 0; i < logs.size(); ++i) logs[i] = std::log(static_cast<double>(i));
    return logs;
  }();
  return static_cast<size_t>(age) < table.size() ? table[static_cast<size_t>(age)] : std::log(age);
}

class Calibrated final : public Scorer {
 public:
  Calibrated(std::shared_ptr<const Calibration> calibration, const CalibratedOptions& options)
      : calibration_(std::move(calibration)), options_(options) {
    EBB_CHECK(calibration_ != nullptr);
  }

  Needs needs() const override {
    return {.column_sums = options_.attention,
            .entered = true,
            .memory = true,
            .state_floats = static_cast<int32_t>(floats())};
  }

  // Bits of the length of the log when observing began.
  int64_t lane_floats(const LaneShape& /*shape*/) const override { return options_.attention ? 1 : 0; }

  void Observe(const LaneView& lane, const Observation& seen, const MutableScorerState& state) const override {
    for (const int32_t slot : seen.slots) ReadLengths(lane, static_cast<size_t>(slot), state);
    if (!options_.attention) return;
    EBB_CHECK(seen.column_sums.size() * floats() == state.slot.size());
    for (size_t slot = 0; slot < seen.column_sums.size(); ++slot) {
      state.slot[slot * floats() + kAttention] += seen.column_sums[slot];
    }
  }

  void Score(const LaneView& lane, const ScorerState& state, std::span<float> keep) const override {
    EBB_CHECK(keep.size() * floats() == state.slot.size());
    const LaneWeights& weights = calibration_->lane(lane.layer, lane.head);
    const int32_t began = options_.attention ? std::bit_cast<int32_t>(state.lane[0]) : lane.tokens;
    KeyLikeness(lane, keep);
    for (size_t slot = 0; slot < keep.size(); ++slot) {
      if (lane.token[slot] < 0) continue;
      const std::span<const float> of_token = state.slot.subspan(slot * floats(), floats());
      const int32_t queries = lane.tokens - std::max(lane.token[slot], began);  // that saw it
      const float paid = options_.attention ? of_token[kAttention] : 0;
      const Features features = TokenFeatures(of_token[kKeyLength], keep[slot], of_token[kValueLength], paid, queries,
                                              lane.tokens - lane.token[slot]);
      keep[slot] = static_cast<float>((queries > 0 ? weights.with_attention : weights.unseen)(features));
    }
  }

  // K and V are there; what queries paid before is not.
  bool Rebuild(const LaneView& lane, const MutableScorerState& state) const override {
    std::ranges::fill(state.slot, 0.0F);
    for (size_t slot = 0; slot < lane.token.size(); ++slot) {
      if (lane.token[slot] >= 0) ReadLengths(lane, slot, state);
    }
    if (options_.attention) state.lane[0] = std::bit_cast<float>(lane.tokens);
    return true;
  }

 private:
  size_t floats() const { return options_.attention ? kAttention + 1 : kAttention; }

  void ReadLengths(const LaneView& lane, size_t slot, const MutableScorerState& state) const {
    EBB_CHECK(lane.memory != nullptr);
    const std::span<float> of_token = state.slot.subspan(slot * floats(), floats());
    of_token[kKeyLength] = static_cast<float>(Length(lane.memory->Keys(static_cast<int32_t>(slot), 1)));
    of_token[kValueLength] = static_cast<float>(Length(lane.memory->Values(static_cast<int32_t>(slot), 1)));
  }

  std::shared_ptr<const Calibration> calibration_;
  CalibratedOptions options_;
};

}  // namespace

Features TokenFeatures(double key_length, double key_likeness, double value_length, double paid, int32_t queries,
                       int32_t age) {
  return {key_length, key_likeness, value_length, queries > 0 ? std::sqrt(paid / queries) : 0, LogOf(age)};
}

std::unique_ptr<const Scorer> MakeCalibrated(std::shared_ptr<const Calibration> calibration,
                                             const CalibratedOptions& options) {
  return std::make_unique<Calibrated>(std::move(calibration), options);
}

constinit const ScorerRow kCalibratedRow = {
    .name = "calibrated",
    .about = {.summary = "Keeps the tokens of which features learned from the model's own lanes promise most attention "
                         "to come.",
              .when = "Where `ebb-lab calibrate` has learned on the model that is served: it need not be told whether "
                      "long or short keys matter there. With `attention` on `ignore` for recall at small budgets.",
              .equation = "keep[j] = b + sum over features f of w[f] x[f][j],  b and w of this layer and KV head, from "
                          "a Calibration",
              .origin = "No paper: Ebb's own, by decision record 0006.",
              .cost = "O(n d) a decision, since it reads every live key. Attention reports column sums, or with "
                      "`attention` on `ignore` nothing.",
              .turns = "It predicts the most that any later query pays, and no question is among its features but by "
                       "the attention so far."},
    .recent = [](int32_t /*budget*/, int32_t /*sinks*/, int32_t /*query_heads*/) { return 32; },
    .parameters = kCalibratedParameters,
    .make_calibrated =
        [](const ScorerParameters& p, std::shared_ptr<const Calibration> calibration) {
          return MakeCalibrated(std::move(calibration), {.attention = p.at("attention") == 0});
        }};

}  // namespace ebb
