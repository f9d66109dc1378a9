// Store and all of attention together, as a step runs them for rows that come alone and for those of prompts'
// blocks, against the float64 oracle: sessions of different lengths beside each other, random slots and pages, every
// element type, and free slots whose bytes are no numbers. Then the same tokens in other slots.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "policies/hash_random.h"
#include "tests/support/attend_case.h"
#include "tests/support/attention_reference.h"
#include "tests/support/test_lane.h"
#include "tests/unit/engine/ops/gpu/each_target.h"
#include "tests/unit/engine/ops/gpu/resting_row.h"

namespace ebb::gpu {
namespace {

// Logits reach about 25, and what tests/unit/engine/ops/attend_test.cc says of the CPU's rounding holds here.
constexpr double kTolerance = 2e-5;
// Of one term (LaidTerms): rounding q and k to BF16, each by up to 2^-9 of itself, moves a logit by 2e-3 root mean
// square at these sizes, and a weighted mean of values below 1 by no more. Ten times that.
constexpr double kRoundedTolerance = 2e-2;
// Where keys of BF16 or bytes turn, they are rounded to F16, each by up to 2^-12 of itself: that moves a logit by 2e-4
// root mean square, and where a window leaves few slots an output follows a few of them.
constexpr double kTurnedTolerance = 8e-4;
// Two outputs for which q and k were rounded alike, but weights relative to other peaks: each by up to 2^-9 of itself,
// so that a weighted mean of values below 1 moves by no more, twice.
constexpr double kRoundedWeights = 4e-3;

enum class Rows { kAlone, kInBlocks };

struct StepShape {
  Element type = Element::kF32;
  int32_t head_dim = 64;
  RopePairs pairs = RopePairs::kNeighbours;
  int32_t rotary_dims = 64;
  int32_t group = 2;
  int32_t kv_heads = 2;
  int32_t sessions = 2;
  int32_t slots_max = 300;
  int32_t tokens_max = 1;
  int32_t window = 0;  // positions that a row sees; 0: all
  float cap = 0;       // of logits; 0: none
  bool alibi = false;  // slopes 1/2, 1/4, ... 1/64 of the query heads, one after another; then nothing turns
  uint64_t seed = 0;
  std::vector<int32_t> capacities = {};  // of the sessions, or random up to slots_max

  std::string ToString() const {
    return "seed " + std::to_string(seed) + ", type " + std::to_string(static_cast<int>(type)) + ", d " +
           std::to_string(head_dim) + ", rotary " + std::to_string(rotary_dims) +
           (pairs == RopePairs::kHalves ? " halves" : " neighbours") + (alibi ? ", slopes" : "") + ", window " +
           std::to_string(window) + ", cap " + std::to_string(cap) + ", group " + std::to_string(group) + ", heads " +
           std::to_string(kv_heads) + ", sessions " + std::to_string(sessions) + ", slots " +
           testing::PrintToString(capacities);
  }
};

constexpr int32_t kLayers = 2;
constexpr int32_t kLayer = 1;  // the one that is attended

// One session of a step: its lanes hold equally many tokens, each its own and in slots of its own.
struct TestSession {
  struct Lane {
    std::vector<int32_t> slots = {}, positions = {};  // [live] by token, positions ascending
    std::vector<float> k = {}, v = {};                // [live][d]
  };
  int32_t capacity = 0, live = 0, tokens = 0, first_row = 0, block_max = 0;
  int32_t tracks = 1;  // or one for each query head
  ScoreRule rule = ScoreRule::kSum;
  std::vector<Lane> lanes = {};
  std::vector<int32_t> position = {}, placed = {}, page = {};
  std::vector<float> score = {};

