#include "engine/lab/record.h"

#include <gmock/gmock.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

namespace ebb::lab {
namespace {

using testing::HasSubstr;

// The file lives as long as the test.
class RecordTest : public testing::Test {
 protected:
  template <typename Value>
  static absl::StatusOr<std::optional<Value>> Find(const Record& record, const std::string& what) {
    return record.Find<Value>(what, [](const Value&) { return true; });
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string Text() const {
    std::ifstream file(path_, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  void Write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }
  void Make() const {
    auto record = Record::Open(path_, run_);
    ASSERT_TRUE(record.ok()) << record.status();
    ASSERT_TRUE(record->Add("h2o 128 stream", "0110").ok());
    ASSERT_TRUE(record->Add("h2o 128 window 0", third_).ok());
  }

  const std::string path_ =
      testing::TempDir() + "record_test." + testing::UnitTest::GetInstance()->current_test_info()->name() + ".jsonl";
  const Settings run_ = {{"ebb-lab", "recall"}, {"CASES", "07fe"}, {"--prompts", "4"}};
  const double third_ = 1.0 / 3;
};

TEST_F(RecordTest, GoesOnWhereTheFileEnds) {
  Make();
  auto record = Record::Open(path_, run_);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(Find<std::string>(*record, "h2o 128 stream").value(), "0110");
  EXPECT_EQ(Find<double>(*record, "h2o 128 window 0").value(), third_);  // to the last bit
  EXPECT_EQ(Find<std::string>(*record, "h2o 256 stream").value(), std::nullopt);
  ASSERT_TRUE(record->Add("h2o 256 stream", "1111").ok());
  EXPECT_EQ(Text(),
            "{\"ebb-lab\":\"recall\",\"CASES\":\"07fe\",\"--prompts\":\"4\"}\n"
            "{\"what\":\"h2o 128 stream\",\"is\":\"0110\"}\n"
            "{\"what\":\"h2o 128 window 0\",\"is\":0.3333333333333333}\n"
            "{\"what\":\"h2o 256 stream\",\"is\":\"1111\"}\n");
}

// Wherever an interruption cuts the file, what is whole stays and what is not is measured again.
TEST_F(RecordTest, DropsTheLineThatAnInterruptionCut) {
  Make();
  const std::string whole = Text();
  for (size_t length = 0; length < whole.size(); ++length) {
    Write(whole.substr(0, length));
    auto record = Record::Open(path_, run_);
    ASSERT_TRUE(record.ok()) << length << ": " << record.status();
    if (!Find<std::string>(*record, "h2o 128 stream").value()) {
      ASSERT_TRUE(record->Add("h2o 128 stream", "0110").ok());
    }
    ASSERT_EQ(Find<double>(*record, "h2o 128 window 0").value(), std::nullopt) << length;
    ASSERT_TRUE(record->Add("h2o 128 window 0", third_).ok());
    EXPECT_EQ(Text(), whole) << length;
  }
}

TEST_F(RecordTest, RefusesAnotherRunAndNamesAllThatDiffers) {
  Make();
  const std::string whole = Text();
  const auto record = Record::Open(path_, {{"ebb-lab", "recall"}, {"CASES", "07fe"}, {"--prompts", "5"}, {"-x", "1"}});
  EXPECT_EQ(record.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(record.status().message()),
      HasSubstr(path_ + " is of another run: --prompts is 4 there and 5 here; -x is not given there and 1 here. "));
  EXPECT_EQ(Text(), whole);
}

// And leaves it as it was: a path may be mistyped.
TEST_F(RecordTest, RefusesWhatIsNoSuchFile) {
  const std::string run = "{\"ebb-lab\":\"recall\",\"CASES\":\"07fe\",\"--prompts\":\"4\"}\n";
  for (const std::string text : {"policy,value\nh2o,1\n", "a text without an end of line", "[1, 2]\n",
                                 "{\"ebb-lab\":1}\n", "{\"what\":\"h2o 128 stream\",\"is\":\"0110\"}\n", "\n"}) {
    Write(text);
    const auto record = Record::Open(path_, run_);
    EXPECT_EQ(record.status().code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_THAT(std::string(record.status().message()), HasSubstr(path_ + ":1: ")) << text;
    EXPECT_EQ(Text(), text);
  }
  for (const std::string line : {"{\"what\":\"h2o 128 stream\"}\n", "{\"what\":1,\"is\":1}\n", "\n", "{\"what\":\n"}) {
    Write(run + line);
    const auto record = Record::Open(path_, run_);
    EXPECT_EQ(record.status().code(), absl::StatusCode::kDataLoss) << line;
    EXPECT_THAT(std::string(record.status().message()), HasSubstr(path_ + ":2: ")) << line;
    EXPECT_EQ(Text(), run + line);
  }
}

TEST_F(RecordTest, RefusesALineThatHoldsSomethingElseOrDoesNotFit) {
  Make();
  const auto record = Record::Open(path_, run_);
  ASSERT_TRUE(record.ok()) << record.status();
  const auto longer = [](const std::string& right) { return right.size() == 5; };
  for (const absl::Status& status : {Find<double>(*record, "h2o 128 stream").status(),
                                     record->Find<std::string>("h2o 128 stream", longer).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_ + ":2: "));
  }
}

TEST_F(RecordTest, WithoutAPathKeepsNothing) {
  auto record = Record::Open("", run_);
  ASSERT_TRUE(record.ok() && record->Add("h2o 128 stream", "0110").ok());
  EXPECT_EQ(Find<std::string>(*record, "h2o 128 stream").value(), std::nullopt);
}

TEST_F(RecordTest, SaysWhereItCannotWrite) {
  const auto record = Record::Open(testing::TempDir(), run_);
  EXPECT_EQ(record.status().code(), absl::StatusCode::kUnavailable) << record.status();
}

TEST(HashOf, TellsTextsApart) {
  EXPECT_EQ(HashOf("a"), HashOf("a"));
  EXPECT_NE(HashOf("ab"), HashOf("ba"));
  EXPECT_EQ(HashOf("").size(), 16u);
}

}  // namespace
}  // namespace ebb::lab
