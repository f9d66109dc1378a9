#include "engine/cache/session_cache.h"

#include <algorithm>
#include <utility>

#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

bool SameTokens(const SlotMap& a, const SlotMap& b) { return std::ranges::equal(a.token(), b.token()); }

}  // namespace

int32_t MapsFor(const CacheShape& shape, Share share) {
  return share == Share::kAllLanes ? 1 : share == Share::kLayer ? shape.layers : shape.lanes();
}

Share ShareFor(const ValidSpec& policy) {
  const bool windows = std::ranges::any_of(policy.windows, [](int32_t window) { return window > 0; });
  const bool alike = (policy.lockstep && !windows) || !policy.evicts;
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

SessionCache::SessionCache(const CacheShape& shape, std::vector<PageLease> leases, Share share,
                           const std::vector<SlotMap>& maps)
    : shape_(shape), leases_(std::move(leases)), share_(share), maps_(maps) {
  ListPages();
}

SessionCache SessionCache::Fork() const {
  std::vector<PageLease> leases;
  leases.reserve(leases_.size());
  for (const PageLease& lane : leases_) leases.push_back(lane.Share());
  return SessionCache(shape_, std::move(leases), share_, maps_);
}

SessionCache::Kept SessionCache::Keep() const {
  Kept kept = {.lanes = std::vector<KeptPages>(leases_.size()), .maps = CopyMaps()};
  for (int32_t lane = 0; lane < shape_.lanes(); ++lane) {
    for (int64_t page = 0; page < live_pages_of(lane); ++page) leases_[lane].Keep(page, kept.lanes[lane]);
  }
  return kept;
}

int64_t SessionCache::live_pages() const {
  int64_t pages = 0;
  for (int32_t lane = 0; lane < shape_.lanes(); ++lane) pages += live_pages_of(lane);
  return pages;
}

void SessionCache::Take(const Kept& kept) {
  EBB_CHECK(kept.maps.share == share_);
  maps_ = kept.maps.maps;
  for (int32_t lane = 0; lane < shape_.lanes(); ++lane) {
    for (int64_t page = 0; page < kept.lanes[lane].size(); ++page) leases_[lane].Take(page, kept.lanes[lane], page);
  }
  ListPages();
}

// Calls visit(lane, page) once for every page of every lane of a map that one of `slots`, ascending, lies in.
template <typename Visit>
void SessionCache::VisitPages(int32_t map, std::span<const int32_t> slots, const Visit& visit) const {
  int64_t last = -1;
  for (const int32_t slot : slots) {
    const int64_t page = slot / page_slots();
    if (std::exchange(last, page) == page) continue;
    for (int32_t lane = first_lane(map); lane < first_lane(map) + lanes_of_map(); ++lane) visit(lane, page);
  }
}

void SessionCache::Copy(int32_t lane, int64_t page, PageLease& from) {
  if (leases_[lane].writable(page)) return;
  if (leases_[lane].shared(page)) {
    leases_[lane].Copy(page, from);
  } else {
    leases_[lane].LeaveKept(page);
  }
  pages_[first_page_[lane] + page] = leases_[lane].address(page);
}

int64_t SessionCache::shared_pages() const {
  int64_t shared = 0;
  for (const PageLease& lane : leases_) {
    for (int64_t page = 0; page < lane.size(); ++page) shared += lane.shared(page) ? 1 : 0;
  }
  return shared;
}

void SessionCache::ListLeases(std::vector<const PageLease*>& to) const {
  for (const PageLease& lane : leases_) to.push_back(&lane);
  to.push_back(&spare_);
}

absl::Status SessionCache::ReserveShared(PagePool& pool, bool all_copies) {
  // [maps][pages] live slots.
  std::vector<std::vector<int32_t>> live(maps_.size());
  for (size_t map = 0; map < maps_.size(); ++map) {
    live[map].resize(shape_.pages_of(first_lane(static_cast<int32_t>(map))));
    // Page by page: a division for each slot was most of what a branch took to open.
    std::span<const int32_t> rest = maps_[map].token();
    for (int32_t& live_slots : live[map]) {
      const std::span<const int32_t> page = rest.first(std::min(rest.size(), static_cast<size_t>(page_slots())));
      live_slots = static_cast<int32_t>(std::ranges::count_if(page, [](int32_t token) { return token >= 0; }));
      rest = rest.subspan(page.size());
    }
  }
  const auto is_empty = [&](int32_t lane, int64_t page) { return live[lane / lanes_of_map()][page] == 0; };
  const auto is_promised = [&](int32_t lane, int64_t page) {
    const int64_t slots = std::min(page_slots(), shape_.slots(lane) - page * page_slots());
    return all_copies || live[lane / lanes_of_map()][page] < slots || leases_[lane].lacks_one_promise(page);
  };
  const auto visit_shared = [&](const auto& visit) {
    for (int32_t lane = 0; lane < shape_.lanes(); ++lane) {
      for (int64_t page = 0; page < leases_[lane].size(); ++page) {
        if (leases_[lane].shared(page)) visit(lane, page);
      }
    }
  };
  int64_t empty = 0, promised = 0;
  visit_shared([&](int32_t lane, int64_t page) {
    if (is_empty(lane, page)) {
      ++empty;
    } else if (is_promised(lane, page)) {
      promised += leases_[lane].PagesToPromise(page);
    }
  });
  EBB_TRY(pool.CheckFree(empty + promised));
  PageLease fresh = pool.Reserve(empty).value();
  visit_shared([&](int32_t lane, int64_t page) {
    if (is_empty(lane, page)) {
      leases_[lane].Replace(page, fresh);
    } else if (is_promised(lane, page)) {
      leases_[lane].Promise(page);
    }
  });
  ListPages();
  return absl::OkStatus();
}

absl::Status SessionCache::OwnNext(PagePool& pool, int32_t tokens, int32_t steps) {
  ForgetSpare();
  if (pool.pages_shared() == 0 && pool.pages_kept() == 0) return absl::OkStatus();
  std::vector<int32_t> slots;
  const auto visit_next = [&](const auto& visit) {
    for (int32_t map = 0; map < static_cast<int32_t>(maps_.size()); ++map) {
      slots.clear();
      maps_[map].VisitNext(tokens, [&](int32_t slot) { slots.push_back(slot); });
      VisitPages(map, slots, visit);
    }
  };
  int64_t copies = 0;
  visit_next([&](int32_t lane, int64_t page) { copies += leases_[lane].PagesToCopy(page); });
  int64_t spare = 0;  // a token goes to one page of each lane
  for (int32_t lane = 0; lane < (steps > 0 ? shape_.lanes() : 0); ++lane) {
    int64_t shared = 0;
    for (int64_t page = 0; page < leases_[lane].size(); ++page) shared += leases_[lane].shared(page) ? 1 : 0;
    spare += std::min<int64_t>(shared, steps);
  }
  EBB_ASSIGN(PageLease from, pool.Reserve(copies + spare));
  visit_next([&](int32_t lane, int64_t page) { Copy(lane, page, from); });
  spare_ = std::move(from);
  return absl::OkStatus();
}

absl::Status SessionCache::OwnAll(PagePool& pool) {
  int64_t copies = 0;
  for (const PageLease& lane : leases_) {
    for (int64_t page = 0; page < lane.size(); ++page) copies += lane.PagesToCopy(page);
  }
  EBB_ASSIGN(PageLease from, pool.Reserve(copies));
  for (int32_t lane = 0; lane < shape_.lanes(); ++lane) {
    for (int64_t page = 0; page < leases_[lane].size(); ++page) Copy(lane, page, from);
  }
  return absl::OkStatus();
}

void SessionCache::OwnPlaced() {
  for (int32_t map = 0; map < static_cast<int32_t>(maps_.size()); ++map) {
    VisitPages(map, maps_[map].placed_slots(), [&](int32_t lane, int64_t page) { Copy(lane, page, spare_); });
  }
}

bool SessionCache::OwnsPlaced() const {
  bool owns = true;
  for (int32_t map = 0; map < static_cast<int32_t>(maps_.size()); ++map) {
    VisitPages(map, maps_[map].placed_slots(),
               [&](int32_t lane, int64_t page) { owns = owns && leases_[lane].writable(page); });
  }
  return owns;
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

// A lane that shrinks first closes up: its live slots past the first live() move to the free ones before that. Pages
// that it then gives away go to lanes that grow only if nobody else holds them.
int64_t SessionCache::PagesToResize(const CacheShape& shape) const {
  int64_t copies = 0;
  std::vector<int32_t> slots;
  for (int32_t map = 0; map < static_cast<int32_t>(maps_.size()); ++map) {
    if (shape.slots(first_lane(map)) >= maps_[map].capacity()) continue;
    slots.clear();
    for (int32_t slot = 0; slot < std::min(maps_[map].live(), maps_[map].end()); ++slot) {
      if (maps_[map].token()[slot] < 0) slots.push_back(slot);
    }
    VisitPages(map, slots, [&](int32_t lane, int64_t page) { copies += leases_[lane].PagesToCopy(page); });
  }
  int64_t growth = 0;
  for (int32_t lane = 0; lane < shape.lanes(); ++lane) {
    const int64_t have = leases_[lane].size(), want = shape.pages_of(lane);
    growth += std::max<int64_t>(0, want - have);
    for (int64_t page = want; page < have; ++page) growth -= leases_[lane].shared(page) ? 0 : 1;
  }
  return copies + std::max<int64_t>(0, growth);
}

void SessionCache::Resize(const CacheShape& shape, PageLease more, Ops& ops) {
  EBB_CHECK(more.size() == PagesToResize(shape));
  EBB_CHECK(spare_.size() == 0);
  std::vector<std::vector<SlotMove>> moves(maps_.size());
  std::vector<int32_t> slots;
  for (int32_t map = 0; map < static_cast<int32_t>(maps_.size()); ++map) {
    if (shape.slots(first_lane(map)) >= maps_[map].capacity()) continue;
    maps_[map].Compact(moves[map]);
    slots.clear();
    for (const SlotMove& move : moves[map]) slots.push_back(move.to);
    VisitPages(map, slots, [&](int32_t lane, int64_t page) { Copy(lane, page, more); });
  }
  for (int32_t layer = 0; layer < shape_.layers; ++layer) {
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      LaneStorage lane = storage(layer, head);
      ops.Move(lane, moves[map_index(layer, head)]);
    }
  }
  for (int32_t lane = 0; lane < shape.lanes(); ++lane) {
    while (leases_[lane].size() > shape.pages_of(lane)) {
      const bool shared = leases_[lane].shared(leases_[lane].size() - 1);
      PageLease dropped;
      leases_[lane].Give(1, shared ? dropped : more);
    }
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
          .slots = slots.end(),
          .layer = layer,
          .query_head = head * shape_.query_heads};
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