  int32_t pages_per_lane() const { return (capacity + kPageSlots - 1) / kPageSlots; }
};

class StepCase {
 public:
  explicit StepCase(const StepShape& shape)
      : shape_(shape), reference_(TestRope(shape.pairs, shape.rotary_dims)), rope_(MakeRope(reference_)) {
    reference_.window = shape.window;
    reference_.cap = shape.cap;
    for (int32_t head = 0; shape.alibi && head < heads(); ++head) {
      slopes_.push_back(std::ldexp(1.0F, -1 - head % 6));
    }
    HashRandom random(shape.seed, 5);
    int32_t pages = 0;
    for (int32_t i = 0; i < shape.sessions; ++i) {
      sessions_.push_back(MakeSession(random));
      pages += kLayers * shape.kv_heads * sessions_.back().pages_per_lane();
    }
    std::vector<int32_t> order = RandomOrder(random, pages);
    for (TestSession& session : sessions_) {
      const auto count = kLayers * shape.kv_heads * session.pages_per_lane();
      session.page.assign(order.end() - count, order.end());
      order.resize(order.size() - count);
    }
    pages_ = pages;
    q_ = RandomFloats(shape.seed, 6, int64_t{rows_} * heads() * shape.head_dim, 5);
  }

  int32_t heads() const { return shape_.kv_heads * shape_.group; }

  // The same tokens in other slots of their lanes: in slot s of lane `lane` of session i lies what lay in slot
  // from[i][lane][s].
  using From = std::vector<std::vector<std::vector<int32_t>>>;
  From RandomSlots(HashRandom& random) const {
    From from;
    for (const TestSession& s : sessions_) {
      auto& lanes = from.emplace_back();
      for (size_t lane = 0; lane < s.lanes.size(); ++lane) lanes.push_back(RandomOrder(random, s.capacity));
    }
    return from;
  }
  StepCase Moved(const From& from) const {
    StepCase moved = *this;
    for (size_t i = 0; i < sessions_.size(); ++i) {
      const TestSession& old = sessions_[i];
      TestSession& s = moved.sessions_[i];
      s.score = MovedScores(old, from[i], old.score);
      for (size_t lane = 0; lane < old.lanes.size(); ++lane) {
        const std::vector<int32_t>& order = from[i][lane];
        std::vector<int32_t> to(order.size());
        for (int32_t slot = 0; slot < s.capacity; ++slot) to[order[slot]] = slot;
        const int64_t at = static_cast<int64_t>(lane) * s.capacity, placed = static_cast<int64_t>(lane) * s.block_max;
        for (int32_t slot = 0; slot < s.capacity; ++slot) s.position[at + slot] = old.position[at + order[slot]];
        for (int32_t& slot : s.lanes[lane].slots) slot = to[slot];
        for (int32_t t = 0; t < s.tokens; ++t) s.placed[placed + t] = to[old.placed[placed + t]];
      }
    }
    return moved;
  }
  // One session alone, at the pages and with the queries that it has here; and what it yields here, where all yield
  // `result`.
  StepCase Alone(int32_t index) const {
    StepCase alone = *this;
    alone.sessions_ = {sessions_[index]};
    alone.shape_.sessions = 1;
    alone.rows_ = sessions_[index].tokens;
    const int64_t row = int64_t{heads()} * shape_.head_dim;
    const auto queries = q_.begin() + sessions_[index].first_row * row;
    alone.q_.assign(queries, queries + alone.rows_ * row);
    alone.sessions_[0].first_row = 0;
    return alone;
  }
  std::vector<float> ResultOf(int32_t index, const std::vector<float>& result) const {
    const TestSession& s = sessions_[index];
    const int64_t row = int64_t{heads()} * shape_.head_dim;
    const auto rows = result.begin() + s.first_row * row;
    std::vector<float> own(rows, rows + s.tokens * row);
    auto scores = result.begin() + rows_ * row;
    for (int32_t i = 0; i < index; ++i) scores += std::ssize(sessions_[i].score);
    own.insert(own.end(), scores, scores + std::ssize(s.score));
    return own;
  }

