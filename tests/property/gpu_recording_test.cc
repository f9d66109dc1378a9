// Decode steps of an engine on a device, emulated, that are recorded when their shape comes the second time, against
// steps that are launched.

#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/gpu/gpu_engine.h"
#include "engine/gpu/step_bound.h"
#include "tests/support/gpu_target.h"
#include "tests/support/gpu_world.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

// Launches that are replayed are those that would have been made: of sessions that grow past splits, evict, and come
// and go.
void ExpectTheStepItselfFromARecording(const TinyModel& model) {
  SCOPED_TRACE(model.architecture);
  const GpuWorld world(model);
  const std::vector<int32_t> tokens = RandomTokens(9, 40, world.model().vocab);
  int64_t replays = 0;
  const auto run = [&](bool records) {
    auto engine = world.Open(gpu::TableUnderTest(32), {.arena_bytes = 16 << 20, .recordings_max = records ? 64 : 0});
    EBB_CHECK(engine.ok());
    std::vector<std::unique_ptr<GpuSession>> sessions;
    std::vector<float> logits;
    for (size_t t = 0; t < tokens.size(); ++t) {
      const Modifier modifier = t == 12 ? Modifier::kCaote : Modifier::kNone;
      if (t % 12 == 0) {
        sessions.push_back(OpenOrDie(**engine, world.Policy({.scorer = "h2o", .budget = 20, .modifier = modifier})));
      }
      if (t == 30) sessions.erase(sessions.begin());
      std::vector<GpuRow> rows;
      for (const auto& session : sessions) rows.push_back({.session = session.get(), .tokens = {&tokens[t], 1}});
      rows[0].want = t % 2 == 0 ? GpuWant::kToken : GpuWant::kLast;
      EXPECT_THAT((*engine)->Run(rows), IsOk());
      for (const GpuRow& row : rows) {
        logits.insert(logits.end(), row.logits.begin(), row.logits.end());
        logits.push_back(static_cast<float>(row.next));
      }
    }
    replays = (*engine)->replays();
    return logits;
  };
  const std::vector<float> launched = run(false);
  EXPECT_EQ(replays, 0);
  EXPECT_EQ(run(true), launched);
  EXPECT_GT(replays, 25);
}
TEST(GpuEngine, AStepFromARecordingIsTheStepItself) {
  ExpectTheStepItselfFromARecording({.layers = 1});
  ExpectTheStepItselfFromARecording({.architecture = "gemma3", .layers = 1});
  ExpectTheStepItselfFromARecording({.architecture = "gemma3", .window = 9, .window_pattern = 2});
  ExpectTheStepItselfFromARecording({.architecture = "qwen3moe", .layers = 1});
  for (const char* const architecture : {"opt", "bloom"}) {
    ExpectTheStepItselfFromARecording({.architecture = architecture, .layers = 1, .kv_heads = 4});
  }
}

// Shapes are numbers of rows, each of which is recorded when it comes the second time.
class Shapes {
 public:
  Shapes(const GpuWorld& world, GpuEngine& engine) : engine_(engine) {
    for (int i = 0; i < 4; ++i) sessions_.push_back(OpenOrDie(engine, world.Policy({.scorer = "full"})));
    EXPECT_FALSE(IsReplayed(4));  // buffers grow for the last time
  }

  bool IsReplayed(int32_t count) {
    std::vector<GpuRow> rows;
    for (int32_t i = 0; i < count; ++i) rows.push_back({.session = sessions_[i].get(), .tokens = token_});
    const int64_t before = engine_.replays();
    EXPECT_THAT(engine_.Run(rows), IsOk());
    return engine_.replays() > before;
  }

 private:
  GpuEngine& engine_;
  const std::vector<int32_t> token_ = {7};
  std::vector<std::unique_ptr<GpuSession>> sessions_ = {};
};

TEST(GpuEngine, AShapePastTheMostForgetsTheOneLongestUnusedAlone) {
  const GpuWorld world({.layers = 1});
  auto engine = world.Open(gpu::TableUnderTest(32), {.arena_bytes = 16 << 20, .recordings_max = 3});
  ASSERT_THAT(engine, IsOk());
  Shapes shapes(world, **engine);
  for (const int32_t rows : {1, 2, 3}) {
    EXPECT_FALSE(shapes.IsReplayed(rows));
    EXPECT_TRUE(shapes.IsReplayed(rows));
  }
  EXPECT_TRUE(shapes.IsReplayed(1));
  EXPECT_FALSE(shapes.IsReplayed(4));  // in the place of 2
  for (const int32_t rows : {1, 3, 4}) EXPECT_TRUE(shapes.IsReplayed(rows)) << rows;
  EXPECT_FALSE(shapes.IsReplayed(2));  // in the place of 1
  for (const int32_t rows : {3, 4, 2}) EXPECT_TRUE(shapes.IsReplayed(rows)) << rows;
  EXPECT_FALSE(shapes.IsReplayed(1));
}

