// Results keep their numbers on the way to a table and to JSON, and a median is one.

#include "bench/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ebb::bench {
namespace {

using testing::HasSubstr;

TEST(Percentile, LiesBetweenNeighboursByProportion) {
  EXPECT_DOUBLE_EQ(Percentile({4, 1, 3, 2}, 0), 1);
  EXPECT_DOUBLE_EQ(Percentile({4, 1, 3, 2}, 1), 4);
  EXPECT_DOUBLE_EQ(Percentile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(Percentile({4, 1, 3, 2}, 0.95), 3.85);
  EXPECT_DOUBLE_EQ(Percentile({7}, 0.99), 7);
}

TEST(SpreadOf, IsTheMedianAndTheQuartiles) {
  EXPECT_EQ(SpreadOf({5, 1, 4, 2, 3}), (Spread{.median = 3, .low = 2, .high = 4}));
}

Report Example() {
  Report report("batch",
                {{.key = "sessions", .header = "sessions"},
                 {.key = "step_seconds", .header = "ms per step", .scale = 1e3, .digits = 2}},
                {{"cpu", std::string("A CPU")}, {"threads", int64_t{2}}});
  report.Add({int64_t{4}, Spread{.median = 0.02, .low = 0.01, .high = 0.03}});
  report.Add({int64_t{8}, 0.5});
  return report;
}

TEST(Report, IsAnObjectARowInBaseUnitsWithTheFacts) {
  const std::vector<nlohmann::json> lines = Example().Json();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["bench"], "batch");
  EXPECT_EQ(lines[0]["cpu"], "A CPU");
  EXPECT_EQ(lines[0]["threads"], 2);
  EXPECT_EQ(lines[0]["sessions"], 4);
  EXPECT_EQ(lines[0]["step_seconds"], (nlohmann::json{{"median", 0.02}, {"low", 0.01}, {"high", 0.03}}));
  EXPECT_EQ(lines[1]["step_seconds"], 0.5);
  EXPECT_THAT(std::string(lines[1]["command"]), HasSubstr("ebb_bench_test"));
}

TEST(Report, IsATableInTheUnitsOfItsHeader) {
  const std::string text = Example().Text(lab::TableForm::kMarkdown);
  EXPECT_THAT(text, HasSubstr("cpu A CPU, threads 2\n"));
  EXPECT_THAT(text, HasSubstr("| sessions | ms per step |\n|---|---|\n| 4 | 20.00 [10.00, 30.00] |\n| 8 | 500.00 |\n"));
}

TEST(CommandLine, NamesTheProgramWithoutItsFolder) {
  EXPECT_TRUE(CommandLine().starts_with("ebb_bench_test")) << CommandLine();
}

}  // namespace
}  // namespace ebb::bench