  // What the moved case yields where this one yields `result`.
  std::vector<float> MovedResult(const From& from, std::vector<float> result) const {
    auto scores = result.begin() + int64_t{rows_} * heads() * shape_.head_dim;
    for (size_t i = 0; i < sessions_.size(); ++i) {
      const auto end = scores + std::ssize(sessions_[i].score);
      scores = std::ranges::copy(MovedScores(sessions_[i], from[i], {scores, end}), scores).out;
    }
    return result;
  }

  // out [T][heads][d], then the scores of every session.
  std::vector<float> Run(const Table& table, Rows rows = Rows::kAlone) const {
    const int64_t d = shape_.head_dim;
    std::vector<std::byte> arena(pages_ * PageBytes(shape_.type, shape_.head_dim), std::byte{0xFF});
    Mirror mirror(table);
    std::vector<TestSession> sessions = sessions_;  // scores change
    std::vector<SessionView> views;
    std::vector<int32_t> row_session;
    std::vector<float> k(int64_t{rows_} * shape_.kv_heads * d), v = k;
    int32_t slots_max = 0, tokens_max = 0, strips = 0;
    for (const TestSession& s : sessions) {
      tokens_max = std::max(tokens_max, s.tokens);
      for (size_t lane = 0; lane < s.lanes.size(); ++lane) WriteOldTokens(s, static_cast<int32_t>(lane), arena);
      row_session.insert(row_session.end(), s.tokens, static_cast<int32_t>(views.size()));
      slots_max = std::max(slots_max, s.capacity);
      views.push_back(ViewOf(s, mirror));
      views.back().first_strip = strips;
      strips += LaidStrips(s.capacity);
      for (int32_t t = 0; t < s.tokens; ++t) {
        for (int32_t h = 0; h < shape_.kv_heads; ++h) {
          const TestSession::Lane& lane = s.lanes[kLayer * shape_.kv_heads + h];
          const int64_t from = (s.live - s.tokens + t) * d, to = ((s.first_row + t) * shape_.kv_heads + h) * d;
          std::copy_n(lane.k.begin() + from, d, k.begin() + to);
          std::copy_n(lane.v.begin() + from, d, v.begin() + to);
        }
      }
    }
    slots_max = (slots_max + 3) / 4 * 4;
    const CacheArgs cache = {.arena = {.base = mirror.In(arena), .type = shape_.type, .head_dim = shape_.head_dim},
                             .sessions = mirror.In(views),
                             .session_count = shape_.sessions,
                             .row_session = mirror.In(row_session),
                             .rows = rows_,
                             .kv_heads = shape_.kv_heads,
                             .lanes = kLayers * shape_.kv_heads,
                             .slots_max = slots_max};
    table.store({.cache = cache, .layer = kLayer, .k = mirror.In(k), .v = mirror.In(v), .stride = shape_.kv_heads * d},
                mirror.stream());

    const int32_t split_slots = rows == Rows::kAlone ? kSplitSlots : kBlockSplitSlots;
    const int32_t splits = SplitsOf(slots_max, split_slots);
    const int64_t all = int64_t{rows_} * heads();
    std::vector<float> sums(all * splits * d, NAN), partial(all * splits * 2, NAN), logits(all * slots_max, NAN);
    std::vector<float> out(all * d, NAN), stats(all * 2, NAN);
    std::vector<int32_t> arrived(int64_t{rows_} * shape_.kv_heads);
    const AttendArgs attend = {.cache = cache,
                               .layer = kLayer,
                               .group = shape_.group,
                               .rope = {.turns = mirror.In(rope_.turns),
                                        .rotary_dims = shape_.rotary_dims,
                                        .halves = shape_.pairs == RopePairs::kHalves ? 1 : 0},
                               .scale = 1.0F / std::sqrt(static_cast<float>(d)),
                               .cap = shape_.cap,
                               .slopes = shape_.alibi ? mirror.In(slopes_) : nullptr,
                               .window = shape_.window > 0 ? shape_.window : INT32_MAX,
                               .q = mirror.In(q_),
                               .q_stride = heads() * d,
                               .splits = splits,
                               .split_slots = split_slots,
                               .partial_sums = mirror.In(sums),
                               .partial_stats = mirror.In(partial),
                               .logits = mirror.In(logits),
                               .arrived = mirror.In(arrived),
                               .out = mirror.In(out),
                               .stats = mirror.In(stats)};
    if (rows == Rows::kAlone) {
      table.attend(attend, mirror.stream());
    } else {
      const BlockArgs block = BlockOf(attend, tokens_max, strips, mirror);
      table.lay(block, mirror.stream());
      table.attend_block(block, mirror.stream());
      table.attend_merge(attend, mirror.stream());
      table.observe_block(block, mirror.stream());
    }
    mirror.Out(attend.out, out);
    mirror.Out(attend.arrived, arrived);
    EXPECT_TRUE(std::ranges::all_of(arrived, [](int32_t count) { return count == 0; })) << "the next launch counts on";
    for (size_t i = 0; i < sessions.size(); ++i) mirror.Out(views[i].score, sessions[i].score);
    for (const TestSession& s : sessions) out.insert(out.end(), s.score.begin(), s.score.end());
    return out;
  }

