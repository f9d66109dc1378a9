#include "policies/lagkv.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "policies/check.h"
#include "policies/rotator.h"
#include "policies/wide.h"

namespace ebb {
namespace {

constexpr double kLeastRange = 1e-6;  // of a channel that does not vary in the reference
constexpr double kLargest = 1e4;      // of a channel's relative value

// A thread's working memory; keeps its capacity, so that a steady step allocates nothing.
struct Scratch {
  std::vector<int32_t> slots = {};                     // live ones of a partition and its reference, oldest token first
  std::vector<float> rows = {};                        // [slots, head_dim]
  std::vector<double> worth = {};                      // [tokens of the partition]
  std::vector<double> scores = {};                     // alike, of keys or of values
  std::vector<std::pair<double, int32_t>> order = {};  // worth and index
  Rotator rotator = {};
};

// Channels that are worked on together, so that additions do not wait for each other: fixed, so that sums do not depend
// on the machine.
constexpr int64_t kTogether = 8;

double AddUp(double (&parts)[kTogether]) {
  for (int64_t half = kTogether / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) parts[i] += parts[i + half];
  }
  return parts[0];
}

// Lowers `lo` and raises `hi` [d] to each channel's least and largest of some rows.
EBB_WIDE void Widen(const float* rows, int64_t n, int64_t d, float* lo, float* hi) {
  for (int64_t row = 0; row < n; ++row, rows += d) {
    for (int64_t c = 0; c < d; ++c) {
      lo[c] = rows[c] < lo[c] ? rows[c] : lo[c];
      hi[c] = rows[c] > hi[c] ? rows[c] : hi[c];
    }
  }
}

// z [d] of a row; returns the sum of (z - mean)^2.
EBB_WIDE double Squares(const float* row, const float* lo, const double* range, int64_t d, double* z) {
  for (int64_t c = 0; c < d; ++c) {
    const double relative = (static_cast<double>(row[c]) - lo[c]) / range[c];
    const double capped = relative > kLargest ? kLargest : relative;
    z[c] = capped < -kLargest ? -kLargest : capped;
  }
  double sum[kTogether] = {};
  int64_t c = 0;
  for (; c + kTogether <= d; c += kTogether) {
    for (int64_t i = 0; i < kTogether; ++i) sum[i] += z[c + i];
  }
  for (; c < d; ++c) sum[0] += z[c];
  const double mean = AddUp(sum) / static_cast<double>(d);
  double square[kTogether] = {};
  for (c = 0; c + kTogether <= d; c += kTogether) {
    for (int64_t i = 0; i < kTogether; ++i) square[i] += (z[c + i] - mean) * (z[c + i] - mean);
  }
  for (; c < d; ++c) square[0] += (z[c] - mean) * (z[c] - mean);
  return AddUp(square);
}

// Partitions whose reference is complete in a log of `tokens`.
int32_t Scored(int32_t tokens, int32_t sinks, int32_t lag) { return std::max((tokens - sinks) / lag - 1, 0); }

class Lagkv final : public Scorer {
 public:
  explicit Lagkv(const LagkvOptions& options) : options_(options) { EBB_CHECK(options.lag >= 1); }

  Needs needs() const override { return {.entered = true, .memory = true, .state_floats = 1}; }

  void Observe(const LaneView& lane, const Observation& seen, const MutableScorerState& state) const override {
    EBB_CHECK(!seen.slots.empty());
    const int32_t before = lane.token[static_cast<size_t>(seen.slots.front())];
    const int32_t after = lane.token[static_cast<size_t>(seen.slots.back())] + 1;
    const int32_t end = Scored(after, lane.sinks, options_.lag);
    for (int32_t p = Scored(before, lane.sinks, options_.lag); p < end; ++p) ScorePartition(lane, p, state);
  }

  // A place in (0, 1] once there is one; before that the age, above 1.
  void Score(const LaneView& lane, const ScorerState& state, std::span<float> keep) const override {
    EBB_CHECK(keep.size() == state.slot.size());
    for (size_t slot = 0; slot < keep.size(); ++slot) {
      const float place = state.slot[slot];
      keep[slot] = place > 0 ? place : 2 + static_cast<float>(lane.token[slot]);
    }
  }

  bool Rebuild(const LaneView& lane, const MutableScorerState& state) const override {
    std::ranges::fill(state.slot, 0.0F);
    const int32_t end = Scored(lane.tokens, lane.sinks, options_.lag);
    for (int32_t p = 0; p < end; ++p) ScorePartition(lane, p, state);
    return true;
  }

 private:
  void ScorePartition(const LaneView& lane, int32_t partition, const MutableScorerState& state) const {
    EBB_CHECK(lane.memory != nullptr);
    thread_local Scratch scratch;
    const int32_t begin = lane.sinks + partition * options_.lag;
    const int32_t reference = begin + options_.lag;
    scratch.slots.clear();
    for (size_t slot = 0; slot < lane.token.size(); ++slot) {
      const int32_t token = lane.token[slot];
      if (token >= begin && token < reference + options_.lag) scratch.slots.push_back(static_cast<int32_t>(slot));
    }
    const auto token_of = [&](int32_t slot) { return lane.token[static_cast<size_t>(slot)]; };
    std::ranges::sort(scratch.slots, {}, token_of);
    const auto first_reference = std::ranges::lower_bound(scratch.slots, reference, {}, token_of);
    const auto count = static_cast<size_t>(first_reference - scratch.slots.begin());

    scratch.worth.assign(count, 0.0);
    AddScores(lane, Part::kKeys, 1, scratch);
    AddScores(lane, Part::kValues, options_.value_ratio, scratch);

    scratch.order.clear();
    for (size_t i = 0; i < count; ++i) scratch.order.emplace_back(scratch.worth[i], static_cast<int32_t>(i));
    std::ranges::sort(scratch.order);
    for (size_t place = 0; place < count; ++place) {
      const int32_t slot = scratch.slots[static_cast<size_t>(scratch.order[place].second)];
      state.slot[static_cast<size_t>(slot)] = static_cast<float>(place + 1) / static_cast<float>(count);
    }
  }