// A device that has no memory for the recording of a step, in whichever call it says so, and sound is all else.
enum class NoMemoryIn { kNothing, kRecord, kRecorded, kReplay };
NoMemoryIn no_memory_in = NoMemoryIn::kNothing;
gpu::Table WithoutMemoryForRecordings() {
  static const gpu::Table& sound = gpu::TableUnderTest(32);
  gpu::Table table = sound;
  table.record = [](gpu::Stream stream) {
    return no_memory_in == NoMemoryIn::kRecord ? sound.no_memory : sound.record(stream);
  };
  table.recorded = [](gpu::Stream stream, gpu::Recording* recording) {
    const gpu::Error error = sound.recorded(stream, recording);
    if (error != nullptr || no_memory_in != NoMemoryIn::kRecorded) return error;
    sound.drop(std::exchange(*recording, nullptr));
    return sound.no_memory;
  };
  table.replay = [](gpu::Recording recording, gpu::Stream stream) {
    return no_memory_in == NoMemoryIn::kReplay ? sound.no_memory : sound.replay(recording, stream);
  };
  return table;
}

TEST(GpuEngine, ForOneWithoutMemoryTheLongestUnusedHalfMakesRoom) {
  const GpuWorld world({.layers = 1});
  const gpu::Table table = WithoutMemoryForRecordings();
  auto engine = world.Open(table, {.arena_bytes = 16 << 20});
  ASSERT_THAT(engine, IsOk());
  Shapes shapes(world, **engine);
  for (const int32_t rows : {1, 2, 3, 1, 2, 3}) shapes.IsReplayed(rows);
  no_memory_in = NoMemoryIn::kRecord;
  EXPECT_FALSE(shapes.IsReplayed(4));
  no_memory_in = NoMemoryIn::kNothing;
  EXPECT_EQ((*engine)->steps_unrecorded(), 1);
  EXPECT_TRUE(shapes.IsReplayed(3)) << "it stayed";
  for (int i = 0; i < 3; ++i) {
    for (const int32_t rows : {1, 2, 4}) EXPECT_FALSE(shapes.IsReplayed(rows)) << rows << ", for a while";
  }
}

TEST(GpuEngine, AStepThatThereIsNoMemoryToRecordIsLaunched) {
  const GpuWorld world({.layers = 1});
  constexpr int kUntilItFails = 3, kSteps = 8;
  const int steps = kSteps + (kEmulationIsSlow ? 0 : StepBound::kPatience);
  const std::vector<int32_t> tokens = RandomTokens(13, steps, world.model().vocab);
  const gpu::Table table = WithoutMemoryForRecordings();
  const auto run = [&](NoMemoryIn where, int count) {
    auto engine =
        world.Open(table, {.arena_bytes = 16 << 20, .recordings_max = where == NoMemoryIn::kNothing ? 0 : 64});
    EBB_CHECK(engine.ok());
    const auto session = OpenOrDie(**engine, world.Policy({.scorer = "h2o", .budget = 20}));
    const auto other = OpenOrDie(**engine, world.Policy({.scorer = "h2o", .budget = 20}));
    std::vector<float> logits;
    for (int t = 0; t < count; ++t) {
      // From then on a second row comes, whose shape is new, and there is no memory to record it.
      if (t == kUntilItFails) no_memory_in = where;
      std::vector<GpuRow> rows = {{.session = session.get(), .tokens = {&tokens[t], 1}}};
      if (t >= kUntilItFails && t < kSteps) rows.push_back({.session = other.get(), .tokens = {&tokens[t], 1}});
      EXPECT_THAT((*engine)->Run(rows), IsOk()) << t;
      for (const GpuRow& row : rows) logits.insert(logits.end(), row.logits.begin(), row.logits.end());
      const bool fails = where != NoMemoryIn::kNothing && t == kUntilItFails + 1;  // the shape's second
      EXPECT_EQ((*engine)->shortage().empty(), !fails) << t;
      EXPECT_EQ((*engine)->steps_unrecorded(), where != NoMemoryIn::kNothing && t > kUntilItFails ? 1 : 0) << t;
      if (t == kSteps - 1) no_memory_in = NoMemoryIn::kNothing;
    }
    EXPECT_THAT(session->CanAppend(1), IsOk());
    const int64_t replays = where == NoMemoryIn::kNothing ? 0 : kUntilItFails - 1;
    EXPECT_EQ((*engine)->replays() > replays, count > StepBound::kPatience && where != NoMemoryIn::kNothing);
    return logits;
  };
  const std::vector<float> launched = run(NoMemoryIn::kNothing, kSteps);
  for (const NoMemoryIn where : {NoMemoryIn::kRecord, NoMemoryIn::kRecorded, NoMemoryIn::kReplay}) {
    SCOPED_TRACE(static_cast<int>(where));
    EXPECT_EQ(run(where, kSteps), launched);
  }
  run(NoMemoryIn::kRecorded, steps);  // for a while, and then again
}

}  // namespace
}  // namespace ebb
