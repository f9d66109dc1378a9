#include "engine/steps_sum.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

namespace ebb {

void StepsSum::Add(BatchRow& row) {
  evicted_ += row.evicted;
  evicted_slots_ += row.evicted_slots;
  nan_scores_ += row.nan_scores;
  loss_.mass += row.loss.mass;
  loss_.error += row.loss.error;
  census_.Add(row.census);
  if (row.evicted > 0) ++evicting_steps_;
  victims_.insert(victims_.end(), std::make_move_iterator(row.victims.begin()),
                  std::make_move_iterator(row.victims.end()));
}

void StepsSum::Write(int32_t length, BatchRow& row) {
  row.length = length + evicted_;
  row.evicted = evicted_;
  row.evicted_slots = evicted_slots_;
  row.nan_scores = nan_scores_;
  row.census = census_;
  row.loss = {};
  if (evicting_steps_ > 0) row.loss = {.mass = loss_.mass / evicting_steps_, .error = loss_.error / evicting_steps_};
  row.status = absl::OkStatus();
  // One entry for each lane, its tokens ascending.
  std::ranges::stable_sort(victims_, {}, [](const LaneVictims& v) { return std::tuple(v.layer, v.head); });
  row.victims.clear();
  for (LaneVictims& lane : victims_) {
    const bool same =
        !row.victims.empty() && row.victims.back().layer == lane.layer && row.victims.back().head == lane.head;
    if (!same) {
      row.victims.push_back(std::move(lane));
    } else {
      row.victims.back().tokens.insert(row.victims.back().tokens.end(), lane.tokens.begin(), lane.tokens.end());
    }
  }
  for (LaneVictims& lane : row.victims) std::ranges::sort(lane.tokens);
}

}  // namespace ebb
