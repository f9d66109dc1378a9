#include "policies/expected_attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "policies/check.h"
#include "policies/geometry.h"
#include "policies/rows.h"
#include "policies/wide.h"

namespace ebb {
namespace {

using Covariance = ExpectedAttentionOptions::Covariance;
using Values = ExpectedAttentionOptions::Values;

constexpr int32_t kOutliers = 4;  // first queries of a session

int64_t CovarianceFloats(Covariance form, int64_t d) {
  if (form == Covariance::kNone) return 0;
  return form == Covariance::kDiagonal ? d : d * (d + 1) / 2;
}

// One query head's statistics: [count, mean [d], covariance], where a full covariance is its upper triangle, row by
// row.
int64_t HeadFloats(Covariance form, int64_t d) { return 1 + d + CovarianceFloats(form, d); }

// covariance [n] moves by `share` towards by_a * (q[b] - mean[b]).
EBB_WIDE void MoveTowards(const float* q, const float* mean, int64_t n, float by_a, float share, float* covariance) {
  for (int64_t b = 0; b < n; ++b) covariance[b] += share * (by_a * (q[b] - mean[b]) - covariance[b]);
}

// Adds one query by Welford's recurrence, which keeps what it keeps as averages: count may grow without them growing.
void AddQuery(Covariance form, std::span<const float> q, std::span<float> head) {
  const size_t d = q.size();
  const std::span<float> mean = head.subspan(1, d);
  float* covariance = head.data() + 1 + d;
  const float share = 1 / ++head[0];
  // With the old mean, (q - mean)(q - mean)' (1 - share) is what one query adds.
  for (size_t a = 0; a < d && form != Covariance::kNone; ++a) {
    const float by_a = (q[a] - mean[a]) * (1 - share);
    const size_t row = form == Covariance::kDiagonal ? 1 : d - a;
    MoveTowards(&q[a], &mean[a], static_cast<int64_t>(row), by_a, share, covariance);
    covariance += row;
  }
  for (size_t a = 0; a < d; ++a) mean[a] += share * (q[a] - mean[a]);
}

// The mean of the rotations for `future` positions in a row, of exp(i w p) over the p, is the rotation for their
// middle, shortened to this for each pair.
double MeanLength(double frequency, int32_t future) {
  const double sine = std::sin(frequency / 2);
  return sine == 0 ? 1 : std::sin(future * frequency / 2) / (future * sine);
}

// Turns unrotated keys from their position back by the middle of those to come, and shortens their pairs. Sines are
// taken of every kRun-th position alone and of the first kRun: the others' are products. Who comes in any order mostly
// finds those of its run: twice as many are held as slots would fill without gaps, each in the place of its number.
class MeanRotation {
 public:
  // Of `slots`; `next`: past their largest position. Allocates for more slots alone.
  void Reset(const RopeView& rope, size_t slots, int32_t next, int32_t future) {
    rope_ = rope;
    middle_ = next + (future - 1) / 2.0;
    future_ = future;
    held_.assign(2 * std::bit_ceil(slots / kRun + 1), -1);
    turns_.resize((kRun + held_.size()) * rope.frequencies.size());
    for (int32_t position = 0; position < kRun; ++position) Fill(static_cast<size_t>(position), position, false);
  }

  // `column` is one of a matrix [d, kAbreast].
  void Apply(std::span<const float> key, int32_t position, double* column) {
    const size_t pairs = rope_.frequencies.size();
    const Turn* const run = TurnsOf(position / kRun);
    const Turn* const rest = turns_.data() + static_cast<size_t>(position % kRun) * pairs;
    for (size_t i = 0; i < pairs; ++i) {
      const double cos = run[i].cos * rest[i].cos - run[i].sin * rest[i].sin;
      const double sin = run[i].sin * rest[i].cos + run[i].cos * rest[i].sin;
      const size_t x = rope_.halves ? i : 2 * i;
      const size_t y = rope_.halves ? i + pairs : 2 * i + 1;
      column[x * kAbreast] = key[x] * cos - key[y] * sin;
      column[y * kAbreast] = key[x] * sin + key[y] * cos;
    }
    for (size_t c = 2 * pairs; c < key.size(); ++c) column[c * kAbreast] = key[c];
  }

 private:
  static constexpr int32_t kRun = 64;
  struct Turn {
    double cos, sin;
  };

  // Of this run's first position, back by the middle.
  const Turn* TurnsOf(int32_t run) {
    const size_t place = static_cast<size_t>(run) % held_.size();
    if (held_[place] != run) Fill(kRun + place, run * kRun - middle_, true);
    held_[place] = run;
    return turns_.data() + (kRun + place) * rope_.frequencies.size();
  }