  void ExpectEqualsReference(const std::vector<float>& result, double tolerance = kTolerance) const {
    const int64_t d = shape_.head_dim;
    auto scores = result.begin() + int64_t{rows_} * heads() * d;
    for (const TestSession& s : sessions_) {
      const int64_t lane_scores = int64_t{s.tracks} * s.capacity;
      for (int32_t lane = 0; lane < kLayers * shape_.kv_heads; ++lane, scores += lane_scores) {
        const float* const before = s.score.data() + lane * lane_scores;
        if (lane / shape_.kv_heads != kLayer) {  // another layer's lanes are left alone
          for (int64_t i = 0; i < lane_scores; ++i) ASSERT_EQ(scores[i], before[i]);
          continue;
        }
        const int32_t head = lane % shape_.kv_heads;
        const ReferenceAttention expected = Attended(s, lane, head);
        for (int32_t t = 0; t < s.tokens; ++t) {
          for (int32_t g = 0; g < shape_.group; ++g) {
            const int64_t at = ((s.first_row + t) * heads() + head * shape_.group + g) * d;
            for (int64_t c = 0; c < d; ++c) {
              ASSERT_NEAR(result[at + c], expected.out[(t * shape_.group + g) * d + c], tolerance) << "row " << t;
            }
          }
        }
        for (int32_t track = 0; track < s.tracks; ++track) {
          const std::vector<double> received = Received(expected, s, track);
          for (int32_t slot = 0; slot < s.capacity; ++slot) {
            const int64_t at = int64_t{track} * s.capacity + slot;
            double score = before[at];
            if (s.rule == ScoreRule::kLast) score = received[slot];
            if (s.rule == ScoreRule::kSum) score += received[slot];
            ASSERT_NEAR(scores[at], score, tolerance) << "slot " << slot << " of track " << track;
          }
        }
      }
    }
  }

 private:
  // `strips`: of a KV head's lanes of all sessions.
  BlockArgs BlockOf(const AttendArgs& attend, int32_t tokens_max, int32_t strips, Mirror& mirror) const {
    const int64_t laid = int64_t{strips} * shape_.kv_heads;
    const int64_t row_words = int64_t{LaidTerms(shape_.type)} * shape_.head_dim / 2;
    const int32_t tile_words = LaidTileWords(shape_.type, shape_.head_dim);
    constexpr uint32_t kNotANumber = 0xFFFFFFFF;
    return {.attend = attend,
            .tokens_max = tokens_max,
            .strips = LaidStrips(attend.cache.slots_max),
            .q = mirror.In(std::vector<uint32_t>(
                shape_.kv_heads * LaidTiles(rows_, shape_.group, shape_.sessions) * tile_words, kNotANumber)),
            .kv = mirror.In(std::vector<uint32_t>(laid * kStripSlots * 2 * row_words, kNotANumber)),
            .position = mirror.In(std::vector<int32_t>(laid * kStripSlots)),
            .earliest = mirror.In(std::vector<int32_t>(laid)),
            .latest = mirror.In(std::vector<int32_t>(laid))};
  }

