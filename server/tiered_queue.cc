#include "server/tiered_queue.h"

#include <algorithm>

#include "policies/check.h"

namespace ebb {

TieredQueue::TieredQueue(int32_t priority_places, int32_t floor)
    : floor_(floor),
      levels_{Level{FairQueue(priority_places)}, Level{FairQueue(priority_places)}, Level{FairQueue(priority_places)}} {
  EBB_CHECK(floor >= 1);
}

void TieredQueue::SetWeight(TenantId tenant, int32_t weight) {
  for (Level& level : levels_) level.queue.SetWeight(tenant, weight);  // it may have entries where it was before
}

void TieredQueue::SetTier(TenantId tenant, Tier tier) {
  if (tier == Tier::kNormal) {
    tiers_.erase(tenant);  // most tenants have it, and they come and go
  } else {
    tiers_[tenant] = tier;
  }
}

Tier TieredQueue::tier(TenantId tenant) const {
  const auto found = tiers_.find(tenant);
  return found == tiers_.end() ? Tier::kNormal : found->second;
}

void TieredQueue::Push(const Entry& entry) { levels_[static_cast<size_t>(tier(entry.tenant))].queue.Push(entry); }

bool TieredQueue::Erase(uint64_t id) {
  return std::ranges::any_of(levels_, [id](Level& level) { return level.queue.Erase(id); });
}

bool TieredQueue::Contains(uint64_t id) const {
  return std::ranges::any_of(levels_, [id](const Level& level) { return level.queue.Contains(id); });
}

size_t TieredQueue::size() const {
  size_t size = 0;
  for (const Level& level : levels_) size += level.queue.size();
  return size;
}

size_t TieredQueue::Next() const {
  size_t first = 0;
  while (levels_[first].queue.empty()) ++first;
  size_t next = kTiers - 1;
  while (next > first && (levels_[next].queue.empty() || levels_[next].passed < floor_)) --next;
  return next;
}

std::optional<TieredQueue::Entry> TieredQueue::Take(int32_t cost_max) {
  if (empty()) return std::nullopt;
  const size_t next = Next();
  const std::optional<Entry> entry = levels_[next].queue.Take(cost_max);
  if (!entry) return std::nullopt;
  const bool was_owed = std::any_of(levels_.begin(), levels_.begin() + static_cast<ptrdiff_t>(next),
                                    [](const Level& level) { return !level.queue.empty(); });
  if (was_owed) levels_[next].passed -= int64_t{floor_} * entry->cost;
  for (size_t lower = next + 1; lower < kTiers; ++lower) {
    if (!levels_[lower].queue.empty()) levels_[lower].passed += entry->cost;
  }
  return entry;
}

}  // namespace ebb
