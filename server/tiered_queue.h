// Whose turn it is between tenants of several priorities: a fair queue for each tier, the highest first.
//
// A lower tier has what the higher ones leave, but for a floor: while it waits, of `floor` + 1 tokens that are taken
// one is its, so that nobody waits for ever. Within a tier all is as in fair_queue.h, and where all tenants are of one
// tier nothing differs from it.
//
// Bounds, c = largest cost: while a tier has entries, those above it take at most floor * (1 + c) + c tokens before it
// takes an entry, and over a long time at most floor tokens for each of its own. Of two tiers that are owed, the lower
// goes first.
//
// Pure and single-threaded. The cost of each call is fair_queue.h's, for each tier.

#ifndef EBB_SERVER_TIERED_QUEUE_H_
#define EBB_SERVER_TIERED_QUEUE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "server/fair_queue.h"

namespace ebb {

// Of a tenant, and so of all that it asks for.
enum class Tier { kHigh, kNormal, kLow };
inline constexpr size_t kTiers = 3;

class TieredQueue {
 public:
  using Entry = FairQueue::Entry;

  // As FairQueue's; `floor` >= 1.
  TieredQueue(int32_t priority_places, int32_t floor);

  // As FairQueue's.
  void SetWeight(TenantId tenant, int32_t weight);
  // kNormal until set. Counts for what is pushed from then on.
  void SetTier(TenantId tenant, Tier tier);
  Tier tier(TenantId tenant) const;

  void Push(const Entry& entry);
  bool Erase(uint64_t id);
  // As FairQueue's: an entry that costs more than `cost_max` keeps its turn, and no tier slips through behind it.
  std::optional<Entry> Take(int32_t cost_max);

  // Of a tier alone.
  const FairQueue& of(Tier tier) const { return levels_[static_cast<size_t>(tier)].queue; }

  bool Contains(uint64_t id) const;
  bool empty() const { return size() == 0; }
  size_t size() const;

 private:
  struct Level {
    FairQueue queue;
    int64_t passed = 0;  // tokens that higher tiers took while this had entries, less floor for each that it was given
  };

  // Whose turn it is. REQUIRES: not empty.
  size_t Next() const;

  const int32_t floor_;
  std::array<Level, kTiers> levels_;
  std::map<TenantId, Tier> tiers_;  // those that are not kNormal
};

}  // namespace ebb

#endif  // EBB_SERVER_TIERED_QUEUE_H_