  static std::vector<float> MovedScores(const TestSession& s, const std::vector<std::vector<int32_t>>& from,
                                        std::span<const float> scores) {
    std::vector<float> moved;
    for (size_t track = 0; track < s.lanes.size() * s.tracks; ++track) {
      for (const int32_t slot : from[track / s.tracks]) moved.push_back(scores[track * s.capacity + slot]);
    }
    return moved;
  }

  TestSession MakeSession(HashRandom& random) {
    TestSession s;
    s.capacity = shape_.capacities.empty() ? random.Uniform(1, shape_.slots_max) : shape_.capacities[sessions_.size()];
    s.live = random.Uniform((s.capacity + 1) / 2, s.capacity);
    s.tokens = random.Uniform(1, std::min(s.live, shape_.tokens_max));
    s.block_max = s.tokens + random.Uniform(0, 2);
    s.first_row = rows_;
    s.rule = static_cast<ScoreRule>(random.Uniform(0, 2));
    rows_ += s.tokens;
    const int32_t lanes = kLayers * shape_.kv_heads;
    s.position.assign(int64_t{lanes} * s.capacity, -1);
    s.placed.assign(int64_t{lanes} * s.block_max, -1);
    s.tracks = random.Uniform(0, 2) == 0 ? shape_.group : 1;
    s.score = RandomFloats(random.Next64(), 1, int64_t{lanes} * s.tracks * s.capacity);
    for (int32_t i = 0; i < lanes; ++i) {
      TestSession::Lane lane;
      lane.slots = RandomOrder(random, s.capacity);
      lane.slots.resize(s.live);
      int32_t position = random.Uniform(0, 3) == 0 ? random.Uniform(0, 1 << 24) : 0;
      for (int32_t token = 0; token < s.live; ++token) {
        s.position[int64_t{i} * s.capacity + lane.slots[token]] = position;
        lane.positions.push_back(position);
        if (token >= s.live - s.tokens) {
          s.placed[int64_t{i} * s.block_max + token - (s.live - s.tokens)] = lane.slots[token];
        }
        position += random.Uniform(0, 4) == 0 ? random.Uniform(1, 40) : 1;
      }
      lane.k = RandomFloats(random.Next64(), 2, int64_t{s.live} * shape_.head_dim);
      lane.v = RandomFloats(random.Next64(), 3, int64_t{s.live} * shape_.head_dim);
      s.lanes.push_back(std::move(lane));
    }
    return s;
  }

  SessionView ViewOf(const TestSession& s, Mirror& mirror) const {
    return {.position = mirror.In(s.position),
            .score = mirror.In(s.score),
            .placed = mirror.In(s.placed),
            .page = mirror.In(s.page),
            .capacity = s.capacity,
            .block_max = s.block_max,
            .pages_per_lane = s.pages_per_lane(),
            .live = s.live - s.tokens,
            .slots = s.capacity,
            .first_row = s.first_row,
            .tokens = s.tokens,
            .tracks = s.tracks,
            .rule = s.rule};
  }

  // Those that were there before the step, by the layout as kernels.h draws it.
  void WriteOldTokens(const TestSession& s, int32_t lane, std::vector<std::byte>& arena) const {
    const int64_t d = shape_.head_dim;
    for (int32_t token = 0; token < s.live - s.tokens; ++token) {
      const int32_t slot = s.lanes[lane].slots[token];
      const int64_t page = s.page[int64_t{lane} * s.pages_per_lane() + slot / 64];
      std::byte* const at = &arena[page * PageBytes(shape_.type, shape_.head_dim)];
      const auto row = static_cast<size_t>(d);
      WriteRow(shape_.type, {s.lanes[lane].k.data() + token * d, row}, slot, Part::kKeys, at);
      WriteRow(shape_.type, {s.lanes[lane].v.data() + token * d, row}, slot, Part::kValues, at);
    }
  }

