// All lanes of a session: their pages, and who sits where.
//
// While every lane holds the same tokens (nothing was evicted, or the scorer looks at positions alone) one slot map
// serves all of them; a policy that chooses per head gets one map per lane. Not thread safe; distinct lanes may be read
// and evicted from by distinct threads.

#ifndef EBB_ENGINE_CACHE_SESSION_CACHE_H_
#define EBB_ENGINE_CACHE_SESSION_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cache/page_pool.h"
#include "engine/cache/slot_map.h"
#include "engine/ops.h"
#include "policies/spec.h"

namespace ebb {

// The shape of a session's cache; what a session reserves follows from it.
struct CacheShape {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  KvFormat format = {};
  int32_t capacity = 0;   // slots per lane
  int32_t block_max = 0;  // most tokens of one step

  int32_t lanes() const { return layers * kv_heads; }
  int64_t pages_per_lane() const {
    const int64_t page_slots = static_cast<int64_t>(format.page_tiles) * kTileSlots;
    return (capacity + page_slots - 1) / page_slots;
  }
  int64_t pages() const { return pages_per_lane() * lanes(); }
};

class SessionCache {
 public:
  // REQUIRES: lease.size() == shape.pages().
  SessionCache(const CacheShape& shape, PageLease lease, const ValidSpec& policy);

  const CacheShape& shape() const { return shape_; }
  int64_t pages() const { return lease_.size(); }

  // One map for all lanes, or one per lane in layer-major order.
  std::vector<SlotMap>& maps() { return maps_; }
  const std::vector<SlotMap>& maps() const { return maps_; }
  bool shared() const { return maps_.size() == 1 && shape_.lanes() > 1; }
  SlotMap& map(int32_t layer, int32_t head) { return maps_[map_index(layer, head)]; }
  const SlotMap& map(int32_t layer, int32_t head) const { return maps_[map_index(layer, head)]; }

  // Gives every lane a map of its own, equal to the shared one, so that lanes can lose different tokens.
  void SeparateLanes();

  // The lane's memory, without angles. Valid until the next Place, Free or SeparateLanes.
  LaneStorage storage(int32_t layer, int32_t head) const;

 private:
  size_t map_index(int32_t layer, int32_t head) const {
    return maps_.size() == 1 ? 0 : static_cast<size_t>(layer) * shape_.kv_heads + head;
  }

  CacheShape shape_;
  PageLease lease_;
  std::vector<std::byte*> pages_ = {};  // [lanes, pages_per_lane]
  std::vector<SlotMap> maps_ = {};
};

}  // namespace ebb

#endif  // EBB_ENGINE_CACHE_SESSION_CACHE_H_
