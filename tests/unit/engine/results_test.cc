#include "engine/lab/results.h"

#include <gmock/gmock.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace ebb::lab {
namespace {

using testing::HasSubstr;

// The file lives as long as the test.
class ResultsTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  std::string Text() const {
    std::ifstream file(path_, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  void Write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }

  const std::string path_ =
      testing::TempDir() + "results_test." + testing::UnitTest::GetInstance()->current_test_info()->name() + ".csv";
  const Result one_ = {"h2o+caote", "128", "stream", 0.02, {.low = 0.003125, .high = 0.125}, 50};
  const Result two_ = {"full", "-", "perplexity", 27.5, {.low = 24.25, .high = 31.5}, 8};
};

TEST_F(ResultsTest, GoOnWhereTheFileEnds) {
  {
    auto results = Results::Open(path_, "run");
    ASSERT_TRUE(results.ok()) << results.status();
    EXPECT_EQ(results->Find("h2o+caote", "128", "stream"), nullptr);
    ASSERT_TRUE(results->Add(one_).ok());
  }
  auto results = Results::Open(path_, "run");
  ASSERT_TRUE(results.ok()) << results.status();
  ASSERT_NE(results->Find("h2o+caote", "128", "stream"), nullptr);
  EXPECT_EQ(*results->Find("h2o+caote", "128", "stream"), one_);
  EXPECT_EQ(results->Find("h2o+caote", "256", "stream"), nullptr);
  EXPECT_EQ(results->Find("h2o+caote", "128", "again"), nullptr);
  ASSERT_TRUE(results->Add(two_).ok());
  EXPECT_EQ(Text(),
            "run,policy,budget,measure,value,low,high,samples\n"
            "run,h2o+caote,128,stream,0.02,0.003125,0.125,50\n"
            "run,full,-,perplexity,27.5,24.25,31.5,8\n");
}

// Wherever an interruption cuts the file, what is whole stays and what is not is measured again.
TEST_F(ResultsTest, DropTheLineThatAnInterruptionCut) {
  {
    auto results = Results::Open(path_, "run");
    ASSERT_TRUE(results.ok() && results->Add(one_).ok() && results->Add(two_).ok());
  }
  const std::string whole = Text();
  for (size_t length = 0; length < whole.size(); ++length) {
    Write(whole.substr(0, length));
    auto results = Results::Open(path_, "run");
    ASSERT_TRUE(results.ok()) << length << ": " << results.status();
    for (const Result& result : {one_, two_}) {
      if (results->Find(result.policy, result.budget, result.measure) == nullptr) {
        ASSERT_TRUE(results->Add(result).ok());
      }
    }
    EXPECT_EQ(Text(), whole) << length;
  }
}

TEST_F(ResultsTest, RefuseTheNumbersOfAnotherRun) {
  { ASSERT_TRUE(Results::Open(path_, "run").value().Add(one_).ok()); }
  const auto results = Results::Open(path_, "other");
  EXPECT_EQ(results.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(results.status().message()), HasSubstr(":2 is of run run, and this is run other"));
}

TEST_F(ResultsTest, RefuseWhatIsNoSuchFile) {
  const std::string header = "run,policy,budget,measure,value,low,high,samples\n";
  for (const std::string& text : {std::string("policy,value\nh2o,1\n"), header + "run,h2o,128,stream,0.02,0,1\n",
                                  header + "run,h2o,128,stream,much,0,1,50\n"}) {
    Write(text);
    const auto results = Results::Open(path_, "run");
    EXPECT_EQ(results.status().code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_THAT(std::string(results.status().message()), HasSubstr(path_)) << text;
  }
}

TEST_F(ResultsTest, WithoutAPathKeepNothing) {
  auto results = Results::Open("", "run");
  ASSERT_TRUE(results.ok() && results->Add(one_).ok());
  EXPECT_EQ(results->all().size(), 1u);
}

TEST(RunName, DependsOnEachPartAndItsPlace) {
  EXPECT_EQ(RunName({"a", "b"}), RunName({"a", "b"}));
  EXPECT_NE(RunName({"a", "b"}), RunName({"b", "a"}));
  EXPECT_NE(RunName({"ab", ""}), RunName({"a", "b"}));
  EXPECT_EQ(RunName({"a"}).size(), 16u);
}

}  // namespace
}  // namespace ebb::lab