  void Fill(size_t row, double turn, bool shortens) {
    Turn* out = turns_.data() + row * rope_.frequencies.size();
    for (const double frequency : rope_.frequencies) {
      const double length = shortens ? MeanLength(frequency, future_) : 1;
      *out++ = {length * std::cos(turn * frequency), length * std::sin(turn * frequency)};
    }
  }

  RopeView rope_ = {};
  double middle_ = 0;
  int32_t future_ = 1;
  std::vector<int32_t> held_ = {};  // which run is in this place; -1: none
  std::vector<Turn> turns_ = {};    // [kRun, pairs] of the first positions, then [places, pairs]
};

class ExpectedAttention final : public Scorer {
 public:
  explicit ExpectedAttention(const ExpectedAttentionOptions& options) : options_(options) {
    EBB_CHECK(options.future >= 1);
  }

  Needs needs() const override { return {.queries = true, .memory = true}; }

  int64_t lane_floats(const LaneShape& shape) const override {
    return shape.query_heads * HeadFloats(options_.covariance, shape.head_dim);
  }

  void Observe(const LaneView& lane, const Observation& seen, const MutableScorerState& state) const override {
    EBB_CHECK(seen.q != nullptr);
    EBB_CHECK(lane.memory != nullptr);
    const auto d = static_cast<size_t>(lane.memory->head_dim());
    const auto floats = static_cast<size_t>(HeadFloats(options_.covariance, lane.memory->head_dim()));
    const size_t heads = state.lane.size() / floats;
    for (size_t t = 0; t < seen.slots.size(); ++t) {
      if (lane.token[static_cast<size_t>(seen.slots[t])] < kOutliers) continue;
      for (size_t h = 0; h < heads; ++h) {
        const float* q = seen.q + static_cast<int64_t>(t) * seen.q_stride + static_cast<int64_t>(h * d);
        AddQuery(options_.covariance, {q, d}, state.lane.subspan(h * floats, floats));
      }
    }
  }

  void Score(const LaneView& lane, const ScorerState& state, std::span<float> keep) const override {
    EBB_CHECK(lane.memory != nullptr);
    EBB_CHECK(keep.size() == lane.token.size());
    const auto d = static_cast<size_t>(lane.memory->head_dim());
    const auto floats = static_cast<size_t>(HeadFloats(options_.covariance, lane.memory->head_dim()));
    const size_t heads = state.lane.size() / floats;
    EBB_CHECK(heads >= 1);
    thread_local std::vector<double> exponents;  // [heads, n]; keeps its capacity, as does the next
    exponents.resize(heads * keep.size());
    ReadExponents(lane, state.lane, exponents);

    std::ranges::fill(keep, 0.0F);
    for (size_t h = 0; h < heads; ++h) {
      AddSoftmax(lane, std::span(exponents).subspan(h * keep.size(), keep.size()), 1.0 / static_cast<double>(heads),
                 keep);
    }
    for (float& score : keep) score += static_cast<float>(options_.epsilon);
    if (options_.values == Values::kIgnore) return;
    const std::span<const float> values = lane.memory->Values(0, static_cast<int32_t>(keep.size()));
    for (size_t slot = 0; slot < keep.size(); ++slot) {
      if (lane.token[slot] >= 0) keep[slot] *= static_cast<float>(Length(values.subspan(slot * d, d)));
    }
  }

 private:
  // x [heads, n] of the live slots.
  void ReadExponents(const LaneView& lane, std::span<const float> statistics, std::span<double> exponents) const {
    const auto d = static_cast<size_t>(lane.memory->head_dim());
    const auto floats = static_cast<size_t>(HeadFloats(options_.covariance, lane.memory->head_dim()));
    const size_t n = lane.token.size();
    const std::span<const float> keys = lane.memory->Keys(0, static_cast<int32_t>(n));
    int32_t next = 0;
    for (const int32_t position : lane.position) next = std::max(next, position + 1);
    thread_local MeanRotation rotation;  // keeps its capacity, as do the next
    thread_local std::vector<double> heads;
    thread_local std::vector<double> columns;  // the keys of kAbreast slots
    rotation.Reset(lane.memory->rope(), n, next, options_.future);
    heads.assign(statistics.begin(), statistics.end());
    for (size_t begin = 0; begin < n; begin += kAbreast) {
      const size_t count = std::min<size_t>(kAbreast, n - begin);
      columns.assign(d * kAbreast, 0);
      for (size_t i = 0; i < count; ++i) {
        const size_t slot = begin + i;
        if (lane.token[slot] >= 0) rotation.Apply(keys.subspan(slot * d, d), lane.position[slot], &columns[i]);
      }
      for (size_t h = 0; h * floats < heads.size(); ++h) {
        double x[kAbreast];
        Exponents(std::span<const double>(heads).subspan(h * floats + 1, floats - 1), columns, x);
        std::copy_n(x, count, exponents.data() + h * n + begin);
      }
    }
  }

