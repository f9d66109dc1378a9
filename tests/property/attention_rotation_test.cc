// Laws of rotation (RoPE, Su et al. 2021, arXiv:2104.09864) as the ops apply it, seen through Angles and Attend.

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/attend_case.h"
#include "tests/support/test_ops.h"

namespace ebb {
namespace {

// Attention of one query over `positions.size()` keys in slots 0, 1, ...; V is what comes out.
struct OneQuery {
  int32_t head_dim = 16;
  ReferenceRope rope = {};
  std::vector<int32_t> positions = {};
  std::vector<float> k = {}, v = {}, q = {};
  int32_t q_position = 0;

  // Probabilities of the slots, and the output.
  AttendResult Run(Ops& ops) const {
    const KvFormat format = {.type = KvType::kF32, .head_dim = head_dim, .page_tiles = 2};
    const auto n = static_cast<int32_t>(positions.size());
    TestLane lane(format, n);
    std::vector<int32_t> slots(positions.size());
    for (int32_t s = 0; s < n; ++s) slots[static_cast<size_t>(s)] = s;
    const Rope kernel_rope = MakeRope(rope);
    lane.Write(ops, kernel_rope, slots, positions, k, v);
    AttendResult result = {.out = std::vector<float>(q.size()), .last_row = std::vector<float>(positions.size())};
    const AttendTask task = {.lane = lane.storage(),
                             .q = q.data(),
                             .out = result.out.data(),
                             .stride = head_dim,
                             .tokens = 1,
                             .q_position = &q_position,
                             .last_row = result.last_row.data()};
    ops.Attend(kernel_rope, 1, {&task, 1});
    return result;
  }
};

OneQuery RandomQuery(HashRandom& random, RopePairs pairs) {
  OneQuery query;
  query.head_dim = 8 * random.Uniform(1, 16);
  query.rope = TestRope(pairs, 2 * random.Uniform(0, query.head_dim / 2));
  const int32_t n = random.Uniform(1, 150);
  int32_t position = random.Uniform(0, 100000);
  for (int32_t s = 0; s < n; ++s) query.positions.push_back(position += random.Uniform(1, 9));
  query.q_position = position;
  const int64_t floats = int64_t{n} * query.head_dim;
  query.k = RandomFloats(random.Next64(), 1, floats);
  query.v = RandomFloats(random.Next64(), 2, floats);
  query.q = RandomFloats(random.Next64(), 3, query.head_dim, 4);
  return query;
}

// Components of a head in the half-split order, from the order of neighbours.
std::vector<float> ToHalves(const std::vector<float>& rows, int32_t head_dim, int32_t rotary_dims) {
  std::vector<float> out = rows;
  for (size_t row = 0; row < rows.size(); row += static_cast<size_t>(head_dim)) {
    for (int32_t i = 0; i < rotary_dims / 2; ++i) {
      out[row + static_cast<size_t>(i)] = rows[row + static_cast<size_t>(2 * i)];
      out[row + static_cast<size_t>(i + rotary_dims / 2)] = rows[row + static_cast<size_t>(2 * i + 1)];
    }
  }
  return out;
}

// ROPE-1: the two kinds of pairs are one permutation of q's and k's components apart, bit for bit.
TEST(RotationLaws, NeighboursAreHalvesPermuted) {
  const auto ops = MakeTestOps();
  HashRandom random(1);
  for (int i = 0; i < 100; ++i) {
    OneQuery query = RandomQuery(random, RopePairs::kNeighbours);
    SCOPED_TRACE(testing::Message() << "draw " << i << ", d " << query.head_dim);
    const AttendResult neighbours = query.Run(*ops);
    const auto rotary = static_cast<int32_t>(2 * query.rope.frequencies.size());
    query.rope.pairs = RopePairs::kHalves;
    query.k = ToHalves(query.k, query.head_dim, rotary);
    query.q = ToHalves(query.q, query.head_dim, rotary);
    const AttendResult halves = query.Run(*ops);
    EXPECT_EQ(neighbours.last_row, halves.last_row);
    EXPECT_EQ(neighbours.out, halves.out);
  }
}

// ROPE-2: scores depend on differences of positions only. The angle of each component errs by 1.2e-7 twice, a logit of
// these sizes by less than 5e-5.
TEST(RotationLaws, ScoresDependOnDifferencesOfPositions) {
  const auto ops = MakeTestOps();
  HashRandom random(2);
  for (int i = 0; i < 100; ++i) {
    OneQuery query = RandomQuery(random, random.Uniform(0, 1) == 0 ? RopePairs::kNeighbours : RopePairs::kHalves);
    const AttendResult here = query.Run(*ops);
    const int32_t shift = random.Uniform(1, 1 << 30);
    SCOPED_TRACE(testing::Message() << "draw " << i << " shift " << shift);
    for (int32_t& position : query.positions) position += shift;
    query.q_position += shift;
    const AttendResult there = query.Run(*ops);
    for (size_t s = 0; s < here.last_row.size(); ++s) ASSERT_NEAR(here.last_row[s], there.last_row[s], 5e-5);
  }
}

// ROPE-2: R(a) R(b) = R(a + b), and a rotation keeps lengths.
TEST(RotationLaws, AnglesAddUpAndKeepLengths) {
  const auto ops = MakeTestOps();
  const Rope rope = MakeRope(TestRope(RopePairs::kHalves, 128));
  HashRandom random(3);
  std::vector<int32_t> positions(48);
  for (size_t s = 0; s < 16; ++s) {
    positions[s] = random.Uniform(0, 1 << 29);
    positions[16 + s] = random.Uniform(0, 1 << 29);
    positions[32 + s] = positions[s] + positions[16 + s];
  }
  std::vector<float> angles(positions.size() * 128);
  ops->Angles(rope, positions, angles);
  for (size_t pair = 0; pair < 64; ++pair) {
    for (size_t s = 0; s < 16; ++s) {
      const auto at = [&](size_t tile, size_t part) {
        return double{angles[((tile * 64 + pair) * 2 + part) * 16 + s]};
      };
      ASSERT_NEAR(at(0, 0) * at(1, 0) - at(0, 1) * at(1, 1), at(2, 0), 1e-6);
      ASSERT_NEAR(at(0, 0) * at(1, 1) + at(0, 1) * at(1, 0), at(2, 1), 1e-6);
      ASSERT_NEAR(at(2, 0) * at(2, 0) + at(2, 1) * at(2, 1), 1, 1e-6);
    }
  }
}

// ROPE-3: the frequencies that Llama-3 scaling gives (base 500000, factor 8, 8192 trained) reach the angles unchanged.
TEST(RotationLaws, ScaledFrequenciesTurnAsTheySay) {
  const auto ops = MakeTestOps();
  ReferenceRope reference = TestRope(RopePairs::kHalves, 128, 500000);
  // From its formula in float64: components 0-28 as they are, 29-34 blended by these factors, from 35 on an eighth.
  constexpr double kBlend[] = {.828168, .643743, .493507, .371122, .271425, .190211};
  for (size_t i = 29; i < 64; ++i) reference.frequencies[i] *= i <= 34 ? kBlend[i - 29] : 0.125;
  const Rope rope = MakeRope(reference);
  std::vector<int32_t> positions(16);
  for (int32_t s = 0; s < 16; ++s) positions[static_cast<size_t>(s)] = s * 8191 + 1;
  std::vector<float> angles(16 * 128);
  ops->Angles(rope, positions, angles);
  for (size_t pair = 0; pair < 64; ++pair) {
    for (size_t s = 0; s < 16; ++s) {
      const double angle = reference.frequencies[pair] * positions[s];
      ASSERT_NEAR(angles[pair * 32 + s], std::cos(angle), 1e-6);
      ASSERT_NEAR(angles[pair * 32 + 16 + s], std::sin(angle), 1e-6);
    }
  }
}

// Of the keys the first and those from `begin` to `end`, `shift` positions further on, as the query.
OneQuery Part(const OneQuery& whole, size_t begin, size_t end, int32_t shift) {
  OneQuery part = whole;
  part.q_position += shift;
  const auto cut = [&](auto rows, size_t width) {
    const auto at = [&](size_t row) { return rows.begin() + static_cast<std::ptrdiff_t>(row * width); };
    std::vector<typename decltype(rows)::value_type> kept(at(0), at(1));
    kept.insert(kept.end(), at(begin), at(end));
    return kept;
  };
  const auto d = static_cast<size_t>(whole.head_dim);
  part.positions = cut(whole.positions, 1);
  part.k = cut(whole.k, d);
  part.v = cut(whole.v, d);
  for (size_t i = 1; i < part.positions.size(); ++i) part.positions[i] += shift;
  return part;
}

// EQUIP-3: a stream with compacted positions is seen by two queries too, one for the sinks and one for the rest, whose
// keys stay where they were when those between left. A key of zeros, whose logit is 0 wherever it lies, tells how the
// two softmaxes join. Logits err by twice 5e-5.
TEST(RotationLaws, TwoQueriesSeeWhatCompactedPositionsShow) {
  const auto ops = MakeTestOps();
  HashRandom random(5);
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(testing::Message() << "draw " << i);
    OneQuery compacted = RandomQuery(random, random.Uniform(0, 1) == 0 ? RopePairs::kNeighbours : RopePairs::kHalves);
    const auto n = static_cast<int32_t>(compacted.positions.size());
    std::iota(compacted.positions.begin(), compacted.positions.end(), 0);
    compacted.q_position = n - 1;
    std::fill_n(compacted.k.begin(), compacted.head_dim, 0.0F);
    const auto sinks = static_cast<size_t>(random.Uniform(1, n));
    const int32_t gone = random.Uniform(0, 1 << 20);
    const std::vector<float> whole = compacted.Run(*ops).last_row;
    const std::vector<float> first = Part(compacted, 1, sinks, 0).Run(*ops).last_row;
    const std::vector<float> rest = Part(compacted, sinks, static_cast<size_t>(n), gone).Run(*ops).last_row;
    std::vector<double> weights = {1};  // e^logit
    for (size_t j = 1; j < first.size(); ++j) weights.push_back(double{first[j]} / first[0]);
    for (size_t j = 1; j < rest.size(); ++j) weights.push_back(double{rest[j]} / rest[0]);
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    ASSERT_EQ(weights.size(), whole.size());
    for (size_t j = 0; j < whole.size(); ++j) ASSERT_NEAR(weights[j] / total, whole[j], 1e-4);
  }
}

// ROPE-4: components past rotary_dims are not turned. With everything before them zero, positions make no difference to
// any bit.
TEST(RotationLaws, PartialRotaryLeavesTheRestUntouched) {
  const auto ops = MakeTestOps();
  HashRandom random(4);
  for (int i = 0; i < 60; ++i) {
    OneQuery query = RandomQuery(random, random.Uniform(0, 1) == 0 ? RopePairs::kNeighbours : RopePairs::kHalves);
    const size_t rotary = 2 * query.rope.frequencies.size();
    const auto d = static_cast<size_t>(query.head_dim);
    for (size_t c = 0; c < query.k.size(); ++c) query.k[c] = c % d < rotary ? 0 : query.k[c];
    for (size_t c = 0; c < rotary; ++c) query.q[c] = 0;
    const AttendResult here = query.Run(*ops);
    for (int32_t& position : query.positions) position = random.Uniform(0, 1 << 30);
    query.q_position = 1 << 30;
    const AttendResult there = query.Run(*ops);
    EXPECT_EQ(here.last_row, there.last_row) << "draw " << i;
    EXPECT_EQ(here.out, there.out) << "draw " << i;
  }
}

}  // namespace
}  // namespace ebb
