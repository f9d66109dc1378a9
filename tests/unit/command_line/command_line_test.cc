#include "command_line/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ebb {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

enum class Fruit : int8_t { kApple, kPear };

const std::map<std::string, Fruit> kFruits = {{"apple", Fruit::kApple}, {"pear", Fruit::kPear}};

TEST(CommandLine, SetsVariablesAndRunsTheCommandThatWasGiven) {
  Program app;
  const Command buy = app.add_subcommand("buy", "Fruit");
  std::vector<int32_t> counts;
  std::optional<double> price;
  bool ran = false;
  buy.add_option("count", counts, "How many").range(1, 9);
  const Flag flag = buy.add_option("--price", price, "Of each");
  buy.callback([&ran] { ran = true; });
  app.add_subcommand("sell", "Fruit").callback([] { FAIL() << "was not given"; });

  EXPECT_FALSE(app.parse({"buy", "3", "4"}));
  EXPECT_THAT(counts, ElementsAre(3, 4));
  EXPECT_FALSE(flag.given());
  EXPECT_FALSE(price);
  EXPECT_EQ(app.chosen(), "buy");
  EXPECT_TRUE(ran);
}

TEST(CommandLine, TakesAnEnumByItsWord) {
  Program app;
  Fruit one = Fruit::kApple;
  std::optional<Fruit> perhaps;
  std::vector<Fruit> many = {Fruit::kPear};
  app.add_choice("--one", one, kFruits, "One", {.ignore_case = false});
  app.add_choice("--perhaps", perhaps, kFruits, "One or none");
  app.add_choice("--many", many, kFruits, "Some").delimiter(',');

  EXPECT_FALSE(app.parse({"--one", "pear", "--perhaps", "PEAR", "--many", "apple,pear,apple"}));
  EXPECT_EQ(one, Fruit::kPear);
  EXPECT_EQ(perhaps, Fruit::kPear);
  EXPECT_THAT(many, ElementsAre(Fruit::kApple, Fruit::kPear, Fruit::kApple));
  EXPECT_TRUE(app.parse({"--one", "PEAR"}));
  EXPECT_TRUE(app.parse({"--perhaps", "plum"}));
}

TEST(CommandLine, SaysWhatIsWrong) {
  const auto wrong = [](const std::vector<std::string>& arguments) {
    Program app;
    int32_t count = 0;
    std::string word;
    app.add_option("--count", count, "").range(1, 9);
    app.add_option("--word", word, "").one_of({"a", "b"});
    app.callback([] { throw UsageError("--count", "too many"); });
    const auto stopped = app.parse(arguments);
    return stopped && !stopped->asked ? stopped->text : "nothing";
  };
  EXPECT_EQ(wrong({"--count", "10"}), "--count: Value 10 not in range 1 to 9");
  EXPECT_EQ(wrong({"--word", "c"}), "--word: c not in {a,b}");
  EXPECT_EQ(wrong({"--count", "9"}), "--count: too many");
}

TEST(CommandLine, TellsHelpAndVersionFromMistakes) {
  Program app("Fruit.", "fruit");
  app.set_version_flag("--version", "1.2");
  const auto help = app.parse({"--help"});
  ASSERT_TRUE(help && help->asked);
  EXPECT_THAT(help->text, HasSubstr("Usage: fruit"));
  const auto version = app.parse({"--version"});
  ASSERT_TRUE(version && version->asked);
  EXPECT_EQ(version->text, "1.2\n");
}

TEST(CommandLine, NamesTheCommandsThatThereAreWhereOneIsUnknown) {
  Program app;
  const Command market = app.add_subcommand("market", "");
  market.add_subcommand("buy", "");
  market.add_subcommand("sell", "");
  bool flag = false;
  market.add_option_group("flags", "").add_flag("--flag", flag, "");
  const auto stopped = app.parse({"market", "steal", "--now"});
  ASSERT_TRUE(stopped && !stopped->asked);
  EXPECT_THAT(stopped->commands, ElementsAre("buy", "sell"));
  EXPECT_THAT(stopped->unread, ElementsAre("steal", "--now"));
}

TEST(CommandLine, TellsAMissingCommandFromOtherMistakes) {
  for (const auto& [line, lacks] : {std::pair<std::vector<std::string>, bool>{{"market"}, true},
                                    {{"market", "buy", "--now"}, false},
                                    {{"--size"}, false}}) {
    Program app;
    int32_t size = 0;
    app.add_option("--size", size, "");
    const Command market = app.add_subcommand("market", "");
    market.require_subcommand(1);
    market.add_subcommand("buy", "");
    const auto stopped = app.parse(line);
    ASSERT_TRUE(stopped && !stopped->asked);
    EXPECT_EQ(stopped->lacks_command, lacks) << stopped->text;
  }
}

}  // namespace
}  // namespace ebb