  // What a slot receives by the session's rule, a mean over the query heads of the track.
  std::vector<double> Received(const ReferenceAttention& seen, const TestSession& s, int32_t track) const {
    const int32_t first = s.rule == ScoreRule::kLast ? s.tokens - 1 : 0;
    if (s.tracks == 1) return SumReference(seen, shape_.group, s.capacity, first, s.tokens);
    std::vector<double> received(s.capacity, 0);
    for (int32_t t = first; t < s.tokens; ++t) {
      const double* const row = seen.probability.data() + (int64_t{t} * shape_.group + track) * s.capacity;
      for (int32_t slot = 0; slot < s.capacity; ++slot) received[slot] += row[slot];
    }
    return received;
  }

  ReferenceAttention Attended(const TestSession& s, int32_t lane, int32_t head) const {
    const int64_t d = shape_.head_dim;
    const TestSession::Lane& from = s.lanes[lane];
    ReferenceLane reference = {.head_dim = shape_.head_dim};
    reference.position.assign(s.position.begin() + int64_t{lane} * s.capacity,
                              s.position.begin() + int64_t{lane + 1} * s.capacity);
    reference.k.assign(s.capacity * d, 0);
    reference.v.assign(s.capacity * d, 0);
    for (int32_t token = 0; token < s.live; ++token) {
      const auto row = static_cast<size_t>(d);
      std::ranges::copy(Rest(shape_.type, {from.k.data() + token * d, row}).numbers,
                        reference.k.begin() + from.slots[token] * d);
      std::ranges::copy(Rest(shape_.type, {from.v.data() + token * d, row}).numbers,
                        reference.v.begin() + from.slots[token] * d);
    }
    std::vector<double> q;
    for (int32_t t = 0; t < s.tokens; ++t) {
      const auto at = q_.begin() + ((s.first_row + t) * heads() + head * shape_.group) * d;
      q.insert(q.end(), at, at + shape_.group * d);
    }
    ReferenceRope rope = reference_;
    const auto first = slopes_.begin() + (shape_.alibi ? head * shape_.group : 0);
    rope.slopes.assign(first, shape_.alibi ? first + shape_.group : first);
    return AttendReference(rope, reference, q,
                           {from.positions.data() + s.live - s.tokens, static_cast<size_t>(s.tokens)}, shape_.group);
  }

