// Work that passes over a session's lanes in pieces, each on every host thread and over no more lanes than it is given:
// what SetPolicy, Evict and Describe spend their time on. Between two pieces other sessions may take steps.
//
// Advance says true when all is done; pieces of any size do the same together. The session and its policy stay, and the
// session's slot maps are the same ones, while a piece runs.

#ifndef EBB_ENGINE_LANE_WORK_H_
#define EBB_ENGINE_LANE_WORK_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/evictor.h"
#include "engine/cache/lane_reader.h"
#include "engine/engine.h"
#include "engine/lane_attention.h"
#include "engine/policy_swap.h"
#include "engine/session_on_engine.h"
#include "policies/spec.h"

namespace ebb {

// Every map of a cache, by number.
std::vector<int32_t> AllMaps(const SessionCache& cache);

// Slot maps of a session under a policy, which outlives this, ranked with the probes of its scorer.
class MapRanking {
 public:
  MapRanking(const Device& device, const SessionOnEngine& session, const ValidSpec& policy, std::vector<int32_t> maps);

  // Calls work(i, maps[i], scratch memory) for the next maps, one at least, as many as have `lanes` lanes.
  template <typename Work>
  bool Advance(int32_t lanes, const Work& work) {
    const int64_t first = done_;
    const int64_t count = Prepare(lanes);
    device_.ops->host_threads().For(count,
                                    [&](int64_t i, int32_t thread) { work(first + i, ready_[i], scratch_[thread]); });
    done_ += count;
    return done_ == std::ssize(maps_);
  }

  // The same for their keep scores: scores[i] becomes those of maps[i], by slot.
  bool AdvanceScores(int32_t lanes, std::vector<std::vector<float>>& scores);

 private:
  int64_t Prepare(int32_t lanes);

  Device device_;
  const SessionOnEngine& session_;
  const ValidSpec& policy_;
  std::vector<int32_t> maps_;
  int64_t done_ = 0;
  std::vector<EvictScratch> scratch_;  // by thread
  std::vector<Candidates> ready_ = {};
  std::vector<std::vector<float>> probed_ = {};  // of these
};

// Makes the session's maps what `policy` needs, and fills its scorer's states as well as can be, in this order: as they
// are, where scorer, parameters, reduction and scope stay, and the sinks where the state depends on them; from K, V and
// positions; from what the newest token attends to, where the scorer looks at the newest query alone; from the old
// scorer's scores; from that attention; empty. REQUIRES: CheckLanesAgree.
class Adoption {
 public:
  // All three outlive it.
  Adoption(const Device& device, SessionOnEngine& session, const ValidSpec& policy);
  bool Advance(int32_t lanes);
  // What the scorer starts from, once all is done.
  StateOrigin origin() const;

 private:
  enum class Part { kBegin, kScores, kAttention, kAdopt, kFill, kDone };

  Part Begin();
  void AdoptMaps();
  void FillLanes(int32_t first, int32_t count);

  Device device_;
  SessionOnEngine& session_;
  const ValidSpec& policy_;
  Part part_ = Part::kBegin;
  ValidSpec former_;
  std::optional<MapRanking> ranking_ = {};
  std::vector<std::vector<float>> old_scores_ = {};  // by slot map; empty where they are not attention received
  int32_t lanes_of_old_map_ = 1;
  std::optional<LastAttention> attention_ = {};
  std::vector<LaneReader> readers_ = {};  // by thread
  int32_t filled_ = 0;
  std::vector<StateOrigin> origins_ = {};  // [lanes]
};

// The slots, by slot map, that `policy` would free to bring every lane to `keep` [lanes] tokens; where anybody would
// leave, it ranks every map. INVALID_ARGUMENT NOT_ENOUGH_CANDIDATES as ChooseVictims. REQUIRES: the maps are as
// Adoption left them, and `keep` is the same for all lanes of a map. `policy` outlives it.
class Choosing {
 public:
  Choosing(const Device& device, const SessionOnEngine& session, const ValidSpec& policy,
           std::span<const int32_t> keep);
  absl::StatusOr<bool> Advance(int32_t lanes);
  Plan& plan() { return plan_; }

 private:
  MapRanking ranking_;
  std::vector<int32_t> counts_ = {};  // by map
  Plan plan_;
  std::vector<absl::Status> chosen_;
};

// What leaves with a plan by lane, or one for all lanes, measured on the newest token's attention, mean over the lanes.
// `plan` outlives it.
class Measuring {
 public:
  Measuring(const Device& device, const SessionOnEngine& session, const Plan& plan);
  bool Advance(int32_t lanes);
  // Once all is done.
  Loss loss() const;

 private:
  struct Scratch {
    LaneReader reader = {};
    CaoteScratch caote = {};
  };

  Device device_;
  const SessionOnEngine& session_;
  const Plan& plan_;
  std::optional<LastAttention> attention_ = {};
  std::vector<Scratch> scratch_ = {};      // by thread
  std::vector<EvictionLoss> losses_ = {};  // [lanes measured]
};

}  // namespace ebb

#endif  // EBB_ENGINE_LANE_WORK_H_
