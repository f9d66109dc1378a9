// What is said of the ceilings that does not depend on how fast they are: the loops do the arithmetic they claim to.

#include "bench/meter.h"

#include <gtest/gtest.h>

namespace ebb::bench {
namespace {

TEST(Loops, DoTheSameWorkInEveryRound) {
  for (const ArithmeticLoop& loop : {Int8Loop(), Bf16Loop(), FmaLoop(), ClockLoop()}) {
    const double begin = loop.run(0);
    const double once = loop.run(1024) - begin;
    EXPECT_GT(once, 0) << loop.instruction;
    EXPECT_NEAR((loop.run(2048) - begin) / once, 2, 1e-2) << loop.instruction;
    EXPECT_GT(loop.operations, 0) << loop.instruction;
  }
}

// Equal accumulators would be computed once, and rates be counted of what nobody did.
TEST(Loops, HaveAccumulatorsThatDiffer) {
  for (const ArithmeticLoop& loop : {Int8Loop(), Bf16Loop(), FmaLoop(), ClockLoop()}) {
    EXPECT_EQ(loop.run(0), loop.accumulators * (loop.accumulators - 1) / 2) << loop.instruction;
  }
  for (const ArithmeticLoop& loop : {Int8Loop(), Bf16Loop(), FmaLoop()}) EXPECT_GE(loop.accumulators, 12);
}

TEST(Loops, ReadEveryWord) {
  alignas(64) std::byte data[1024] = {};
  const ReadLoop loop = BestReadLoop();
  EXPECT_EQ(loop.run(data, 1024), 0U);
  for (int at = 0; at < 1024; at += 8) {
    data[at] = std::byte{1};
    EXPECT_EQ(loop.run(data, 1024), 1U) << at;
    data[at] = std::byte{0};
  }
}

TEST(Meter, MeasuresWithAnyNumberOfThreads) {
  for (const int32_t threads : {1, 3}) {
    const absl::StatusOr<std::unique_ptr<Meter>> meter = Meter::Make(threads, int64_t{4} << 20);
    ASSERT_TRUE(meter.ok()) << meter.status();
    EXPECT_EQ((*meter)->threads(), threads);
    const Rates rates = (*meter)->Measure();
    EXPECT_GT(rates.read, 0);
    EXPECT_GT(rates.int8, 0);
    EXPECT_GT(rates.bf16, 0);
    EXPECT_GT(rates.fma, 0);
    EXPECT_GT((*meter)->ReadAgain(4096), 0);
  }
}

TEST(Meter, RefusesMemoryThatThereIsNot) {
  const auto meter = Meter::Make(1, int64_t{1} << 46);
  ASSERT_EQ(meter.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(meter.status().message().find("--read-mib"), std::string::npos);
}

}  // namespace
}  // namespace ebb::bench
