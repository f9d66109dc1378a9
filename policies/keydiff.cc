#include "policies/keydiff.h"

#include <cmath>
#include <vector>

#include "policies/check.h"
#include "policies/geometry.h"

namespace ebb {
namespace {

// Adding and subtracting it rounds a term of the mean, in [-1, 1], to a multiple of 2^-28: up to 2^24 of them add up
// within float64's 53 bits.
constexpr double kRounding = 0x1.8p24;

class Keydiff final : public Scorer {
 public:
  Needs needs() const override { return {.memory = true}; }

  void Score(const LaneView& lane, const ScorerState& /*state*/, std::span<float> keep) const override {
    EBB_CHECK(lane.memory != nullptr);
    EBB_CHECK(keep.size() == lane.token.size());
    const auto d = static_cast<size_t>(lane.memory->head_dim());
    const std::span<const float> keys = lane.memory->Keys(0, static_cast<int32_t>(keep.size()));
    // They keep their capacity, so that a steady step allocates nothing.
    thread_local std::vector<double> sum;      // [d] of the unit keys; its direction is the mean's
    thread_local std::vector<double> inverse;  // [n] 1 / |k|, 0 where that is no number
    sum.assign(d, 0.0);
    inverse.assign(keep.size(), 0.0);
    for (size_t slot = 0; slot < keep.size(); ++slot) {
      if (lane.token[slot] < 0) continue;
      const std::span<const float> key = keys.subspan(slot * d, d);
      const double length = Length(key);
      if (!(length > 0) || std::isinf(length)) continue;
      inverse[slot] = 1 / length;
      for (size_t c = 0; c < d; ++c) sum[c] += (key[c] * inverse[slot] + kRounding) - kRounding;
    }
    const double length = Length(std::span<const double>(sum));
    const double scale = length > 0 ? 1 / length : 0;
    for (size_t slot = 0; slot < keep.size(); ++slot) {
      const double product = Dot(keys.subspan(slot * d, d), std::span<const double>(sum));
      keep[slot] = static_cast<float>(-product * inverse[slot] * scale);
    }
  }
};

}  // namespace

std::unique_ptr<const Scorer> MakeKeydiff() { return std::make_unique<Keydiff>(); }

}  // namespace ebb
