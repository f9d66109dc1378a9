#include "server/fair_queue.h"

#include "policies/check.h"

namespace ebb {

FairQueue::FairQueue(const Options& options) : options_(options) {
  EBB_CHECK(options.quantum >= 1);
  EBB_CHECK(options.priority_places >= 0);
}

void FairQueue::SetWeight(TenantId tenant, int32_t weight) {
  EBB_CHECK(weight >= 1);
  EBB_CHECK(weight <= kWeightMax);
  if (weight == 1) {
    weights_.erase(tenant);  // most tenants have it, and they come and go
  } else {
    weights_[tenant] = weight;
  }
}

int32_t FairQueue::weight(TenantId tenant) const {
  const auto found = weights_.find(tenant);
  return found == weights_.end() ? 1 : found->second;
}

size_t FairQueue::size_of(TenantId tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? 0 : found->second->entries.size();
}

void FairQueue::ForEachTenant(absl::FunctionRef<void(TenantId)> see) const {
  for (const Tenant& tenant : ring_) {
    if (!tenant.entries.empty()) see(tenant.id);
  }
}

void FairQueue::Push(const Entry& entry) {
  EBB_CHECK(entry.cost >= 1);
  EBB_CHECK(entry.priority >= 0);
  EBB_CHECK(entry.priority <= kPriorityMax);
  auto tenant = tenants_.find(entry.tenant);
  if (tenant == tenants_.end()) {
    if (left_.empty()) left_.emplace_back();
    left_.front().id = entry.tenant;
    const Ring::iterator came = left_.begin();
    ring_.splice(options_.newcomers_first ? ring_.begin() : ring_.end(), left_, came);
    tenant = tenants_.emplace(entry.tenant, came).first;
  }
  const Place place{.rank = entry.age - int64_t{options_.priority_places} * entry.priority, .id = entry.id};
  const bool is_new = places_.emplace(entry.id, Position{.tenant = tenant->second, .place = place}).second;
  EBB_CHECK(is_new);
  tenant->second->entries.emplace(place, entry);
}

bool FairQueue::Erase(uint64_t id) {
  const auto position = places_.find(id);
  if (position == places_.end()) return false;
  Remove(position);
  return true;
}

void FairQueue::Remove(ReusingMap<uint64_t, Position>::iterator position) {
  const Ring::iterator tenant = position->second.tenant;
  tenant->entries.erase(tenant->entries.find(position->second.place));
  places_.erase(position);
  if (!tenant->entries.empty()) return;
  tenant->deficit = 0;
  tenant->visited = false;
  if (!options_.newcomers_first) return Leave(tenant);
  ring_.splice(ring_.end(), ring_, tenant);  // a round from now it may come anew
}

void FairQueue::Leave(Ring::iterator tenant) {
  tenants_.erase(tenants_.find(tenant->id));
  left_.splice(left_.begin(), ring_, tenant);
}

std::optional<FairQueue::Entry> FairQueue::Take(int32_t cost_max) {
  // Ends: every round of the ring adds at least one token to each deficit, and costs are finite.
  while (!ring_.empty()) {
    Tenant& tenant = ring_.front();
    if (tenant.entries.empty()) {
      Leave(ring_.begin());
      continue;
    }
    if (!tenant.visited) {
      tenant.visited = true;
      tenant.deficit += int64_t{options_.quantum} * weight(tenant.id);
    }
    const Entry entry = tenant.entries.begin()->second;
    if (entry.cost <= tenant.deficit) {
      if (entry.cost > cost_max) return std::nullopt;
      tenant.deficit -= entry.cost;
      Remove(places_.find(entry.id));
      return entry;
    }
    tenant.visited = false;
    ring_.splice(ring_.end(), ring_, ring_.begin());
  }
  return std::nullopt;
}

}  // namespace ebb
