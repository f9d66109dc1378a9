#include "engine/cache/session_cache.h"

#include <algorithm>
#include <utility>

#include "policies/check.h"

namespace ebb {
namespace {

bool SameTokens(const SlotMap& a, const SlotMap& b) { return std::ranges::equal(a.token(), b.token()); }

}  // namespace

int32_t MapsFor(const CacheShape& shape, Share share) {
  return share == Share::kAllLanes ? 1 : share == Share::kLayer ? shape.layers : shape.lanes();
}

Share ShareFor(const ValidSpec& policy) {
  const bool alike = policy.lockstep || !policy.evicts;
  if (alike && policy.allocation == Allocation::kUniform) return Share::kAllLanes;
  return policy.scope == Scope::kLayer ? Share::kLayer : Share::kLane;
}

StateShape StateFor(const CacheShape& shape, const ValidSpec& policy, Share share) {
  const LaneShape lane = {.query_heads = shape.query_heads, .head_dim = shape.format.head_dim};
  const StateShape one = {.slot_floats = policy.scorer->needs().state_floats,
                          .lane_floats = policy.scorer->lane_floats(lane)};
  if (share == Share::kAllLanes) {
    EBB_CHECK(one.slot_floats == 0);
    EBB_CHECK(one.lane_floats == 0);
    return one;
  }
  const int32_t lanes = shape.lanes() / MapsFor(shape, share);
  return {.tracks = lanes * (policy.heads_apart() ? shape.query_heads : 1),
          .slot_floats = one.slot_floats,
          .lane_floats = one.lane_floats};
}

SessionCache::SessionCache(const CacheShape& shape, PageLease lease, const ValidSpec& policy)
    : shape_(shape), leases_(shape.lanes()), share_(ShareFor(policy)) {
  TakePages(std::move(lease));
  const int32_t maps = MapsFor(shape_, share_);
  maps_.reserve(maps);
  for (int32_t i = 0; i < maps; ++i) {
    maps_.emplace_back(shape_.slots(i * (shape_.lanes() / maps)), shape_.block_max, StateFor(shape_, policy, share_),
                       policy.positions);
  }
}

SessionCache::SessionCache(const CacheShape& shape, PageLease lease, Maps maps)
    : shape_(shape), leases_(shape.lanes()), share_(maps.share), maps_(std::move(maps.maps)) {
  EBB_CHECK(static_cast<int32_t>(maps_.size()) == MapsFor(shape_, share_));
  TakePages(std::move(lease));
}

void SessionCache::TakePages(PageLease lease) {
  EBB_CHECK(lease.size() == shape_.pages());
  for (int32_t lane = 0; lane < shape_.lanes(); ++lane) lease.Give(shape_.pages_of(lane), leases_[lane]);
  ListPages();
}

void SessionCache::SeparateLanes() {
  if (share_ == Share::kLane) return;
  const int32_t lanes = lanes_of_map();
  std::vector<SlotMap> separate;
  separate.reserve(shape_.lanes());
  for (const SlotMap& map : maps_) {
    const int32_t tracks = map.state_shape().tracks / lanes;
    for (int32_t lane = 0; lane < lanes; ++lane) {
      separate.push_back(map);
      if (share_ == Share::kLayer) separate.back().KeepTracks(lane * tracks, tracks);
    }
  }
  maps_ = std::move(separate);
  share_ = Share::kLane;
}

SessionCache::Maps SessionCache::TakeMaps(Maps other) {
  return {.share = std::exchange(share_, other.share), .maps = std::exchange(maps_, std::move(other.maps))};
}

bool SessionCache::Agree(Share share) const {
  const int32_t maps = MapsFor(shape_, share);
  const auto have = static_cast<int32_t>(maps_.size());
  if (maps >= have) return true;
  for (int32_t i = 0; i < have; ++i) {
    if (!SameTokens(maps_[i], maps_[i / (have / maps) * (have / maps)])) return false;
  }
  return true;
}

void SessionCache::Adopt(const ValidSpec& policy) {
  Share share = ShareFor(policy);
  // Lanes that once differed stay apart under a rule that would let them share.
  if (share == Share::kAllLanes && !Agree(share)) share = Share::kLane;
  EBB_CHECK(Agree(share));
  const int32_t maps = MapsFor(shape_, share);
  const auto have = static_cast<int32_t>(maps_.size());
  std::vector<SlotMap> adopted;
  adopted.reserve(maps);
  for (int32_t i = 0; i < maps; ++i) {
    adopted.push_back(maps_[maps >= have ? i / (maps / have) : i * (have / maps)]);
    adopted.back().ResetState(StateFor(shape_, policy, share));
    adopted.back().SetPositions(policy.positions);
  }
  maps_ = std::move(adopted);
  share_ = share;
}

void SessionCache::Resize(const CacheShape& shape, PageLease more, Ops& ops) {
  EBB_CHECK(more.size() == std::max<int64_t>(0, shape.pages() - pages()));
  std::vector<std::vector<SlotMove>> moves(maps_.size());
  for (size_t i = 0; i < maps_.size(); ++i) {
    if (shape.slots(first_lane(static_cast<int32_t>(i))) < maps_[i].capacity()) maps_[i].Compact(moves[i]);
  }
  for (int32_t layer = 0; layer < shape_.layers; ++layer) {
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      LaneStorage lane = storage(layer, head);
      ops.Move(lane, moves[map_index(layer, head)]);
    }
  }
  for (int32_t lane = 0; lane < shape.lanes(); ++lane) {
    const int64_t excess = leases_[lane].size() - shape.pages_of(lane);
    if (excess > 0) leases_[lane].Give(excess, more);
  }
  for (int32_t lane = 0; lane < shape.lanes(); ++lane) {
    const int64_t missing = shape.pages_of(lane) - leases_[lane].size();
    if (missing > 0) more.Give(missing, leases_[lane]);
  }
  for (size_t i = 0; i < maps_.size(); ++i) {
    maps_[i].Resize(shape.slots(first_lane(static_cast<int32_t>(i))), shape.block_max);
  }
  shape_ = shape;
  ListPages();
}

void SessionCache::ListPages() {
  pages_.clear();
  pages_.reserve(shape_.pages());
  first_page_.clear();
  for (const PageLease& lane : leases_) {
    first_page_.push_back(static_cast<int64_t>(pages_.size()));
    for (int64_t page = 0; page < lane.size(); ++page) pages_.push_back(lane.address(page));
  }
}

LaneStorage SessionCache::storage(int32_t layer, int32_t head) const {
  const SlotMap& slots = map(layer, head);
  return {.format = shape_.format,
          .pages = pages_.data() + first_page_[layer * shape_.kv_heads + head],
          .position = slots.position().data(),
          .slots = slots.end()};
}

LaneView SessionCache::view(int32_t layer, int32_t head, const ValidSpec& policy, int32_t tokens) const {
  const LaneRule rule = policy.rule(layer * shape_.kv_heads + head);
  LaneView view = map(layer, head).view(rule.sinks, rule.recent);
  view.budget = rule.budget;
  view.tokens = tokens;
  view.layer = layer;
  view.head = head;
  view.query_heads = shape_.query_heads;
  return view;
}

}  // namespace ebb