  // m.u / sqrt(d) + u' S u / (2 d) of each column u; `head` has m, then S.
  void Exponents(std::span<const double> head, std::span<const double> columns, std::span<double, kAbreast> x) const {
    const size_t d = columns.size() / kAbreast;
    const std::span<const double> covariance = head.subspan(d);
    double square[kAbreast] = {};
    ColumnProducts(head.first(d), columns, x);
    if (options_.covariance == Covariance::kFull) QuadraticForms(covariance, columns, square);
    if (options_.covariance == Covariance::kDiagonal) {
      for (size_t c = 0; c < columns.size(); ++c) {
        square[c % kAbreast] += covariance[c / kAbreast] * columns[c] * columns[c];
      }
    }
    const auto width = static_cast<double>(d);
    for (int i = 0; i < kAbreast; ++i) x[i] = x[i] / std::sqrt(width) + square[i] / (2 * width);
  }

  // keep += weight * softmax of `exponents` over the live slots.
  static void AddSoftmax(const LaneView& lane, std::span<double> exponents, double weight, std::span<float> keep) {
    double largest = -HUGE_VAL;
    for (size_t slot = 0; slot < keep.size(); ++slot) {
      if (lane.token[slot] >= 0) largest = std::max(largest, exponents[slot]);
    }
    double sum = 0;
    for (size_t slot = 0; slot < keep.size(); ++slot) {
      if (lane.token[slot] < 0) continue;
      exponents[slot] = std::exp(exponents[slot] - largest);
      sum += exponents[slot];
    }
    for (size_t slot = 0; slot < keep.size(); ++slot) {
      if (lane.token[slot] >= 0) keep[slot] += static_cast<float>(weight * exponents[slot] / sum);
    }
  }

  ExpectedAttentionOptions options_;
};

constexpr std::string_view kCovariances[] = {"none", "diagonal", "full"};  // in the order of Covariance
constexpr std::string_view kValueForms[] = {"ignore", "weigh"};            // in the order of Values
constexpr ParameterRow kExpectedAttentionParameters[] = {
    {.name = "future",
     .help = "positions to come that are averaged",
     .preset = 512,
     .min = 1,
     .max = 65536,
     .whole = true},
    {.name = "epsilon", .help = "added to each token's expected attention before the values weigh it", .max = 1},
    Choice("covariance", "how much of the queries' covariance is kept; a full one costs n d^2 a decision", kCovariances,
           2),
    Choice("values", "whether the length of the value weighs the attention", kValueForms, 1),
};

}  // namespace

std::unique_ptr<const Scorer> MakeExpectedAttention(const ExpectedAttentionOptions& options) {
  return std::make_unique<ExpectedAttention>(options);
}

constinit const ScorerRow kExpectedAttentionRow = {
    .name = "expected_attention",
    .about = {.summary = "Keeps the tokens that queries like those so far are expected to attend to.",
              .when =
                  "For questions that are not known yet but are like what the session has asked so far. Decide once or "
                  "seldom, since a decision is dear.",
              .equation =
                  "x[h, j] = (R m).k / sqrt(d) + k' (R S R') k / (2 d)\n"
                  "keep[j] = (mean_h softmax_j x[h, j] + epsilon) * |v[j]|        values = ignore leaves out the "
                  "factor |v|",
              .origin = "Expected Attention: KV Cache Compression by Estimating Attention from Future Queries "
                        "Distribution",
              .paper = "arXiv:2510.00636",
              .cost = "For G query heads a KV head O(n G d^2 / 2) a decision; O(d^2 / 2) for each query that it "
                      "observes, and as "
                      "many floats for each query head. With `covariance` diagonal or none all of it is linear in d.",
              .turns = "Chosen for what the session asks on the average, and for none of its questions in particular."},
    .non_negative = true,
    .sinks = [](int32_t /*budget*/) { return 4; },
    .recent = [](int32_t /*budget*/, int32_t /*sinks*/, int32_t /*query_heads*/) { return 32; },
    .schedule = Schedule::kOncePrompt,
    .then = Then::kSlideRecent,
    .parameters = kExpectedAttentionParameters,
    .make =
        [](const ScorerParameters& p) {
          return MakeExpectedAttention({.future = Whole(p, "future"),
                                        .epsilon = p.at("epsilon"),
                                        .covariance = static_cast<Covariance>(Whole(p, "covariance")),
                                        .values = static_cast<Values>(Whole(p, "values"))});
        }};

}  // namespace ebb