  enum class Part { kKeys, kValues };

  // worth += weight * the partition's scores by its keys or values.
  static void AddScores(const LaneView& lane, Part part, double weight, Scratch& scratch) {
    const auto d = static_cast<size_t>(lane.memory->head_dim());
    if (part == Part::kKeys) scratch.rotator.Point(lane.memory->rope());
    scratch.rows.resize(scratch.slots.size() * d);
    // All of the lane: keys rest sixteen slots together, and several partitions in turn ask for the same.
    const auto n = static_cast<int32_t>(lane.token.size());
    const std::span<const float> all = part == Part::kKeys ? lane.memory->Keys(0, n) : lane.memory->Values(0, n);
    for (size_t i = 0; i < scratch.slots.size(); ++i) {
      const auto slot = static_cast<size_t>(scratch.slots[i]);
      const std::span<float> row = std::span(scratch.rows).subspan(i * d, d);
      std::ranges::copy(all.subspan(slot * d, d), row.begin());
      if (part == Part::kKeys) scratch.rotator.Turn(lane.token[slot], row);
    }
    const std::span<const float> rows = scratch.rows;
    const size_t count = scratch.worth.size();
    scratch.scores.resize(count);
    LagScores(rows.first(count * d), rows.subspan(count * d), static_cast<int32_t>(d), scratch.scores);
    for (size_t i = 0; i < count; ++i) scratch.worth[i] += weight * scratch.scores[i];
  }

  LagkvOptions options_;
};

constexpr ParameterRow kLagkvParameters[] = {
    {.name = "lag", .help = "tokens of a partition", .preset = 128, .min = 1, .max = 8192, .whole = true},
    {.name = "value_ratio", .help = "weight of the values' score beside the keys'", .preset = 1, .max = 1000},
};

}  // namespace

void LagDeviations(std::span<const float> rows, std::span<const float> reference, int32_t dim,
                   std::span<double> deviations) {
  const auto d = static_cast<size_t>(dim);
  EBB_CHECK(rows.size() == deviations.size() * d);
  EBB_CHECK(reference.size() % d == 0);
  std::ranges::fill(deviations, 0.0);
  if (reference.empty() || d == 1) return;
  thread_local std::vector<float> lo;
  thread_local std::vector<float> hi;
  thread_local std::vector<double> range;
  thread_local std::vector<double> z;
  lo.assign(reference.begin(), reference.begin() + static_cast<int64_t>(d));
  hi = lo;
  Widen(reference.data(), std::ssize(reference) / dim, dim, lo.data(), hi.data());
  range.resize(d);
  for (size_t c = 0; c < d; ++c) range[c] = std::max(static_cast<double>(hi[c]) - lo[c], kLeastRange);
  z.resize(d);
  for (size_t row = 0; row < deviations.size(); ++row) {
    const double square = Squares(rows.data() + row * d, lo.data(), range.data(), dim, z.data());
    if (std::isfinite(square)) deviations[row] = std::sqrt(square / static_cast<double>(d - 1));
  }
}

void LagScores(std::span<const float> rows, std::span<const float> reference, int32_t dim, std::span<double> scores) {
  if (scores.empty()) return;
  LagDeviations(rows, reference, dim, scores);
  const double largest = *std::ranges::max_element(scores);
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - largest);
  for (double& score : scores) score /= sum;
}

std::unique_ptr<const Scorer> MakeLagkv(const LagkvOptions& options) { return std::make_unique<Lagkv>(options); }

constinit const ScorerRow kLagkvRow = {
    .name = "lagkv",
    .about = {.summary =
                  "Keeps the tokens whose keys and values vary most, measured by the ranges of the tokens after them.",
              .when =
                  "For long texts whose questions are not known yet, where attention is too dear to observe. It needs "
                  "a budget above sinks + 2 `lag`; below that it keeps the newest.",
              .equation = "z[j, c] = (x[j, c] - lo[c]) / max(hi[c] - lo[c], 1e-6), within +-1e4\n"
                          "worth[j] = softmax_j std_c(z[j, c]) over rotated keys + value_ratio * the same over values\n"
                          "keep[j] = place of worth[j] in its partition, 1 / lag .. 1; of equals the newer is ahead",
              .origin = "LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are Important",
              .paper = "arXiv:2504.04704",
              .cost = "O(`lag` d) for each partition, once, when the next one is complete; O(n) a decision. Attention "
                      "reports nothing.",
              .turns = "It looks at keys and values alone; a token's place is settled before any question about it."},
    .state_by_sinks = true,
    .sinks = [](int32_t /*budget*/) { return 16; },
    .parameters = kLagkvParameters,
    .make =
        [](const ScorerParameters& p) {
          return MakeLagkv({.lag = Whole(p, "lag"), .value_ratio = p.at("value_ratio")});
        }};

}  // namespace ebb
