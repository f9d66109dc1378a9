// Whose turn it is: start-time fair queueing over tenants by weight (Goyal, Vin and Cheng 1996), then priority, then
// age.
//
// What a tenant takes moves its place in a virtual time forward by charge / weight, and whose place is first has the
// turn. The time is the place of who was last served. A tenant that comes is placed there, before all who were served
// before, so that who asks little does not wait for who asks much; it gains no share by that, as its place is never
// before where its last turn had moved it, for as long as anybody waits. Inside a tenant the smaller age goes first,
// and each level of priority is worth `priority_places` of age: priority helps, yet nobody is overtaken for ever.
//
// Bounds, c = largest charge, w = weight, S = charges since both tenants joined, while both have entries:
//   fair      |S_i / w_i - S_j / w_j| <= c / w_i + c / w_j
//   patient   an entry is overtaken by at most priority_places * (priorities above its own) entries pushed after it,
//             and of each other tenant j at most c * w_j / w_i + c goes before one of tenant i, counted from the last
//             turn of i or from when it came
// Each may be exceeded by less than one, since places are whole numbers.
//
// Pure and single-threaded. Push, Erase, Take: O(log n).

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
  struct Entry {
    uint64_t id = 0;  // unique in the queue
    TenantId tenant = 0;
    int32_t priority = 0;    // 0 .. kPriorityMax, larger first
    int64_t age = 0;         // a number that the caller counts up; smaller is older. Ties: the smaller id first
    int32_t cost = 1;        // tokens, >= 1
    int32_t charge_min = 0;  // charged is the cost, or this if it is more
  };

  // What one level of priority is worth in ages, >= 0.
  explicit FairQueue(int32_t priority_places);

  // Share of a tenant against the others, 1 .. kWeightMax; 1 until set. Counts from what the tenant takes next.
  void SetWeight(TenantId tenant, int32_t weight);

  void Push(const Entry& entry);
  // False if there is no such entry.
  bool Erase(uint64_t id);

  // Takes the entry whose turn it is, provided that it costs at most `cost_max`. Nothing if the queue is empty or that
  // entry costs more: it keeps its turn, and nobody behind it slips through, but for tenants that come.
  std::optional<Entry> Take(int32_t cost_max);

  bool Contains(uint64_t id) const { return places_.contains(id); }
  bool empty() const { return places_.empty(); }
  size_t size() const { return places_.size(); }
  size_t size_of(TenantId tenant) const;  // its entries
  int32_t weight(TenantId tenant) const;
  // Those that have entries, in the order of their turns.
  void ForEachTenant(absl::FunctionRef<void(TenantId)> see) const;

 private:
  struct Place {       // inside a tenant
    int64_t rank = 0;  // age less what priority is worth
    uint64_t id = 0;
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  struct Turn {           // between tenants
    int64_t time = 0;     // virtual
    bool served = false;  // who comes goes before those that a turn has moved there
    uint64_t number = 0;  // then in the order in which the turns were given
    friend auto operator<=>(const Turn&, const Turn&) = default;
  };
  struct Tenant {
    TenantId id = 0;
    ReusingMap<Place, Entry> entries = {};
    Turn turn = {};
    int64_t left_over = 0;  // of the last division by its weight: counts in the next one
  };
  using Tenants = std::list<Tenant>;

  struct Position {
    Tenants::iterator tenant = {};
    Place place = {};
  };

  Tenants::iterator Come(TenantId id);
  void Remove(ReusingMap<uint64_t, Position>::iterator position);

  const int32_t priority_places_;
  std::map<TenantId, int32_t> weights_;  // those above 1
  int64_t now_ = 0;                      // the virtual time
  uint64_t turns_given_ = 0;
  Tenants known_;  // those below
  Tenants spare_;  // for those that come
  ReusingMap<TenantId, Tenants::iterator> tenants_;
  ReusingMap<Turn, Tenants::iterator> turns_;  // of those that have entries
  ReusingMap<Turn, Tenants::iterator> rests_;  // of those that have none, and whose place may still be ahead
  ReusingMap<uint64_t, Position> places_;      // by entry id
};

}  // namespace ebb

#endif  // EBB_SERVER_FAIR_QUEUE_H_
