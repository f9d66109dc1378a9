#include "engine/cache/session_cache.h"

#include <utility>

#include "policies/check.h"

namespace ebb {

SessionCache::SessionCache(const CacheShape& shape, PageLease lease, const ValidSpec& policy)
    : shape_(shape), lease_(std::move(lease)) {
  EBB_CHECK(lease_.size() == shape_.pages());
  pages_.reserve(lease_.size());
  for (int64_t i = 0; i < lease_.size(); ++i) pages_.push_back(lease_.address(i));
  const int32_t state_floats = policy.scorer->needs().state_floats;
  const bool lockstep = policy.lockstep || !policy.evicts;
  EBB_CHECK(!lockstep || state_floats == 0);
  const int32_t maps = lockstep ? 1 : shape_.lanes();
  maps_.reserve(maps);
  for (int32_t i = 0; i < maps; ++i)
    maps_.emplace_back(shape_.capacity, shape_.block_max, state_floats, policy.positions);
}

void SessionCache::SeparateLanes() {
  if (!shared()) return;
  const SlotMap common = maps_.front();
  maps_.assign(shape_.lanes(), common);
}

LaneStorage SessionCache::storage(int32_t layer, int32_t head) const {
  const SlotMap& slots = map(layer, head);
  const int64_t lane = static_cast<int64_t>(layer) * shape_.kv_heads + head;
  return {.format = shape_.format,
          .pages = pages_.data() + lane * shape_.pages_per_lane(),
          .position = slots.position().data(),
          .slots = slots.end()};
}

}  // namespace ebb
