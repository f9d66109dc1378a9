// All lanes of a session: their pages, and who sits where.
//
// While every lane holds the same tokens (nothing was evicted, or the scorer looks at positions alone) one slot map
// serves all of them; a policy that chooses per layer gets a map per layer, one that chooses per head a map per lane.
//
// Caches may share pages, each with maps of its own (Fork). Nobody writes to a shared page, or to a kept one: OwnNext,
// OwnPlaced and Resize put copies in the place of those that are about to be written.
//
// Not thread safe; distinct maps may be read and evicted from by distinct threads.

#ifndef EBB_ENGINE_CACHE_SESSION_CACHE_H_
#define EBB_ENGINE_CACHE_SESSION_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/page_pool.h"
#include "engine/cache/slot_map.h"
#include "engine/ops.h"
#include "policies/spec.h"

namespace ebb {

// The shape of a session's cache; what a session reserves follows from it.
struct CacheShape {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t query_heads = 1;  // that share a KV head
  KvFormat format = {};
  int32_t capacity = 0;                // slots per lane; of the largest, where they differ
  std::vector<int32_t> slots_of = {};  // [lanes] slots of each, where they differ; else empty
  int32_t block_max = 0;               // most tokens of one step

  int32_t lanes() const { return layers * kv_heads; }
  int32_t slots(int32_t lane) const { return slots_of.empty() ? capacity : slots_of[lane]; }
  int64_t pages_of(int32_t lane) const {
    const int64_t page_slots = static_cast<int64_t>(format.page_tiles) * kTileSlots;
    return (slots(lane) + page_slots - 1) / page_slots;
  }
  int64_t pages() const {
    int64_t pages = 0;
    for (int32_t lane = 0; lane < lanes(); ++lane) pages += pages_of(lane);
    return pages;
  }
};

// Which lanes one slot map serves.
enum class Share { kAllLanes, kLayer, kLane };

// How many maps there are.
int32_t MapsFor(const CacheShape& shape, Share share);
// What each of them keeps for the policy's scorer. REQUIRES: the scorer keeps nothing where all lanes share.
StateShape StateFor(const CacheShape& shape, const ValidSpec& policy, Share share);

class SessionCache {
 public:
  // REQUIRES: lease.size() == shape.pages().
  SessionCache(const CacheShape& shape, PageLease lease, const ValidSpec& policy);

  // Who sits where, as a value: what a trial puts back, and a snapshot.
  struct Maps {
    Share share = Share::kAllLanes;
    std::vector<SlotMap> maps = {};
  };

  // With slot maps that fit the shape.
  SessionCache(const CacheShape& shape, PageLease lease, Maps maps);

  // The same tokens in the same slots of the same pages.
  SessionCache Fork() const;

  // A cache as it was: the pages that had a live slot, and who sat where.
  struct Kept {
    std::vector<KeptPages> lanes = {};  // their first pages
    Maps maps = {};
  };
  Kept Keep() const;
  // How many pages that are.
  int64_t live_pages() const;
  // REQUIRES: nothing was ever placed here; what was kept is of a cache of the same shape and policy.
  void Take(const Kept& kept);

  // What a cache that began with Fork needs to go on: a page of its own in the place of every shared one without a
  // live slot, and the promise of a copy of every shared one that has a free slot; of all it shares where `all_copies`,
  // and of those where the ones it shares them with hold such promises. UNAVAILABLE NO_PAGES; nothing changes then.
  absl::Status ReserveShared(PagePool& pool, bool all_copies);

  // Makes the pages that the next `tokens` tokens go to this cache's own, and sets pages aside so that OwnPlaced can do
  // so for any token in each of `steps` steps. UNAVAILABLE NO_PAGES; nothing changes then.
  absl::Status OwnNext(PagePool& pool, int32_t tokens, int32_t steps);
  // The same for the slots of the last Place, with the pages that were set aside.
  void OwnPlaced();
  // What was set aside is free again.
  void ForgetSpare() { spare_ = PageLease(); }

  // Makes every page this cache's own. UNAVAILABLE NO_PAGES; nothing changes then.
  absl::Status OwnAll(PagePool& pool);

  // Whether the slots of the last Place may be written.
  bool OwnsPlaced() const;

