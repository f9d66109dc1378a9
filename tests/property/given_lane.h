// A scorer at work on one lane whose keys, values and queries the test gives: write, observe, and when told score,
// select and evict. Needs no attention.

#ifndef EBB_TESTS_PROPERTY_GIVEN_LANE_H_
#define EBB_TESTS_PROPERTY_GIVEN_LANE_H_

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "policies/hash_random.h"
#include "policies/scorer.h"
#include "policies/select.h"
#include "tests/support/lane_memory_of.h"
#include "tests/support/status_matchers.h"

namespace ebb {

// What arrives: rows by token. Without values or queries, none are.
struct GivenTokens {
  int32_t head_dim = 1;
  int32_t query_heads = 1;
  std::vector<float> keys = {};     // [tokens, head_dim]
  std::vector<float> values = {};   // [tokens, head_dim]
  std::vector<float> queries = {};  // [tokens, query_heads, head_dim]
};

class GivenLane {
 public:
  // With `scatter` a token takes any free slot, by that seed; else the lowest.
  GivenLane(std::unique_ptr<const Scorer> scorer, GivenTokens given, int32_t slots, uint64_t scatter = 0)
      : memory(given.head_dim, std::vector<float>(static_cast<size_t>(slots) * given.head_dim)),
        token(static_cast<size_t>(slots), -1),
        position(static_cast<size_t>(slots), -1),
        state(static_cast<size_t>(slots) * scorer->needs().state_floats),
        lane_state(
            static_cast<size_t>(scorer->lane_floats({.query_heads = given.query_heads, .head_dim = given.head_dim}))),
        scorer_(std::move(scorer)),
        given_(std::move(given)),
        is_scattered_(scatter != 0),
        random_(scatter) {}

  // Adds the next `count` tokens as one block.
  void Step(int32_t count) {
    const auto d = static_cast<size_t>(given_.head_dim);
    std::vector<int32_t> placed;
    const auto first = static_cast<size_t>(tokens);
    for (; count > 0; --count, ++tokens) placed.push_back(Place());
    if (!scorer_->needs().observes()) return;
    Observation seen = {.queries = static_cast<int32_t>(placed.size()), .slots = placed};
    if (!given_.queries.empty()) {
      seen.q_stride = given_.query_heads * static_cast<int64_t>(d);
      seen.q = given_.queries.data() + first * static_cast<size_t>(seen.q_stride);
    }
    scorer_->Observe(View(), seen, {.slot = state, .lane = lane_state});
  }

  std::vector<float> Scores() const {
    std::vector<float> keep(token.size());
    scorer_->Score(View(), {.slot = state, .lane = lane_state}, keep);
    return keep;
  }

  // Evicts down to `budget` tokens; as many as there are stay.
  void Prune(int32_t budget, int32_t recent = 0) {
    LaneView lane = View();
    lane.recent = recent;
    SelectScratch scratch;
    std::vector<int32_t> victims;
    ASSERT_THAT(SelectVictims(lane, Scores(), std::max(lane.live - budget, 0), scratch, victims), IsOk());
    for (const int32_t slot : victims) token[static_cast<size_t>(slot)] = position[static_cast<size_t>(slot)] = -1;
  }

  LaneView View() const {
    return {.token = token,
            .live = static_cast<int32_t>(LiveTokens().size()),
            .sinks = sinks,
            .tokens = tokens,
            .layer = layer,
            .head = head,
            .query_heads = given_.query_heads,
            .position = position,
            .memory = &memory};
  }

  // Ascending.
  std::vector<int32_t> LiveTokens() const {
    std::vector<int32_t> live;
    std::ranges::copy_if(token, std::back_inserter(live), [](int32_t t) { return t >= 0; });
    std::ranges::sort(live);
    return live;
  }

  // The score of each live token, by token.
  std::vector<std::pair<int32_t, float>> ScoresByToken() const {
    const std::vector<float> keep = Scores();
    std::vector<std::pair<int32_t, float>> scores;
    for (size_t slot = 0; slot < token.size(); ++slot) {
      if (token[slot] >= 0) scores.emplace_back(token[slot], keep[slot]);
    }
    std::ranges::sort(scores);
    return scores;
  }

  LaneMemoryOf memory;
  std::vector<int32_t> token, position;
  std::vector<float> state, lane_state;
  int32_t sinks = 0;
  int32_t tokens = 0;  // arrived so far
  int32_t layer = 0;
  int32_t head = 0;

 private:
  int32_t Place() {
    const auto d = static_cast<size_t>(given_.head_dim);
    std::vector<int32_t> open;
    for (size_t slot = 0; slot < token.size(); ++slot) {
      if (token[slot] < 0) open.push_back(static_cast<int32_t>(slot));
    }
    EBB_CHECK(!open.empty());
    const auto last = static_cast<int32_t>(open.size()) - 1;
    const auto slot = static_cast<size_t>(open[is_scattered_ ? random_.Uniform(0, last) : 0]);
    token[slot] = position[slot] = tokens;
    const size_t row = static_cast<size_t>(tokens) * d;
    if (!given_.keys.empty()) std::copy_n(given_.keys.begin() + row, d, memory.keys.begin() + slot * d);
    if (!given_.values.empty()) std::copy_n(given_.values.begin() + row, d, memory.values.begin() + slot * d);
    const size_t floats = static_cast<size_t>(scorer_->needs().state_floats);
    std::fill_n(state.begin() + slot * floats, floats, 0.0F);
    return static_cast<int32_t>(slot);
  }

  std::unique_ptr<const Scorer> scorer_;
  GivenTokens given_;
  bool is_scattered_;
  HashRandom random_;
};

// `count` floats in (-1, 1) by the seed.
inline std::vector<float> UniformFloats(HashRandom& random, int64_t count) {
  std::vector<float> floats(static_cast<size_t>(count));
  for (float& x : floats) x = 2 * random.UniformFloat() - 1;
  return floats;
}

// Reflects each row of `rows` [., normal.size()] at the plane of this normal, in float64: an orthogonal map.
inline void Reflect(const std::vector<float>& normal, std::vector<float>& rows) {
  const size_t d = normal.size();
  double square = 0;
  for (const float x : normal) square += static_cast<double>(x) * x;
  for (size_t row = 0; row < rows.size(); row += d) {
    double product = 0;
    for (size_t c = 0; c < d; ++c) product += static_cast<double>(rows[row + c]) * normal[c];
    for (size_t c = 0; c < d; ++c) {
      rows[row + c] = static_cast<float>(rows[row + c] - 2 * product / square * normal[c]);
    }
  }
}

}  // namespace ebb

#endif  // EBB_TESTS_PROPERTY_GIVEN_LANE_H_
