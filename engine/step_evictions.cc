#include "engine/step_evictions.h"

#include <algorithm>

#include "engine/lane_work.h"
#include "engine/parallel.h"
#include "policies/caote.h"
#include "policies/check.h"

namespace ebb {

StepEvictions::StepEvictions(const Device& device) : device_(device), scratch_(device.ops->host_threads().threads()) {}

void StepEvictions::Begin(std::span<const BatchRow> rows) {
  due_.clear();
  victims_.clear();
  due_of_lane_.clear();
  int32_t lanes = 0;  // that a layer's attention passes over
  for (const BatchRow& row : rows) lanes += Of(row).cache().shape().kv_heads;
  if (lanes < device_.ops->host_threads().threads()) return;
  FindDue(rows, true);
  if (due_.empty()) return;
  const auto all = static_cast<size_t>(Of(rows[0]).cache().shape().lanes());
  due_of_lane_.assign(rows.size() * all, -1);
  for (size_t i = 0; i < due_.size(); ++i) {
    due_of_lane_[due_[i].row * all + due_[i].from.cache->first_lane(due_[i].from.map)] = static_cast<int32_t>(i);
  }
}

void StepEvictions::LaneDone(size_t row, int32_t layer, int32_t head, int32_t thread) {
  if (due_of_lane_.empty()) return;
  const CacheShape& shape = due_[0].from.cache->shape();  // of one model, all have as many lanes
  const int32_t due = due_of_lane_[row * shape.lanes() + int64_t{layer} * shape.kv_heads + head];
  if (due >= 0) Choose(due_[due], scratch_[thread]);
}

void StepEvictions::Finish(std::span<BatchRow> rows) {
  for (BatchRow& row : rows) {
    SessionOnEngine& session = Of(row);
    row.length = session.cache_length();
    row.evicted = 0, row.evicted_slots = 0, row.nan_scores = 0, row.loss = {}, row.census = {};
    row.victims.clear();
    if (row.draft || !row.prompt_ends || !row.status.ok() || !session.policy().lanes_follow_scores()) continue;
    if (session.policy().lanes.empty()) session.SetLanes(LanesByScores(session));
  }
  FindDue(rows, false);
  Witness(rows);
  device_.ops->host_threads().For(std::ssize(due_), [this](int64_t item, int32_t thread) {
    Due& due = due_[item];
    if (!due.chosen) Choose(due, scratch_[thread]);
    if (due.attention != nullptr) due.loss = LossOf(due, scratch_[thread]);
  });
  for (const Due& due : due_) {
    BatchRow& row = rows[due.row];
    row.evicted = std::max(row.evicted, due.evicted.tokens);
    row.evicted_slots += int64_t{due.evicted.tokens} * due.from.cache->lanes_of_map();
    row.nan_scores += due.evicted.nan_scores;
    row.loss.mass += due.loss.mass;
    row.loss.error += due.loss.error;
    Count(due, row);
    if (row.list_victims) ListVictims(row, due, row.victims);
    MapOf(row, due).Free(VictimsOf(due));
  }
  for (const BatchRow& row : rows) {
    Of(row).CountEvicted(row.evicted);
    if (row.prompt_ends && row.status.ok()) Of(row).PromptEvicted();
  }
}

std::vector<LaneRule> StepEvictions::LanesByScores(const SessionOnEngine& session) const {
  std::vector<std::vector<float>> scores;
  MapRanking(device_, session, session.policy(), AllMaps(session.cache()))
      .AdvanceScores(session.cache().shape().lanes(), scores);
  return LanesFromScores(session, session.policy(), scores);
}

// Whether each of the row's slot maps can be decided by itself, before the step is over.
bool StepEvictions::ChoosesLaneByLane(const BatchRow& row) const {
  const SessionOnEngine& session = Of(row);
  return !row.draft && !row.prompt_ends && session.edit_left() == 0 && session.cache().share() == Share::kLane &&
         !session.policy().needs().probes;
}

// Appends who is due of the rows that are chosen lane by lane, or of those that are not and were not found before.
void StepEvictions::FindDue(std::span<const BatchRow> rows, bool lane_by_lane) {
  const size_t known = due_.size();
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool found = std::ranges::binary_search(std::span(due_).first(known), i, {}, &Due::row);
    if (found || rows[i].draft || (lane_by_lane && !ChoosesLaneByLane(rows[i]))) continue;
    const SessionOnEngine& session = Of(rows[i]);
    for (int32_t map = 0; map < std::ssize(session.cache().maps()); ++map) {
      const int32_t count = session.TokensDue(map);
      if (count == 0) continue;
      due_.push_back({.row = i,
                      .from = device_.Of(session, session.policy(), map),
                      .count = count,
                      .victims_at = std::ssize(victims_)});
      victims_.resize(victims_.size() + count);
      // On every thread, whichever maps it will get: none allocates while it works.
      for (EvictScratch& scratch : scratch_) scratch.Reserve(due_.back().from);
    }
  }
}

