// One lane without a model: tokens arrive, attend causally to what lives, and leave when told; the oracle-side partner
// of a scorer in property tests.
//
// The logit of query i on key j is a hash of (seed, i, j), and of j alone so that some tokens attract everybody. It
// knows nothing of slots, and sums run in double and in token order: two lanes that differ only in layout report the
// same bits.

#ifndef EBB_TESTS_SUPPORT_RANDOM_ATTENTION_H_
#define EBB_TESTS_SUPPORT_RANDOM_ATTENTION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "policies/lane_view.h"
#include "policies/scorer.h"

namespace ebb {

// Where a new token goes: the lowest free slot, as in the engine, or any free slot by the seed.
enum class Placement { kLowest, kRandom };

struct RandomAttentionOptions {
  uint64_t seed = 0;
  int32_t slots = 0;
  int32_t query_heads = 1;  // averaged, as one KV head's group is
  Placement placement = Placement::kLowest;
};

class RandomAttention {
 public:
  explicit RandomAttention(const RandomAttentionOptions& options);

  // Places `queries` tokens, lets each attend to all live tokens up to itself, and reports what `needs` names; its
  // spans stay valid until the next call. REQUIRES: as many slots are free, queries >= 1.
  Observation Step(int32_t queries, const Needs& needs);

  // Frees these live slots.
  void Evict(std::span<const int32_t> slots);

  LaneView View(int32_t sinks, int32_t recent) const;

  LaneShape shape() const { return {.query_heads = options_.query_heads}; }

  // Slots that the last step wrote, in token order: a scorer's state there starts at zero.
  std::span<const int32_t> placed() const { return placed_; }

  // Live tokens, ascending.
  std::vector<int32_t> LiveTokens() const;

  int32_t live() const { return static_cast<int32_t>(by_age_.size()); }
  int32_t tokens() const { return next_token_; }  // arrived so far

 private:
  void Place(int32_t queries);
  void AttendRow(int32_t query, std::vector<double>& row) const;

  RandomAttentionOptions options_;
  int32_t next_token_ = 0;
  std::vector<int32_t> token_;   // [slots] -1: free
  std::vector<int32_t> by_age_;  // live slots, oldest token first
  std::vector<int32_t> placed_;
  std::vector<float> column_sums_, last_row_, window_;
};

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_RANDOM_ATTENTION_H_