  const CacheShape& shape() const { return shape_; }
  // Held, shared ones and those set aside included.
  int64_t pages() const { return static_cast<int64_t>(pages_.size()) + spare_.size(); }
  int64_t shared_pages() const;  // of these; O(pages)
  // All that pages() counts, at the end of `to`, for PagePool::FreedBy: good until the cache is gone or moved.
  void ListLeases(std::vector<const PageLease*>& to) const;

  // One map for all lanes, or one per layer, or one per lane in layer-major order.
  std::vector<SlotMap>& maps() { return maps_; }
  const std::vector<SlotMap>& maps() const { return maps_; }
  Share share() const { return share_; }
  int32_t map_index(int32_t layer, int32_t head) const {
    return share_ == Share::kAllLanes ? 0 : share_ == Share::kLayer ? layer : layer * shape_.kv_heads + head;
  }
  SlotMap& map(int32_t layer, int32_t head) { return maps_[map_index(layer, head)]; }
  const SlotMap& map(int32_t layer, int32_t head) const { return maps_[map_index(layer, head)]; }
  // By number, as first_lane.
  const SlotMap& map_of(int32_t lane) const { return maps_[lane / lanes_of_map()]; }

  // The lanes that a map serves, in layer-major order, as numbers layer * kv_heads + head.
  int32_t lanes_of_map() const { return shape_.lanes() / static_cast<int32_t>(maps_.size()); }
  int32_t first_lane(int32_t map) const { return map * lanes_of_map(); }
  // Where the states of a lane's query heads, or its one state, begin among the tracks of its map.
  int32_t first_track(int32_t layer, int32_t head) const {
    const SlotMap& of = map(layer, head);
    return (layer * shape_.kv_heads + head) % lanes_of_map() * (of.state_shape().tracks / lanes_of_map());
  }

  // Gives every lane a map of its own, equal to the shared one, so that lanes can lose different tokens.
  void SeparateLanes();

  Maps CopyMaps() const { return {.share = share_, .maps = maps_}; }
  Maps TakeMaps(Maps other);

  // Whether all lanes that would share a map hold the same tokens in the same slots.
  bool Agree(Share share) const;

  // Makes the maps what `policy` needs, with its scorer's states all zero: shared as it allows, positions as it says.
  // REQUIRES: Agree(the share it needs), which kLane always does.
  void Adopt(const ValidSpec& policy);

  // Other capacities or another largest step. A lane that shrinks moves its live slots to its front and gives the pages
  // past them away; one that grows takes from these and from `more`, which has PagesToResize. REQUIRES: every lane's
  // live tokens fit `shape`, which differs from shape() in capacities and block_max alone, the same for all lanes of a
  // map.
  int64_t PagesToResize(const CacheShape& shape) const;
  void Resize(const CacheShape& shape, PageLease more, Ops& ops);

  // The lane's memory, without angles. Valid until the next Place, Free, SeparateLanes, Adopt, OwnNext, OwnPlaced or
  // Resize.
  LaneStorage storage(int32_t layer, int32_t head) const;

  // What a scorer sees of a lane, without its memory. `tokens`: length of the session's log.
  LaneView view(int32_t layer, int32_t head, const ValidSpec& policy, int32_t tokens) const;

 private:
  void TakePages(PageLease lease);

  SessionCache(const CacheShape& shape, std::vector<PageLease> leases, Share share, const std::vector<SlotMap>& maps);

  int64_t live_pages_of(int32_t lane) const { return (map_of(lane).end() + page_slots() - 1) / page_slots(); }
  int64_t page_slots() const { return int64_t{shape_.format.page_tiles} * kTileSlots; }
  template <typename Visit>
  void VisitPages(int32_t map, std::span<const int32_t> slots, const Visit& visit) const;
  void Copy(int32_t lane, int64_t page, PageLease& from);
  void ListPages();

  CacheShape shape_;
  std::vector<PageLease> leases_ = {};    // one per lane
  PageLease spare_ = {};                  // set aside by OwnNext
  std::vector<std::byte*> pages_ = {};    // of one lane after another
  std::vector<int64_t> first_page_ = {};  // [lanes] index into pages_
  Share share_ = Share::kAllLanes;
  std::vector<SlotMap> maps_ = {};
};

// The share that a policy's choices need.
Share ShareFor(const ValidSpec& policy);

}  // namespace ebb

#endif  // EBB_ENGINE_CACHE_SESSION_CACHE_H_
