#include "engine/lane_attention.h"

#include <algorithm>

#include "policies/check.h"

namespace ebb {
namespace {

// Attention is reported in whole tiles.
int64_t Padded(int32_t slots) { return (slots + kTileSlots - 1) / kTileSlots * kTileSlots; }

// The position of a token's query: its own while it lives. Afterwards the log still knows an original position, and a
// compacted one is that of the newest live token before it.
int32_t QueryPosition(const SlotMap& map, int32_t token) {
  int32_t before = -1;
  for (int32_t slot = 0; slot < map.end(); ++slot) {
    if (map.token()[slot] == token) return map.position()[slot];
    if (map.token()[slot] >= 0 && map.token()[slot] < token) before = std::max(before, map.position()[slot]);
  }
  return map.positions() == Positions::kOriginal ? token : before;
}

}  // namespace

LastAttention::LastAttention(const SessionOnEngine& session, const Rope& rope, Ops& ops)
    : heads_(session.cache().shape().query_heads) {
  const SessionCache& cache = session.cache();
  const CacheShape& shape = cache.shape();
  const int32_t d = shape.format.head_dim;
  EBB_CHECK(!session.last_queries().empty());
  for (const SlotMap& map : cache.maps()) stride_ = std::max(stride_, Padded(map.end()));
  rows_.assign(shape.lanes() * heads_ * stride_, 0.0F);
  means_.assign(shape.lanes() * stride_, 0.0F);
  std::vector<float> out(session.last_queries().size());
  std::vector<int32_t> positions(shape.lanes());
  std::vector<AttendTask> tasks;
  for (int32_t lane = 0; lane < shape.lanes(); ++lane) {
    const SlotMap& map = cache.map(lane / shape.kv_heads, lane % shape.kv_heads);
    slots_.push_back(map.end());
    if (map.live() == 0) continue;
    positions[lane] = session.last_position(map);
    const int64_t at = int64_t{lane} * heads_ * d;
    tasks.push_back({.lane = cache.storage(lane / shape.kv_heads, lane % shape.kv_heads),
                     .q = session.last_queries().data() + at,
                     .out = out.data() + at,
                     .stride = int64_t{heads_} * d,
                     .tokens = 1,
                     .q_position = &positions[lane],
                     .last_row = rows_.data() + int64_t{lane} * heads_ * stride_,
                     .head_stride = heads_ > 1 ? stride_ : 0});
  }
  ops.Attend(rope, heads_, tasks);
  for (int32_t lane = 0; lane < shape.lanes(); ++lane) {
    float* const mean = means_.data() + lane * stride_;
    for (int32_t g = 0; g < heads_; ++g) {
      const std::span<const float> one = row(lane, g);
      for (size_t slot = 0; slot < one.size(); ++slot) mean[slot] += one[slot] / static_cast<float>(heads_);
    }
  }
}

std::vector<float> Probe(const Candidates& from, const Rope& rope, Ops& ops) {
  if (!from.policy->needs().probes) return {};
  const SlotMap& map = from.slots();
  const CacheShape& shape = from.cache->shape();
  const int32_t lanes = from.cache->lanes_of_map();
  const int32_t d = shape.format.head_dim;
  const auto slots = static_cast<size_t>(map.end());
  std::vector<float> probed(lanes * slots, 0.0F);
  // A query head's probes of one lane. All heads of a lane are one call, so that threads can share them.
  struct Head {
    std::vector<int32_t> tokens = {};
    std::vector<float> queries = {};
    std::vector<float> out = {};
    std::vector<float> sums = {};
  };
  std::vector<Head> heads(shape.query_heads);
  std::vector<AttendTask> tasks;
  for (int32_t i = 0; i < lanes; ++i) {
    const int32_t lane = from.cache->first_lane(from.map) + i;
    const LaneView view = from.cache->view(lane / shape.kv_heads, lane % shape.kv_heads, *from.policy, from.tokens);
    tasks.clear();
    for (int32_t g = 0; g < shape.query_heads; ++g) {
      auto& [tokens, queries, out, sums] = heads[g];
      tokens.clear();
      queries.clear();
      from.policy->scorer->AppendProbes(view, g, map.state(i), tokens, queries);
      EBB_CHECK(queries.size() == tokens.size() * d);
      if (tokens.empty()) continue;
      for (int32_t& token : tokens) token = QueryPosition(map, token);
      out.resize(queries.size());
      sums.resize(Padded(map.end()));
      tasks.push_back({.lane = from.cache->storage(lane / shape.kv_heads, lane % shape.kv_heads),
                       .q = queries.data(),
                       .out = out.data(),
                       .stride = d,
                       .tokens = static_cast<int32_t>(tokens.size()),
                       .q_position = tokens.data(),
                       .column_sums = sums.data()});
      tasks.back().lane.query_head += g;  // whose task it is alone
    }
    if (!tasks.empty()) ops.Attend(rope, 1, tasks);
    for (const AttendTask& task : tasks) {
      for (size_t slot = 0; slot < slots; ++slot) {
        probed[i * slots + slot] += task.column_sums[slot] / static_cast<float>(shape.query_heads);
      }
    }
  }
  return probed;
}

}  // namespace ebb
