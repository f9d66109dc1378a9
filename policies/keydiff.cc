#include "policies/keydiff.h"

#include <cmath>
#include <vector>

#include "policies/check.h"
#include "policies/geometry.h"
#include "policies/rows.h"
#include "policies/wide.h"

namespace ebb {
namespace {

// Adding and subtracting it rounds a term of the mean, in [-1, 1], to a multiple of 2^-28: up to 2^24 of them add up
// within float64's 53 bits.
constexpr double kRounding = 0x1.8p24;

// sum [d] += the row's entries, each times `scale` and rounded.
EBB_WIDE void AddRounded(const float* row, double scale, int64_t d, double* sum) {
  for (int64_t c = 0; c < d; ++c) sum[c] += (row[c] * scale + kRounding) - kRounding;
}

class Keydiff final : public Scorer {
 public:
  Needs needs() const override { return {.memory = true}; }

  void Score(const LaneView& lane, const ScorerState& /*state*/, std::span<float> keep) const override {
    EBB_CHECK(lane.memory != nullptr);
    EBB_CHECK(keep.size() == lane.token.size());
    const int32_t d = lane.memory->head_dim();
    const RowsView keys = {.at = lane.memory->Keys(0, static_cast<int32_t>(keep.size())), .d = d};
    // They keep their capacity, so that a steady step allocates nothing.
    thread_local std::vector<double> sum;      // [d] of the unit keys; its direction is the mean's
    thread_local std::vector<double> inverse;  // [n] 1 / |k|, 0 where that is no number
    thread_local std::vector<double> product;  // [n] with the sum
    sum.assign(d, 0.0);
    inverse.resize(keep.size());
    product.resize(keep.size());
    Lengths(keys, inverse);
    for (size_t slot = 0; slot < keep.size(); ++slot) {
      const double length = inverse[slot];
      inverse[slot] = lane.token[slot] >= 0 && length > 0 && !std::isinf(length) ? 1 / length : 0;
      if (inverse[slot] > 0) AddRounded(keys[static_cast<int64_t>(slot)], inverse[slot], d, sum.data());
    }
    const double length = Length(std::span<const double>(sum));
    const double scale = length > 0 ? 1 / length : 0;
    Products(keys, sum, product);
    for (size_t slot = 0; slot < keep.size(); ++slot) {
      keep[slot] = static_cast<float>(-product[slot] * inverse[slot] * scale);
    }
  }
};

}  // namespace

std::unique_ptr<const Scorer> MakeKeydiff() { return std::make_unique<Keydiff>(); }

constinit const ScorerRow kKeydiffRow = {
    .name = "keydiff",
    .about = {.summary = "Keeps the tokens whose keys are least like the mean key.",
              .when =
                  "Where tokens must leave before the question is known: what stands out by its key stays, asked for "
                  "or not. How well that recalls is a property of the model, so measure it.",
              .equation = "m = mean over live tokens j of k[j] / |k[j]|,  keep[j] = -cos(k[j], m)",
              .origin = "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in "
                        "Resource-Constrained Environments",
              .paper = "arXiv:2504.15364",
              .cost = "O(n d) a decision, since it reads every live key. Attention reports nothing.",
              .turns = "It looks at keys and at no query, so no question biases it."},
    .recent = [](int32_t /*budget*/, int32_t /*sinks*/, int32_t /*query_heads*/) { return 32; },
    .make = [](const ScorerParameters&) { return MakeKeydiff(); }};

}  // namespace ebb