  StepShape shape_;
  ReferenceRope reference_;
  Rope rope_;
  int32_t rows_ = 0;
  int32_t pages_ = 0;
  std::vector<TestSession> sessions_ = {};
  std::vector<float> q_ = {};       // [T][heads][d]
  std::vector<float> slopes_ = {};  // [heads], or empty
};

// Element type, head, rotation and groups; numbers of sessions and slots are the caller's.
StepShape RandomStepShape(HashRandom& random, int i) {
  constexpr int32_t kDims[] = {16, 32, 64, 80, 96, 128, 256};
  StepShape shape;
  shape.type = kCacheTypes[i % std::size(kCacheTypes)];
  shape.head_dim = kDims[random.Uniform(0, 6)];
  shape.pairs = random.Uniform(0, 1) == 0 ? RopePairs::kNeighbours : RopePairs::kHalves;
  shape.rotary_dims = shape.head_dim;
  if (random.Uniform(0, 2) == 0) {
    shape.rotary_dims = shape.pairs == RopePairs::kHalves ? 16 * random.Uniform(0, shape.head_dim / 16)
                                                          : 2 * random.Uniform(0, shape.head_dim / 2);
  }
  shape.group = random.Uniform(1, kGroupMax);
  shape.kv_heads = random.Uniform(1, 2);
  shape.seed = random.Next64() >> 40;
  if (random.Uniform(0, 2) == 0) shape.window = random.Uniform(1, 200);
  if (random.Uniform(0, 2) == 0) shape.cap = static_cast<float>(random.Uniform(1, 20));
  shape.alibi = i / std::size(kCacheTypes) % 3 == 2;
  if (shape.alibi) shape.rotary_dims = 0;
  return shape;
}

double RowTolerance(const StepShape& shape) {
  return LaidTerms(shape.type) == 1 && shape.rotary_dims > 0 ? kTurnedTolerance : kTolerance;
}

TEST(GpuAttend, EqualsFloat64AtRandomShapes) {
  HashRandom random(1);
  for (int i = 0; i < Cases(29); ++i) {
    StepShape shape = RandomStepShape(random, i);
    shape.sessions = random.Uniform(1, 5);
    shape.slots_max = i % 4 == 0 ? 20 : i % 4 == 1 ? 1100 : 300;
    SCOPED_TRACE(shape.ToString());
    const StepCase c(shape);
    c.ExpectEqualsReference(OnEachTarget([&](const Table& table) { return c.Run(table); }), RowTolerance(shape));
  }
}

// Every slot is in one split, all but the last are equally long, and that one is not so short that it need not be.
TEST(GpuSplits, CoverEverySlotOnce) {
  EXPECT_EQ(SplitsOf(0, kSplitSlots), 0);
  EXPECT_EQ(SlotsOfAsManySplits(0, kSplitSlots), 0);
  for (const int32_t each : {kSplitSlots, kBlockSplitSlots}) {
    for (int32_t slots = 1; slots <= 3 * each + 2 * kSplitMore; ++slots) {
      SCOPED_TRACE(std::to_string(slots) + " slots in splits of " + std::to_string(each));
      const int32_t splits = SplitsOf(slots, each);
      ASSERT_GE(splits, 1);
      ASSERT_GE(splits, SplitsOf(slots - 1, each));
      for (int32_t split = 0; split < splits - 1; ++split) ASSERT_EQ(SlotsOfSplit(slots, each, split), each);
      const int32_t last = SlotsOfSplit(slots, each, splits - 1);
      ASSERT_EQ((splits - 1) * each + last, slots);
      ASSERT_GT(last, splits == 1 ? 0 : kSplitMore);
      ASSERT_LE(last, each + kSplitMore);
      ASSERT_EQ(SlotsOfSplit(slots, each, splits), 0);
      const int32_t most = SlotsOfAsManySplits(slots, each);
      ASSERT_GE(most, slots);
      ASSERT_EQ(SplitsOf(most, each), splits);
      ASSERT_EQ(SplitsOf(most + 1, each), splits + 1);
      ASSERT_EQ(most % 4, 0);  // AttendArgs.logits
    }
  }
}

// Numbers of slots about those that make one more split, `splits` of `each` before it.
std::vector<int32_t> CapacitiesAbout(int32_t splits, int32_t each) {
  std::vector<int32_t> capacities;
  for (const int32_t more : {0, 1, kSplitMore, kSplitMore + 1}) {
    if (splits * each + more > 0) capacities.push_back(splits * each + more);
  }
  return capacities;
}

// Sessions whose last splits are as long as they get, and as short, beside each other. A session's numbers are, bit for
// bit, those that it has alone.
TEST(GpuAttend, EqualsFloat64AboutAnotherSplit) {
  HashRandom random(6);
  for (int i = 0; i < Cases(15); ++i) {
    StepShape shape = RandomStepShape(random, i);
    for (const int32_t capacity : CapacitiesAbout(random.Uniform(0, 4), kSplitSlots)) {
      const auto place = random.Uniform(0, static_cast<int32_t>(shape.capacities.size()));
      shape.capacities.insert(shape.capacities.begin() + place, capacity);
    }
    shape.sessions = static_cast<int32_t>(shape.capacities.size());
    SCOPED_TRACE(shape.ToString());
    const StepCase c(shape);
    const std::vector<float> result = OnEachTarget([&](const Table& table) { return c.Run(table); });
    c.ExpectEqualsReference(result, RowTolerance(shape));
    const int32_t one = random.Uniform(0, shape.sessions - 1);
    EXPECT_EQ(c.Alone(one).Run(TableUnderTest(32)), c.ResultOf(one, result)) << "session " << one;
  }
}

double BlockTolerance(const StepShape& shape) { return LaidTerms(shape.type) == 1 ? kRoundedTolerance : kTolerance; }

TEST(GpuAttendBlock, EqualsFloat64AtRandomShapes) {
  HashRandom random(2);
  for (int i = 0; i < Cases(20); ++i) {
    StepShape shape = RandomStepShape(random, i);
    shape.sessions = random.Uniform(1, 2);
    shape.slots_max = i % 4 == 0 ? 20 : 200;
    shape.tokens_max = i % 3 == 0 ? 40 : 12;
    SCOPED_TRACE(shape.ToString());
    const StepCase c(shape);
    c.ExpectEqualsReference(OnEachTarget([&](const Table& table) { return c.Run(table, Rows::kInBlocks); }),
                            BlockTolerance(shape));
  }
}

TEST(GpuAttendBlock, EqualsFloat64PastASplit) {
  for (const Element type : {Element::kF32, Element::kBf16}) {
    StepShape shape = {.type = type, .head_dim = 16, .rotary_dims = 16, .group = 1, .kv_heads = 1};
    shape.tokens_max = 4;
    shape.capacities = CapacitiesAbout(1, kBlockSplitSlots);
    shape.capacities.push_back(2 * kBlockSplitSlots - 100);
    shape.sessions = static_cast<int32_t>(shape.capacities.size());
    SCOPED_TRACE(shape.ToString());
    const StepCase c(shape);
    c.ExpectEqualsReference(c.Run(TableUnderTest(64), Rows::kInBlocks), BlockTolerance(shape));
  }
}

// What tests/property/attention_test.cc says of the CPU: sums run in slot order, so a permutation of slots changes
// rounding and nothing else. Every type of cache, each with rotated keys and with keys that are not.
void ExpectUnchangedUnderPermutation(Rows rows, int count, uint64_t seed) {
  HashRandom random(seed);
  float furthest = 0;
  for (int i = 0; i < count; ++i) {
    StepShape shape = RandomStepShape(random, i);
    if (i / std::size(kCacheTypes) % 2 == 1) shape.rotary_dims = 0;
    shape.sessions = random.Uniform(1, 2);
    shape.slots_max = rows == Rows::kAlone ? 560 : 160;
    shape.tokens_max = rows == Rows::kAlone ? 1 : 16;
    SCOPED_TRACE(shape.ToString());
    const StepCase c(shape);
    const StepCase::From from = c.RandomSlots(random);
    const Table& table = TableUnderTest(i % 2 == 0 ? 32 : 64);
    const std::vector<float> expected = c.MovedResult(from, c.Run(table, rows));
    const std::vector<float> result = c.Moved(from).Run(table, rows);
    ASSERT_EQ(result.size(), expected.size());
    const double tolerance = rows == Rows::kInBlocks && LaidTerms(shape.type) == 1 ? kRoundedWeights : kTolerance;
    for (size_t j = 0; j < result.size(); ++j) {
      ASSERT_NEAR(result[j], expected[j], tolerance) << "at " << j;
      furthest = std::max(furthest, std::abs(result[j] - expected[j]));
    }
  }
  EXPECT_GT(furthest, 0) << "nothing was added in another order";
}

TEST(GpuAttend, OutputUnchangedUnderPermutationOfSlots) { ExpectUnchangedUnderPermutation(Rows::kAlone, Cases(24), 3); }

TEST(GpuAttendBlock, OutputUnchangedUnderPermutationOfSlots) {
  ExpectUnchangedUnderPermutation(Rows::kInBlocks, Cases(8), 4);
}

}  // namespace
}  // namespace ebb::gpu
