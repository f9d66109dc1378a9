#include "server/fair_queue.h"

#include <algorithm>

#include "policies/check.h"

namespace ebb {
namespace {

// Of virtual time, for a token at weight 1: weights up to 12 divide it. It lasts for 3 * 10^14 tokens.
constexpr int64_t kUnits = 27720;

}  // namespace

FairQueue::FairQueue(int32_t priority_places) : priority_places_(priority_places) { EBB_CHECK(priority_places >= 0); }

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
  for (const auto& [turn, tenant] : turns_) see(tenant->id);
}

// Placed where the time is; in neither order of turns yet.
FairQueue::Tenants::iterator FairQueue::Come(TenantId id) {
  if (spare_.empty()) spare_.emplace_back();
  const Tenants::iterator tenant = spare_.begin();
  known_.splice(known_.end(), spare_, tenant);
  tenant->id = id;
  tenant->turn = {.time = now_, .served = false, .number = turns_given_++};
  tenant->left_over = 0;
  tenants_.emplace(id, tenant);
  return tenant;
}

void FairQueue::Push(const Entry& entry) {
  EBB_CHECK(entry.cost >= 1);
  EBB_CHECK(entry.priority >= 0);
  EBB_CHECK(entry.priority <= kPriorityMax);
  const auto known = tenants_.find(entry.tenant);
  const bool comes = known == tenants_.end();
  const Tenants::iterator tenant = comes ? Come(entry.tenant) : known->second;
  if (tenant->entries.empty()) {
    if (!comes) rests_.erase(rests_.find(tenant->turn));
    turns_.emplace(tenant->turn, tenant);
  }
  const Place place{.rank = entry.age - int64_t{priority_places_} * entry.priority, .id = entry.id};
  const bool is_new = places_.emplace(entry.id, Position{.tenant = tenant, .place = place}).second;
  EBB_CHECK(is_new);
  tenant->entries.emplace(place, entry);
}

bool FairQueue::Erase(uint64_t id) {
  const auto position = places_.find(id);
  if (position == places_.end()) return false;
  Remove(position);
  return true;
}

void FairQueue::Remove(ReusingMap<uint64_t, Position>::iterator position) {
  const Tenants::iterator tenant = position->second.tenant;
  tenant->entries.erase(tenant->entries.find(position->second.place));
  places_.erase(position);
  if (tenant->entries.empty()) {
    turns_.erase(turns_.find(tenant->turn));
    rests_.emplace(tenant->turn, tenant);
  }
  // Whose place is reached would be placed there, too, if it came; and where nobody waits, nobody is owed anything.
  while (!rests_.empty() && (turns_.empty() || rests_.begin()->first.time <= now_)) {
    const Tenants::iterator gone = rests_.begin()->second;
    rests_.erase(rests_.begin());
    tenants_.erase(tenants_.find(gone->id));
    spare_.splice(spare_.begin(), known_, gone);
  }
}

std::optional<FairQueue::Entry> FairQueue::Take(int32_t cost_max) {
  if (turns_.empty()) return std::nullopt;
  const Tenants::iterator tenant = turns_.begin()->second;
  const Entry entry = tenant->entries.begin()->second;
  if (entry.cost > cost_max) return std::nullopt;
  now_ = tenant->turn.time;
  turns_.erase(turns_.begin());
  const int64_t moved = std::max(entry.cost, entry.charge_min) * kUnits + tenant->left_over;
  tenant->left_over = moved % weight(tenant->id);
  tenant->turn = {.time = now_ + moved / weight(tenant->id), .served = true, .number = turns_given_++};
  turns_.emplace(tenant->turn, tenant);
  Remove(places_.find(entry.id));
  return entry;
}

}  // namespace ebb