void StepEvictions::Choose(Due& due, EvictScratch& scratch) {
  const auto begin = std::chrono::steady_clock::now();
  due.evicted = ChooseDue(due.from, due.count, scratch);
  EBB_CHECK(std::ssize(scratch.victims) == due.count);
  std::ranges::copy(scratch.victims, VictimsOf(due).begin());
  due.chosen = true;
  due.took = std::chrono::steady_clock::now() - begin;
}

// What some of the due maps need beside K, V and states: probes of their scorers, and the newest token's attention
// where the loss is to be measured.
void StepEvictions::Witness(std::span<const BatchRow> rows) {
  attention_.clear();
  attention_.resize(rows.size());
  for (Due& due : due_) {
    if (!due.chosen) {
      due.probed = Probe(due.from, *device_.rope, *device_.ops);
      due.from.probed = due.probed;
    }
    if (!rows[due.row].measure) continue;
    auto& attention = attention_[due.row];
    if (!attention) attention.emplace(Of(rows[due.row]), *device_.rope, *device_.ops);
    due.attention = &*attention;
  }
}

// A map's share of the loss of its session: a mean over all lanes.
Loss StepEvictions::LossOf(const Due& due, EvictScratch& scratch) {
  Loss loss;
  const SessionCache& cache = *due.from.cache;
  const CacheShape& shape = cache.shape();
  for (int32_t i = 0; i < cache.lanes_of_map(); ++i) {
    const int32_t lane = cache.first_lane(due.from.map) + i;
    LaneView view = cache.view(lane / shape.kv_heads, lane % shape.kv_heads, *due.from.policy, due.from.tokens);
    LaneReader& reader = scratch.readers[0];
    reader.Point(*due.from.ops, cache.storage(lane / shape.kv_heads, lane % shape.kv_heads), due.from.rope);
    view.memory = &reader;
    loss.Add(MeasureEviction(view, due.attention->mean(lane), VictimsOf(due), scratch.rank.caote), shape.lanes());
  }
  return loss;
}

void StepEvictions::Count(const Due& due, BatchRow& row) {
  const SessionCache& cache = *due.from.cache;
  const CacheShape& shape = cache.shape();
  const double threads = std::ssize(scratch_);
  row.census.seconds += std::chrono::duration<double>(due.took).count() / threads;
  const int32_t first = cache.first_lane(due.from.map);
  for (int32_t lane = first; lane < first + cache.lanes_of_map(); ++lane) {
    row.census.AddSlots(lane / shape.kv_heads, shape.layers, due.evicted.tokens);
  }
  if (!row.measure) return;
  const auto length = static_cast<int64_t>(Of(row).log().size());
  for (const int32_t slot : VictimsOf(due)) {
    row.census.AddAge(length - MapOf(row, due).token()[slot], cache.lanes_of_map());
  }
}

void StepEvictions::ListVictims(const BatchRow& row, const Due& due, std::vector<LaneVictims>& lanes) {
  const SessionCache& cache = *due.from.cache;
  std::vector<int32_t> tokens;
  for (const int32_t slot : VictimsOf(due)) tokens.push_back(MapOf(row, due).token()[slot]);
  std::ranges::sort(tokens);
  for (int32_t i = 0; i < cache.lanes_of_map(); ++i) {
    const int32_t lane = cache.first_lane(due.from.map) + i;
    lanes.push_back({.layer = lane / cache.shape().kv_heads, .head = lane % cache.shape().kv_heads, .tokens = tokens});
  }
}

}  // namespace ebb
