// Whose turn it is: deficit round robin over tenants by weight, then priority, then age (Shreedhar and Varghese 1996).
//
// Tenants with entries stand in a ring. A visit adds quantum * weight to the tenant's deficit; the tenant then takes
// its entries, in order, as long as the deficit covers their cost. Inside a tenant the smaller age goes first, and each
// level of priority is worth `priority_places` of age: priority helps, yet nobody is overtaken for ever.
//
// With newcomers_first a tenant that comes is visited next, before the rest of the visit that goes on (as in FQ-CoDel,
// RFC 8290), so that who asks little does not wait for who asks much. It gains no share by that: a tenant that runs out
// of entries keeps its place in the ring until its next turn there, and who comes back before is no newcomer.
//
// Bounds, c = largest cost, w = weight, S = cost taken since both tenants joined, while both have entries:
//   fair      |S_i / w_i - S_j / w_j| <= quantum + c / min(w_i, w_j)
//   patient   an entry is overtaken by at most priority_places * (priorities above its own) entries pushed after it,
//             and its tenant takes at least one entry in each ceil(c / (quantum * w)) rounds of the ring, in each of
//             which every other tenant is visited once; newcomers first, once more in all
//
// Pure and single-threaded. Push, Erase: O(log n). Take: O(log n), plus at most ceil(c / quantum) rounds of the ring.

#ifndef EBB_SERVER_FAIR_QUEUE_H_
#define EBB_SERVER_FAIR_QUEUE_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>

#include "absl/functional/function_ref.h"
#include "server/reusing_map.h"

namespace ebb {

using TenantId = uint32_t;

inline constexpr int32_t kPriorityMax = 9;
inline constexpr int32_t kWeightMax = 1000;

class FairQueue {
 public:
  struct Options {
    int32_t quantum = 1;          // tokens that a visit adds per unit of weight, >= 1
    int32_t priority_places = 0;  // what one level of priority is worth in ages, >= 0
    bool newcomers_first = false;
  };

  struct Entry {
    uint64_t id = 0;  // unique in the queue
    TenantId tenant = 0;
    int32_t priority = 0;  // 0 .. kPriorityMax, larger first
    int64_t age = 0;       // a number that the caller counts up; smaller is older. Ties: the smaller id first
    int32_t cost = 1;      // tokens, >= 1
  };

  explicit FairQueue(const Options& options);

  // Share of a tenant against the others, 1 .. kWeightMax; 1 until set. Counts from the tenant's next visit.
  void SetWeight(TenantId tenant, int32_t weight);

  void Push(const Entry& entry);
  // False if there is no such entry.
  bool Erase(uint64_t id);

  // Takes the entry whose turn it is, provided that it costs at most `cost_max`. Nothing if the queue is empty or that
  // entry costs more: it keeps its turn, and nobody behind it slips through.
  std::optional<Entry> Take(int32_t cost_max);

  bool Contains(uint64_t id) const { return places_.contains(id); }
  bool empty() const { return places_.empty(); }
  size_t size() const { return places_.size(); }
  size_t size_of(TenantId tenant) const;  // its entries
  int32_t weight(TenantId tenant) const;
  // Those that have entries, in the order of their turns.
  void ForEachTenant(absl::FunctionRef<void(TenantId)> see) const;

 private:
  struct Place {
    int64_t rank = 0;  // age less what priority is worth
    uint64_t id = 0;
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  struct Tenant {
    TenantId id = 0;
    ReusingMap<Place, Entry> entries = {};  // empty only where newcomers come first: it leaves when its turn comes
    int64_t deficit = 0;                    // tokens it may still take; 0 without entries
    bool visited = false;                   // its visit has begun: the quantum is in the deficit
  };
  using Ring = std::list<Tenant>;

  struct Position {
    Ring::iterator tenant = {};
    Place place = {};
  };

  void Remove(ReusingMap<uint64_t, Position>::iterator position);
  void Leave(Ring::iterator tenant);

  const Options options_;
  std::map<TenantId, int32_t> weights_;  // those above 1
  Ring ring_;                            // the front is being visited
  Ring left_;                            // tenants that left the ring, for those that come
  ReusingMap<TenantId, Ring::iterator> tenants_;
  ReusingMap<uint64_t, Position> places_;  // by entry id
};

}  // namespace ebb

#endif  // EBB_SERVER_FAIR_QUEUE_H_
