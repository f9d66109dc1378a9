// Scorer, modifier and selection put together for the lanes of one slot map.

#ifndef EBB_ENGINE_CACHE_EVICTOR_H_
#define EBB_ENGINE_CACHE_EVICTOR_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/lane_reader.h"
#include "engine/cache/session_cache.h"
#include "policies/caote.h"
#include "policies/rank.h"
#include "policies/select.h"
#include "policies/spec.h"

namespace ebb {

// One slot map of a session, and what its lanes are read with.
struct Candidates {
  const ValidSpec* policy = nullptr;
  const SessionCache* cache = nullptr;
  int32_t map = 0;     // index into cache->maps()
  int32_t tokens = 0;  // length of the session's log
  const Ops* ops = nullptr;
  RopeView rope = {};
  // Where the scorer has probes: [tracks of the map, slots of the map] LaneView.probed.
  std::span<const float> probed = {};

  const SlotMap& slots() const { return cache->maps()[map]; }
};

// Working memory, one per thread; keeps its capacity.
struct EvictScratch {
  // Room for these candidates, so that choosing among them allocates nothing.
  void Reserve(const Candidates& from);

  SelectScratch select = {};
  RankScratch rank = {};
  std::vector<Track> tracks = {};
  std::vector<LaneReader> readers = {};  // one per lane of a map
  std::vector<float> keep = {};
  std::vector<int32_t> victims = {};
};

// Keep scores of the map's slots into scratch.keep.
void RankSlots(const Candidates& from, EvictScratch& scratch);

// Ranks and chooses `count` victims into scratch.victims, in ascending order of slots; scratch.keep then holds the
// scores. INVALID_ARGUMENT NOT_ENOUGH_CANDIDATES when protection leaves too few.
absl::Status ChooseVictims(const Candidates& from, int32_t count, EvictScratch& scratch);

struct Evicted {
  int32_t tokens = 0;
  int64_t nan_scores = 0;  // live slots whose keep score was NaN
};

// ChooseVictims for a resolved policy whose trigger asks for `count`: it leaves at least sinks + recent tokens, so this
// cannot fail.
Evicted ChooseDue(const Candidates& from, int32_t count, EvictScratch& scratch);

}  // namespace ebb

#endif  // EBB_ENGINE_CACHE_EVICTOR_H_
