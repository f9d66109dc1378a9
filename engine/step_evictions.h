// Who leaves in a step: chosen lane by lane, freed together at its end.
//
// A lane that loses tokens in every step is ranked as soon as it was attended, by the thread that attended it, while
// its K and V are still in that core's cache. What cannot be chosen by then waits for the end of the step: lanes that
// share a slot map, rules that follow from the scores of other lanes, the end of a prompt, an edit's step, scorers that
// ask questions of their own; and where a layer has fewer lanes than there are threads, since all layers together share
// the work better. Either way the victims are the same, and nobody leaves before all have been chosen.

#ifndef EBB_ENGINE_STEP_EVICTIONS_H_
#define EBB_ENGINE_STEP_EVICTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/cache/evictor.h"
#include "engine/engine.h"
#include "engine/lane_attention.h"
#include "engine/policy_swap.h"
#include "engine/session_on_engine.h"

namespace ebb {

class StepEvictions {
 public:
  explicit StepEvictions(const Device& device);

  // A step begins; its tokens are seated. Chooses nobody: it finds out who may be chosen from below, and makes room.
  void Begin(std::span<const BatchRow> rows);

  // A lane of rows[row] was attended, and its scorer told. Between Begin and Finish, at most once for each lane, on any
  // of the host's threads. Allocates nothing.
  void LaneDone(size_t row, int32_t layer, int32_t head, int32_t thread);

  // The step is over: chooses the others, measures, frees, and writes to the rows what Run promises of evictions.
  void Finish(std::span<BatchRow> rows);

 private:
  // One slot map of one session of the step that loses tokens.
  struct Due {
    size_t row = 0;
    Candidates from = {};
    int32_t count = 0;
    int64_t victims_at = 0;  // in victims_: [count]
    bool chosen = false;
    std::chrono::steady_clock::duration took = {};  // to choose
    std::vector<float> probed = {};
    const LastAttention* attention = nullptr;  // null: the loss is not measured
    Evicted evicted = {};
    Loss loss = {};
  };

  static SessionOnEngine& Of(const BatchRow& row) { return static_cast<SessionOnEngine&>(*row.session); }
  static SlotMap& MapOf(const BatchRow& row, const Due& due) { return Of(row).cache().maps()[due.from.map]; }

  std::vector<LaneRule> LanesByScores(const SessionOnEngine& session) const;
  bool ChoosesLaneByLane(const BatchRow& row) const;
  void FindDue(std::span<const BatchRow> rows, bool lane_by_lane);
  void Choose(Due& due, EvictScratch& scratch);
  std::span<int32_t> VictimsOf(const Due& due) { return std::span(victims_).subspan(due.victims_at, due.count); }
  void Witness(std::span<const BatchRow> rows);
  Loss LossOf(const Due& due, EvictScratch& scratch);
  void Count(const Due& due, BatchRow& row);
  void ListVictims(const BatchRow& row, const Due& due, std::vector<LaneVictims>& lanes);

  Device device_;
  std::vector<EvictScratch> scratch_;      // one per thread
  std::vector<Due> due_ = {};              // those that are chosen lane by lane, then the others
  std::vector<int32_t> victims_ = {};      // slots, of one after another
  std::vector<int32_t> due_of_lane_ = {};  // [rows, lanes] index into due_ of what LaneDone chooses, -1: nothing
  std::vector<std::optional<LastAttention>> attention_ = {};  // [rows]
};

}  // namespace ebb

#endif  // EBB_ENGINE_STEP_EVICTIONS_H_
