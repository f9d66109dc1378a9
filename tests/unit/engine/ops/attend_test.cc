// Attend, Store and Angles against the float64 oracle, in every instruction set.

#include <cmath>
#include <deque>
#include <vector>

#include "engine/ops/cpu/ops_cpu.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/attend_case.h"
#include "tests/support/attention_reference.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_lane.h"
#include "tests/unit/engine/ops/each_isa.h"

namespace ebb {
namespace {

// Logits of these cases reach about 25. A float32 dot product of d <= 128 terms whose magnitudes sum to S errs by about
// sqrt(d) 2^-24 S and the angles by 2.5e-7 S, S <= 5 d / sqrt(d) = 57: a few 1e-6 in a logit, and so in a probability.
constexpr double kTolerance = 2e-5;

void ExpectNear(const std::vector<float>& ours, const std::vector<double>& reference, double tolerance) {
  ASSERT_EQ(ours.size(), reference.size());
  for (size_t i = 0; i < ours.size(); ++i) ASSERT_NEAR(ours[i], reference[i], tolerance) << "at " << i;
}

TEST(Attend, EqualsFloat64AtRandomShapes) {
  HashRandom random(1);
  for (int i = 0; i < 150; ++i) {
    const AttendShape shape = RandomShape(random, 200);
    SCOPED_TRACE(shape.ToString());
    ForEachIsa([&](Ops& ops) {
      const AttendCase c(ops, shape);
      ExpectNear(c.Run(ops).out, c.Reference().out, kTolerance);
    });
  }
}

TEST(Attend, HandlesEverySmallNumberOfSlotsAndEveryHeadSize) {
  for (int32_t slots = 1; slots <= 140; slots += slots < 70 ? 1 : 13) {
    AttendShape shape = {.group = 1, .slots = slots, .live = slots, .seed = static_cast<uint64_t>(slots)};
    shape.format.head_dim = 8 * (1 + slots % 17);
    shape.rotary_dims = shape.format.head_dim / 4 * 2;
    shape.format.type = static_cast<KvType>(slots % 5);
    shape.tokens = 1 + slots / 3;
    SCOPED_TRACE(shape.ToString());
    ForEachIsa([&](Ops& ops) {
      const AttendCase c(ops, shape);
      ExpectNear(c.Run(ops).out, c.Reference().out, kTolerance);
    });
  }
}

TEST(Attend, BitsAreEqualInEveryInstructionSet) {
  HashRandom random(2);
  for (int i = 0; i < 60; ++i) {
    const AttendShape shape = RandomShape(random, 300);
    SCOPED_TRACE(shape.ToString());
    const auto scalar = OpsFor("scalar");
    const AttendResult expected = AttendCase(*scalar, shape).Run(*scalar, shape.tokens);
    ForEachIsa([&](Ops& ops) {
      const AttendResult ours = AttendCase(ops, shape).Run(ops, shape.tokens);
      EXPECT_EQ(ours.out, expected.out);
      EXPECT_EQ(ours.column_sums, expected.column_sums);
      EXPECT_EQ(ours.last_row, expected.last_row);
      EXPECT_EQ(ours.window, expected.window);
    });
  }
}

TEST(Attend, ReportsExactlyTheProbabilities) {
  HashRandom random(3);
  for (int i = 0; i < 60; ++i) {
    const AttendShape shape = RandomShape(random, 200);
    SCOPED_TRACE(shape.ToString());
    const int32_t window = random.Uniform(0, shape.tokens);
    ForEachIsa([&](Ops& ops) {
      const AttendCase c(ops, shape);
      const ReferenceAttention reference = c.Reference();
      const AttendResult ours = c.Run(ops, window);
      ExpectNear(ours.out, reference.out, kTolerance);
      const auto sums = [&](int32_t first, int32_t last) {
        return SumReference(reference, shape.group, shape.slots, first, last);
      };
      ExpectNear(ours.column_sums, sums(0, shape.tokens), kTolerance * shape.tokens);
      ExpectNear(ours.last_row, sums(shape.tokens - 1, shape.tokens), kTolerance);
      for (int32_t w = 0; w < window; ++w) {
        const auto* row = ours.window.data() + int64_t{w} * shape.slots;
        const int32_t token = shape.tokens - window + w;
        ExpectNear(std::vector<float>(row, row + shape.slots), sums(token, token + 1), kTolerance);
      }
    });
  }
}

// More rows than one call of the kernel takes, so that observations are put together from parts, with lanes long enough
// to make the parts smaller still.
TEST(Attend, PutsObservationsTogetherWhenAStepIsCut) {
  for (const int32_t slots : {200, 5000}) {
    AttendShape shape = {.group = 5, .tokens = 90, .slots = slots, .live = slots - 20, .seed = 4};
    shape.format.head_dim = 16;
    shape.rotary_dims = 16;
    SCOPED_TRACE(shape.ToString());
    const auto one = OpsFor("");
    const AttendCase c(*one, shape);
    const ReferenceAttention reference = c.Reference();
    const AttendResult ours = c.Run(*one, 40);
    ExpectNear(ours.out, reference.out, kTolerance);
    ExpectNear(ours.column_sums, SumReference(reference, 5, slots, 0, 90), kTolerance * 90);
    ExpectNear(ours.last_row, SumReference(reference, 5, slots, 89, 90), kTolerance);
    for (int32_t w = 0; w < 40; ++w) {
      const auto* row = ours.window.data() + int64_t{w} * slots;
      ExpectNear(std::vector<float>(row, row + slots), SumReference(reference, 5, slots, 50 + w, 51 + w), kTolerance);
    }

    const auto three = OpsFor("", 3);
    const AttendResult threaded = c.Run(*three, 40);
    EXPECT_EQ(threaded.out, ours.out);
    EXPECT_EQ(threaded.column_sums, ours.column_sums);
    EXPECT_EQ(threaded.last_row, ours.last_row);
    EXPECT_EQ(threaded.window, ours.window);
    EXPECT_EQ(c.Run(*one).out, ours.out) << "observing changes nothing";
  }
}

TEST(Attend, GivesEachOfManyTasksItsOwnResult) {
  const auto ops = OpsFor("", 2);
  HashRandom random(5);
  AttendShape shape = RandomShape(random, 100);
  std::vector<AttendCase> cases;
  for (uint64_t i = 0; i < 12; ++i) {
    shape.slots = random.Uniform(30, 150);
    shape.live = shape.slots - 5;
    shape.tokens = random.Uniform(1, 9);
    shape.seed = i;
    cases.emplace_back(*ops, shape);
  }
  std::vector<AttendTask> tasks;
  std::vector<std::vector<float>> out;
  for (const AttendCase& c : cases) out.emplace_back(c.q().size());
  for (size_t i = 0; i < cases.size(); ++i) {
    tasks.push_back({.lane = cases[i].lane().storage(),
                     .q = cases[i].q().data(),
                     .out = out[i].data(),
                     .stride = int64_t{shape.group} * shape.format.head_dim,
                     .tokens = cases[i].shape().tokens,
                     .q_position = cases[i].q_position()});
  }
  ops->Attend(cases[0].rope(), shape.group, tasks);
  for (size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(out[i], cases[i].Run(*ops).out) << "task " << i;
}

// Lanes of one session share their positions: enough of them take turns, block by block.
TEST(Attend, GivesLanesThatTakeTurnsWhatEachGivesAlone) {
  constexpr size_t kLanes = 18;
  for (const int32_t tokens : {1, 3}) {
    const AttendShape shape = {.group = 4, .tokens = tokens, .slots = 150, .live = 140, .seed = 21};
    SCOPED_TRACE(shape.ToString());
    const int64_t d = shape.format.head_dim;
    ForEachIsa([&](Ops& ops) {
      const AttendCase c(ops, shape);
      std::vector<TestLane> lanes;
      lanes.reserve(kLanes);
      std::vector<AttendTask> tasks;
      std::vector<AttendResult> results(kLanes), alone(kLanes);
      for (size_t i = 0; i < kLanes; ++i) {
        lanes.emplace_back(shape.format, shape.slots);
        const std::vector<float> k = RandomFloats(30 + i, 1, shape.live * d),
                                 v = RandomFloats(30 + i, 2, shape.live * d);
        lanes[i].Write(ops, c.rope(), c.slots(), c.positions(), k, v);
        tasks.push_back({.lane = lanes[i].storage(),
                         .q = c.q().data(),
                         .stride = shape.group * d,
                         .tokens = tokens,
                         .q_position = c.q_position()});
        tasks[i].lane.position = tasks[0].lane.position;
      }
      const auto direct_to = [&](std::vector<AttendResult>& to) {
        for (size_t i = 0; i < kLanes; ++i) {
          to[i] = {.out = std::vector<float>(c.q().size()), .column_sums = std::vector<float>(shape.slots)};
          tasks[i].out = to[i].out.data();
          tasks[i].column_sums = i % 3 == 0 ? to[i].column_sums.data() : nullptr;
        }
      };
      direct_to(alone);
      for (const AttendTask& task : tasks) ops.Attend(c.rope(), shape.group, {&task, 1});
      direct_to(results);
      ops.Attend(c.rope(), shape.group, tasks);
      for (size_t i = 0; i < kLanes; ++i) {
        EXPECT_EQ(results[i].out, alone[i].out) << i;
        EXPECT_EQ(results[i].column_sums, alone[i].column_sums) << i;
      }
      EXPECT_NE(results[0].out, results[1].out) << "lanes differ";
    });
  }
}

// A row of a block sees through a window what it would see of a lane that holds nothing else: bit for bit, whoever is
// computed beside it.
TEST(Attend, SeesThroughAWindowWhatALaneWithoutTheRestHolds) {
  for (const int32_t window : {1, 7, 64, 100}) {
    AttendShape shape = {.window = window, .group = 2, .tokens = 40, .slots = 210, .live = 200, .seed = 31};
    SCOPED_TRACE(shape.ToString());
    ForEachIsa([&](Ops& ops) {
      const AttendCase c(ops, shape);
      const std::vector<float> together = c.Run(ops).out;
      Rope unlimited = c.rope();
      unlimited.windows.clear();
      const int64_t row = int64_t{shape.group} * shape.format.head_dim;
      std::vector<float> alone(static_cast<size_t>(row));
      for (int32_t t = 0; t < shape.tokens; ++t) {
        std::vector<int32_t> position(static_cast<size_t>((shape.slots + 15) / 16 * 16), -1);
        for (int32_t i = 0; i < shape.live; ++i) {
          if (c.positions()[i] > c.q_position()[t] - window) position[c.slots()[i]] = c.positions()[i];
        }
        AttendTask task = {.lane = c.lane().storage(),
                           .q = c.q().data() + t * row,
                           .out = alone.data(),
                           .stride = row,
                           .tokens = 1,
                           .q_position = c.q_position() + t};
        task.lane.position = position.data();
        ops.Attend(unlimited, shape.group, {&task, 1});
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + t * row)) << t;
      }
    });
  }
}

// Tasks that are whole items, one that is cut into many, and some that take turns.
TEST(Attend, SaysOfEachTaskOnceThatAllItWritesIsWritten) {
  constexpr int32_t kThreads = 3;
  const auto ops = MakeCpuOps({.threads = kThreads});
  ASSERT_THAT(ops, IsOk());
  AttendShape shape = {.group = 2, .slots = 200, .live = 190, .seed = 5};
  std::deque<AttendCase> cases;
  for (const int32_t tokens : {1, 190, 1, 1, 7, 1}) {
    shape.tokens = tokens;
    ++shape.seed;
    cases.emplace_back(**ops, shape);
  }
  std::vector<AttendTask> tasks;
  std::vector<AttendResult> results(5 * cases.size());
  for (AttendResult& result : results) {
    const AttendCase& c = cases[tasks.size() / 5];
    result = {.out = std::vector<float>(c.q().size()), .column_sums = std::vector<float>(shape.slots)};
    tasks.push_back({.lane = c.lane().storage(),
                     .q = c.q().data(),
                     .out = result.out.data(),
                     .stride = shape.group * shape.format.head_dim,
                     .tokens = c.shape().tokens,
                     .q_position = c.q_position(),
                     .column_sums = result.column_sums.data()});
  }
  std::vector<AttendResult> when_done(tasks.size());
  std::vector<int> times(tasks.size());
  (*ops)->Attend(cases[0].rope(), shape.group, tasks, [&](size_t task, int32_t thread) {
    EXPECT_GE(thread, 0);
    EXPECT_LT(thread, kThreads);
    ++times[task];
    when_done[task] = results[task];
  });
  EXPECT_THAT(times, testing::Each(1));
  for (size_t i = 0; i < tasks.size(); ++i) {
    EXPECT_EQ(when_done[i].out, results[i].out) << i;
    EXPECT_EQ(when_done[i].column_sums, results[i].column_sums) << i;
    EXPECT_NE(results[i].column_sums, std::vector<float>(shape.slots)) << i;
  }
}

// One item stores by itself what comes with its task; a task that is cut stores before its first item begins.
TEST(Attend, PutsWhatComesWithATaskIntoItsSlotsFirst) {
  for (const int32_t tokens : {1, 3, 90}) {
    AttendShape shape = {.group = 3, .tokens = tokens, .slots = 150, .live = 140, .seed = 9};
    SCOPED_TRACE(shape.ToString());
    const int64_t d = shape.format.head_dim, stride = (shape.group + 2) * d;
    ForEachIsa([&](Ops& isa) {
      const AttendCase c(isa, shape);
      const auto ops = OpsFor(std::string(isa.fingerprint().substr(0, isa.fingerprint().find(' '))), 3);
      const int32_t older = shape.live - tokens;
      TestLane lane(shape.format, shape.slots);
      lane.Write(*ops, c.rope(), std::span(c.slots()).first(older), std::span(c.positions()).first(older),
                 std::span(c.k()).first(older * d), std::span(c.v()).first(older * d));
      std::vector<float> qkv;  // of each token
      for (int32_t t = 0; t < tokens; ++t) {
        const int64_t q = t * shape.group * d, kv = (older + t) * d;
        qkv.insert(qkv.end(), c.q().begin() + q, c.q().begin() + q + shape.group * d);
        qkv.insert(qkv.end(), c.k().begin() + kv, c.k().begin() + kv + d);
        qkv.insert(qkv.end(), c.v().begin() + kv, c.v().begin() + kv + d);
        lane.position()[static_cast<size_t>(c.slots()[older + t])] = c.positions()[older + t];
      }
      std::vector<float> out(c.q().size());
      const AttendTask task = {.lane = lane.storage(),
                               .k = qkv.data() + shape.group * d,
                               .v = qkv.data() + (shape.group + 1) * d,
                               .slots = c.slots().data() + older,
                               .q = qkv.data(),
                               .out = out.data(),
                               .stride = stride,
                               .out_stride = shape.group * d,
                               .tokens = tokens,
                               .q_position = c.q_position()};
      ops->Attend(c.rope(), shape.group, {&task, 1});
      EXPECT_EQ(out, c.Run(*ops).out);
      for (const int32_t slot : c.slots()) {
        for (int32_t component = 0; component < d; ++component) {
          ASSERT_EQ(lane.Read(TestLane::Part::kK, slot, component), c.lane().Read(TestLane::Part::kK, slot, component));
          ASSERT_EQ(lane.Read(TestLane::Part::kV, slot, component), c.lane().Read(TestLane::Part::kV, slot, component));
        }
      }
    });
  }
}

TEST(Attend, TakesAnglesThatWereComputedOnceAndGivesTheSameBits) {
  HashRandom random(6);
  for (int i = 0; i < 30; ++i) {
    const AttendShape shape = RandomShape(random, 200);
    SCOPED_TRACE(shape.ToString());
    ForEachIsa([&](Ops& ops) {
      AttendCase c(ops, shape);
      const std::vector<int32_t>& position = c.lane().position();
      std::vector<float> angles(position.size() * static_cast<size_t>(shape.rotary_dims));
      ops.Angles(c.rope(), position, angles);
      EXPECT_EQ(c.Run(ops, -1, angles.data()).out, c.Run(ops).out);
    });
  }
}

// A slot's neighbours do not decide how its angle is computed, near or far.
TEST(Angles, DependOnTheSlotsOwnPositionAlone) {
  const Rope rope = MakeRope(TestRope(RopePairs::kHalves, 64));
  std::vector<int32_t> near(16);
  std::vector<int32_t> mixed(16);
  for (int32_t s = 0; s < 16; ++s) near[static_cast<size_t>(s)] = 200000 * s + 12345;
  mixed = near;
  mixed[3] = (1 << 30) + 17;
  ForEachIsa([&](Ops& ops) {
    std::vector<float> expected(size_t{16} * 64), ours(expected.size());
    ops.Angles(rope, near, expected);
    ops.Angles(rope, mixed, ours);
    for (size_t i = 0; i < ours.size(); ++i) {
      if (i % 16 != 3) {
        ASSERT_EQ(ours[i], expected[i]) << i;
      }
    }
  });
}

TEST(Angles, AreExactAtAnyPosition) {
  const ReferenceRope reference = TestRope(RopePairs::kHalves, 64, 500000);
  const Rope rope = MakeRope(reference);
  HashRandom random(7);
  std::vector<int32_t> position = {0,       1, 2, 3, 1000, 8191, 131072, 1 << 24, 1 << 30, INT32_MAX, -1, (1 << 22) - 1,
                                   1 << 22, 7, 8, 9};
  for (int i = 0; i < 160; ++i) position.push_back(random.Uniform(0, INT32_MAX));
  for (int i = 0; i < 160; ++i) position.push_back(random.Uniform(0, (1 << 22) - 1));  // all of a tile: the faster way
  const auto scalar = OpsFor("scalar");
  std::vector<float> expected(position.size() * 64);
  scalar->Angles(rope, position, expected);
  ForEachIsa([&](Ops& ops) {
    std::vector<float> angles(position.size() * 64);
    ops.Angles(rope, position, angles);
    EXPECT_EQ(angles, expected);
    for (size_t s = 0; s < position.size(); ++s) {
      if (position[s] < 0) continue;
      for (size_t i = 0; i < 32; ++i) {
        const long double angle = static_cast<long double>(reference.frequencies[i]) * position[s];
        const float* pair = angles.data() + (s / 16 * 32 + i) * 32 + s % 16;
        ASSERT_NEAR(pair[0], static_cast<double>(std::cos(angle)), 2.5e-7) << position[s] << " pair " << i;
        ASSERT_NEAR(pair[16], static_cast<double>(std::sin(angle)), 2.5e-7) << position[s] << " pair " << i;
      }
    }
  });
}

}  // namespace
}  // namespace ebb
