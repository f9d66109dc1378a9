#include "tests/support/random_attention.h"

#include <algorithm>
#include <cmath>

#include "policies/check.h"
#include "policies/hash_random.h"

namespace ebb {
namespace {

enum Purpose : uint64_t { kPlacement = 1, kAttraction = 2, kFirstHead = 3 };

double Logit(uint64_t seed, int32_t head, int32_t query, int32_t key) {
  const uint64_t pair = static_cast<uint64_t>(query) << 32 | static_cast<uint64_t>(key);
  const double attraction = HashUniform(seed, kAttraction, static_cast<uint64_t>(key));
  return 6 * HashUniform(seed, kFirstHead + static_cast<uint64_t>(head), pair) + 4 * attraction * attraction;
}

}  // namespace

RandomAttention::RandomAttention(const RandomAttentionOptions& options)
    : options_(options), token_(static_cast<size_t>(options.slots), -1) {}

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
    token_[slot] = next_token_++;
    by_age_.push_back(static_cast<int32_t>(slot));
    placed_.push_back(static_cast<int32_t>(slot));
  }
}

// P[query, .] over `row` [slots], averaged over the query heads.
void RandomAttention::AttendRow(int32_t query, std::vector<double>& row) const {
  row.assign(token_.size(), 0.0);
  std::vector<double> weight(token_.size());
  for (int32_t head = 0; head < options_.query_heads; ++head) {
    double total = 0;
    for (const int32_t slot : by_age_) {
      if (token_[slot] > query) break;
      weight[slot] = std::exp(Logit(options_.seed, head, query, token_[slot]));
      total += weight[slot];
    }
    for (const int32_t slot : by_age_) {
      if (token_[slot] > query) break;
      row[slot] += weight[slot] / total / options_.query_heads;
    }
  }
}

Observation RandomAttention::Step(int32_t queries, const Needs& needs) {
  Place(queries);
  const size_t slots = token_.size();
  const int32_t window_rows = std::min(needs.window_rows, queries);
  std::vector<double> sums(slots, 0.0);
  std::vector<double> row;
  window_.clear();
  for (int32_t i = 0; i < queries; ++i) {
    AttendRow(next_token_ - queries + i, row);
    for (size_t slot = 0; slot < slots; ++slot) sums[slot] += row[slot];
    if (i >= queries - window_rows) window_.insert(window_.end(), row.begin(), row.end());
  }
  column_sums_.assign(sums.begin(), sums.end());
  last_row_.assign(row.begin(), row.end());
  Observation seen = {.queries = queries};
  if (needs.column_sums) seen.column_sums = column_sums_;
  if (needs.last_row) seen.last_row = last_row_;
  if (needs.window_rows > 0) seen.window = window_;
  return seen;
}

void RandomAttention::Evict(std::span<const int32_t> slots) {
  for (const int32_t slot : slots) {
    EBB_CHECK(token_[slot] >= 0);
    token_[slot] = -1;
  }
  std::erase_if(by_age_, [&](int32_t slot) { return token_[slot] < 0; });
}

LaneView RandomAttention::View(int32_t sinks, int32_t recent) const {
  return {.token = token_, .live = live(), .sinks = sinks, .recent = recent};
}

std::vector<int32_t> RandomAttention::LiveTokens() const {
  std::vector<int32_t> tokens;
  for (const int32_t slot : by_age_) tokens.push_back(token_[slot]);
  return tokens;
}

}  // namespace ebb
