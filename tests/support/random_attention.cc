#include "tests/support/random_attention.h"

#include <algorithm>
#include <cmath>

#include "policies/check.h"
#include "policies/hash_random.h"

namespace ebb {
namespace {

constexpr int32_t kDim = RandomAttention::kHeadDim;
constexpr double kFrequencies[RandomAttention::kRotaryDims / 2] = {1.0, 0.2, 0.03};

enum Purpose : uint64_t { kPlacement = 1, kAttraction, kKeys, kValues, kFirstQueries };

// [head_dim] uniform in (-scale, scale).
std::vector<float> Row(uint64_t seed, uint64_t purpose, int32_t token, float scale) {
  HashRandom random(HashBits(seed, purpose, static_cast<uint64_t>(token)));
  std::vector<float> row(kDim);
  for (float& x : row) x = (2 * random.UniformFloat() - 1) * scale;
  return row;
}

uint64_t HeadSeed(uint64_t seed, int32_t kv) { return seed + 1'000'003 * static_cast<uint64_t>(kv); }

}  // namespace

// Written apart from policies/, so that neither checks itself.
std::vector<double> Turned(const RopeView& rope, double position, std::span<const float> row) {
  std::vector<double> turned(row.begin(), row.end());
  const auto pairs = static_cast<int32_t>(rope.frequencies.size());
  for (int32_t i = 0; i < pairs; ++i) {
    const int32_t a = rope.halves ? i : 2 * i;
    const int32_t b = rope.halves ? i + pairs : 2 * i + 1;
    const double angle = position * rope.frequencies[i];
    turned[a] = row[a] * std::cos(angle) - row[b] * std::sin(angle);
    turned[b] = row[a] * std::sin(angle) + row[b] * std::cos(angle);
  }
  return turned;
}

RandomAttention::KeysAndValues::KeysAndValues(const RopeView& rope, int32_t slots)
    : keys(static_cast<size_t>(slots) * kDim), values(static_cast<size_t>(slots) * kDim), rope_(rope) {}

std::span<const float> RandomAttention::KeysAndValues::Rows(const std::vector<float>& rows, int32_t first,
                                                            int32_t count) {
  return std::span(rows).subspan(static_cast<size_t>(first) * kDim, static_cast<size_t>(count) * kDim);
}

RandomAttention::RandomAttention(const RandomAttentionOptions& options)
    : options_(options),
      next_token_(options.first_token),
      token_(static_cast<size_t>(options.slots), -1),
      position_(static_cast<size_t>(options.slots), -1),
      memory_(static_cast<size_t>(options.kv_heads), KeysAndValues(rope(), options.slots)),
      rotated_(static_cast<size_t>(options.kv_heads) * options.slots * kDim) {}

RopeView RandomAttention::rope() const { return {.halves = options_.seed % 2 == 1, .frequencies = kFrequencies}; }

std::vector<float> RandomAttention::Query(HeadIndex head, int32_t token) const {
  const uint64_t seed = HeadSeed(options_.seed, head.kv);
  std::vector<float> query = ebb::Row(seed, kFirstQueries + static_cast<uint64_t>(head.query), token, 3.7F);
  query.back() = 4.0F;
  return query;
}

std::vector<float> RandomAttention::Key(int32_t kv, int32_t token) const {
  std::vector<float> key = ebb::Row(HeadSeed(options_.seed, kv), kKeys, token, 1.5F);
  const auto attraction = static_cast<float>(HashUniform(options_.seed, kAttraction, static_cast<uint64_t>(token)));
  key.back() = 2.8F * attraction * attraction;
  return key;
}

std::vector<float> RandomAttention::Value(int32_t kv, int32_t token) const {
  return ebb::Row(HeadSeed(options_.seed, kv), kValues, token, 1.0F);
}

void RandomAttention::Place(int32_t queries) {
  EBB_CHECK(queries >= 1);
  EBB_CHECK(live() + queries <= options_.slots);
  placed_.clear();
  for (int32_t i = 0; i < queries; ++i) {
    const int32_t skip = options_.placement == Placement::kLowest
                             ? 0
                             : HashRandom(HashBits(options_.seed, kPlacement, static_cast<uint64_t>(next_token_)))
                                   .Uniform(0, options_.slots - live() - 1);
    size_t slot = 0;
    for (int32_t free = -1; free < skip; ++slot) free += token_[slot] < 0 ? 1 : 0;
    --slot;  // the loop stops one past the free slot it counted
    for (int32_t kv = 0; kv < options_.kv_heads; ++kv) {
      std::ranges::copy(Key(kv, next_token_), memory_[kv].keys.begin() + static_cast<int64_t>(slot) * kDim);
      std::ranges::copy(Value(kv, next_token_), memory_[kv].values.begin() + static_cast<int64_t>(slot) * kDim);
    }
    token_[slot] = next_token_++;
    by_age_.push_back(static_cast<int32_t>(slot));
    placed_.push_back(static_cast<int32_t>(slot));
  }
}

void RandomAttention::SetPositions() {
  for (int32_t rank = 0; rank < live(); ++rank) {
    const int32_t slot = by_age_[rank];
    const int32_t position = options_.positions == Positions::kOriginal ? token_[slot] : rank;
    if (position_[slot] == position) continue;
    position_[slot] = position;
    for (int32_t kv = 0; kv < options_.kv_heads; ++kv) {
      std::ranges::copy(Turned(rope(), position, memory_[kv].Keys(slot, 1)),
                        rotated_.begin() + (int64_t{kv} * options_.slots + slot) * kDim);
    }
  }
}

void RandomAttention::Attend(int32_t kv, int32_t token, std::span<const float> query, double share,
                             std::span<double> row) const {
  std::vector<int32_t> visible;
  for (const int32_t slot : by_age_) {
    if (token_[slot] <= token) visible.push_back(slot);
  }
  const auto rank = std::ranges::count_if(visible, [&](int32_t slot) { return token_[slot] < token; });
  const bool original = options_.positions == Positions::kOriginal;
  const std::vector<double> q = Turned(rope(), original ? token : static_cast<int32_t>(rank), query);
  std::vector<double> weight;
  double total = 0;
  for (const int32_t slot : visible) {
    const double* k = rotated_.data() + (int64_t{kv} * options_.slots + slot) * kDim;
    double dot = 0;
    for (int32_t c = 0; c < kDim; ++c) dot += q[c] * k[c];
    weight.push_back(std::exp(dot / std::sqrt(double{kDim})));  // far from overflow: |logit| < 25
    total += weight.back();
  }
  for (size_t i = 0; i < visible.size(); ++i) row[visible[i]] += share * weight[i] / total;
}

void RandomAttention::Step(int32_t queries) {
  Place(queries);
  SetPositions();
  step_queries_ = queries;
  rows_.assign(static_cast<size_t>(queries) * options_.kv_heads * options_.query_heads * token_.size(), 0.0);
  q_.clear();
  size_t row = 0;
  for (int32_t token = next_token_ - queries; token < next_token_; ++token) {
    for (int32_t kv = 0; kv < options_.kv_heads; ++kv) {
      for (int32_t head = 0; head < options_.query_heads; ++head) {
        const std::vector<float> query = Query({.kv = kv, .query = head}, token);
        q_.insert(q_.end(), query.begin(), query.end());
        Attend(kv, token, query, 1.0, std::span(rows_).subspan(row++ * token_.size(), token_.size()));
      }
    }
  }
}

std::span<const double> RandomAttention::Row(HeadIndex head, int32_t i) const {
  const int64_t row = (int64_t{i} * options_.kv_heads + head.kv) * options_.query_heads + head.query;
  return std::span(rows_).subspan(static_cast<size_t>(row) * token_.size(), token_.size());
}

Observation RandomAttention::Mean(HeadIndex first, int32_t heads, const Needs& needs) {
  const size_t slots = token_.size();
  const int32_t window_rows = std::min(needs.window_rows, step_queries_);
  std::vector<double> sums(slots, 0.0);
  std::vector<double> mean;
  window_.clear();
  for (int32_t i = 0; i < step_queries_; ++i) {
    mean.assign(slots, 0.0);
    for (int32_t h = 0; h < heads; ++h) {
      const std::span<const double> row = Row({.kv = first.kv, .query = first.query + h}, i);
      for (size_t slot = 0; slot < slots; ++slot) mean[slot] += row[slot] / heads;
    }
    for (size_t slot = 0; slot < slots; ++slot) sums[slot] += mean[slot];
    if (i >= step_queries_ - window_rows) window_.insert(window_.end(), mean.begin(), mean.end());
  }
  column_sums_.assign(sums.begin(), sums.end());
  last_row_.assign(mean.begin(), mean.end());
  Observation seen = {.queries = step_queries_, .slots = placed_};
  if (needs.column_sums) seen.column_sums = column_sums_;
  if (needs.last_row) seen.last_row = last_row_;
  if (needs.window_rows > 0) seen.window = window_;
  if (needs.queries) {
    seen.q = q_.data() + (int64_t{first.kv} * options_.query_heads + first.query) * kDim;
    seen.q_stride = int64_t{options_.kv_heads} * options_.query_heads * kDim;
  }
  return seen;
}

Observation RandomAttention::Seen(int32_t kv, const Needs& needs) {
  return Mean({.kv = kv}, options_.query_heads, needs);
}

Observation RandomAttention::Seen(HeadIndex head, const Needs& needs) { return Mean(head, 1, needs); }

void RandomAttention::AddProbes(int32_t kv, std::span<const int32_t> tokens, std::span<const float> queries,
                                double share, std::span<double> sums) const {
  EBB_CHECK(queries.size() == tokens.size() * kDim);
  for (size_t i = 0; i < tokens.size(); ++i) Attend(kv, tokens[i], queries.subspan(i * kDim, kDim), share, sums);
}

void RandomAttention::Evict(std::span<const int32_t> slots) {
  for (const int32_t slot : slots) {
    EBB_CHECK(token_[slot] >= 0);
    token_[slot] = -1;
    position_[slot] = -1;
    for (KeysAndValues& memory : memory_) {
      std::fill_n(memory.keys.begin() + int64_t{slot} * kDim, kDim, 0.0F);
      std::fill_n(memory.values.begin() + int64_t{slot} * kDim, kDim, 0.0F);
    }
  }
  std::erase_if(by_age_, [&](int32_t slot) { return token_[slot] < 0; });
  SetPositions();
}

LaneView RandomAttention::View(int32_t kv, int32_t sinks, int32_t recent) const {
  return {.token = token_,
          .live = live(),
          .sinks = sinks,
          .recent = recent,
          .tokens = next_token_,
          .layer = options_.layer,
          .head = kv,
          .query_heads = options_.query_heads,
          .position = position_};
}

std::vector<int32_t> RandomAttention::LiveTokens() const {
  std::vector<int32_t> tokens;
  for (const int32_t slot : by_age_) tokens.push_back(token_[slot]);
  return tokens;
}

}  // namespace ebb
