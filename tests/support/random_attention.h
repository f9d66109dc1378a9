// The lanes of one layer that share a slot map, without a model: tokens arrive, attend causally to what lives, and
// leave when told; the oracle-side partner of a scorer in property tests.
//
// A token's query, key and value are hashes of (seed, head, token), so they belong to the token and know nothing of
// slots or of how tokens were cut into blocks. Logits are q.k / sqrt(d) after RoPE; the last channel of a key makes
// some tokens attract everybody. Attention runs in double and in token order: two lanes that differ only in layout
// report the same bits.

#ifndef EBB_TESTS_SUPPORT_RANDOM_ATTENTION_H_
#define EBB_TESTS_SUPPORT_RANDOM_ATTENTION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "policies/lane_memory.h"
#include "policies/lane_view.h"
#include "policies/scorer.h"
#include "policies/spec.h"

namespace ebb {

// Where a new token goes: the lowest free slot, as in the engine, or any free slot by the seed.
enum class Placement { kLowest, kRandom };

struct RandomAttentionOptions {
  uint64_t seed = 0;
  int32_t slots = 0;
  int32_t query_heads = 1;  // that share a KV head
  int32_t kv_heads = 1;
  Placement placement = Placement::kLowest;
  Positions positions = Positions::kOriginal;
  int32_t first_token = 0;  // index of the first token to arrive
  int32_t layer = 0;
};

// `row` turned by `position` radians times each frequency, as RoPE turns queries and keys.
std::vector<double> Turned(const RopeView& rope, double position, std::span<const float> row);

// A query head: the `query`-th of the KV head `kv`.
struct HeadIndex {
  int32_t kv = 0;
  int32_t query = 0;
};

class RandomAttention {
 public:
  static constexpr int32_t kHeadDim = 8;
  static constexpr int32_t kRotaryDims = 6;

  explicit RandomAttention(const RandomAttentionOptions& options);

  // Places `queries` tokens and lets each attend to all live tokens up to itself. REQUIRES: as many slots are free,
  // queries >= 1.
  void Step(int32_t queries);

  // What a KV head's query heads saw in the last step, in the mean, and what one of them saw alone; what `needs` names.
  // The spans stay valid until the next call of either, or of Step.
  Observation Seen(int32_t kv, const Needs& needs);
  Observation Seen(HeadIndex head, const Needs& needs);

  // P[i, slot] of the i-th query of the last step, as it was before any eviction.
  std::span<const double> Row(HeadIndex head, int32_t i) const;

  // Adds to `sums` [slots] what each probe (its token, its query [head_dim] in `queries`) attends to now, times
  // `share`.
  void AddProbes(int32_t kv, std::span<const int32_t> tokens, std::span<const float> queries, double share,
                 std::span<double> sums) const;

  // Frees these live slots.
  void Evict(std::span<const int32_t> slots);

  // Without memory and budget, which are the policy's to ask for.
  LaneView View(int32_t kv, int32_t sinks, int32_t recent) const;
  const LaneMemory& memory(int32_t kv) const { return memory_[kv]; }

  // Unrotated, [head_dim].
  std::vector<float> Query(HeadIndex head, int32_t token) const;
  std::vector<float> Key(int32_t kv, int32_t token) const;
  std::vector<float> Value(int32_t kv, int32_t token) const;
  RopeView rope() const;

  // Slots that the last step wrote, in token order: a scorer's state there starts at zero.
  std::span<const int32_t> placed() const { return placed_; }

  // Live tokens, ascending.
  std::vector<int32_t> LiveTokens() const;

  const RandomAttentionOptions& options() const { return options_; }
  int32_t live() const { return static_cast<int32_t>(by_age_.size()); }
  int32_t tokens() const { return next_token_; }  // length of the log

 private:
  // K and V by slot; zeros where a slot is free.
  class KeysAndValues final : public LaneMemory {
   public:
    explicit KeysAndValues(const RopeView& rope, int32_t slots);
    int32_t head_dim() const override { return kHeadDim; }
    RopeView rope() const override { return rope_; }
    std::span<const float> Keys(int32_t first, int32_t count) const override { return Rows(keys, first, count); }
    std::span<const float> Values(int32_t first, int32_t count) const override { return Rows(values, first, count); }

    std::vector<float> keys;    // [slots, head_dim]
    std::vector<float> values;  // [slots, head_dim]

   private:
    static std::span<const float> Rows(const std::vector<float>& rows, int32_t first, int32_t count);
    RopeView rope_;
  };

  void Place(int32_t queries);
  void SetPositions();
  // Adds to `row` [slots] `share` times P of a token's query, unrotated, over the live tokens up to itself.
  void Attend(int32_t kv, int32_t token, std::span<const float> query, double share, std::span<double> row) const;
  // The mean over some query heads of one KV head, which follow each other from `first`.
  Observation Mean(HeadIndex first, int32_t heads, const Needs& needs);

  RandomAttentionOptions options_;
  int32_t next_token_ = 0;
  int32_t step_queries_ = 0;
  std::vector<int32_t> token_;     // [slots] -1: free
  std::vector<int32_t> position_;  // [slots] -1: free
  std::vector<int32_t> by_age_;    // live slots, oldest token first
  std::vector<int32_t> placed_;
  std::vector<KeysAndValues> memory_;  // [kv_heads]
  std::vector<double> rotated_;        // [kv_heads, slots, head_dim] keys, turned by their positions
  std::vector<double> rows_;           // [queries, kv_heads, query_heads, slots] P of the last step
  std::vector<float> q_;               // [queries, kv_heads, query_heads, head_dim] of the last step
  std::vector<float> column_sums_, last_row_, window_;
};

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_RANDOM_ATTENTION_H_
