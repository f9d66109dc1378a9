#include "engine/lab/policy_text.h"

#include <gmock/gmock.h>

#include <string>

namespace ebb::lab {
namespace {

using testing::HasSubstr;

TEST(ParsePolicy, ReadsScorerParametersProtectionAndModifier) {
  const auto policy = ParsePolicy("snapkv:pooling=avg:kernel=5:recent=40:sinks=2+fast_caote");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ(policy->name, "snapkv:pooling=avg:kernel=5:recent=40:sinks=2+fast_caote");
  EXPECT_EQ(policy->spec.scorer, "snapkv");
  EXPECT_EQ(policy->spec.parameters, (std::map<std::string, double>{{"pooling", 1}, {"kernel", 5}}));
  EXPECT_EQ(policy->spec.recent, 40);
  EXPECT_EQ(policy->spec.sinks, 2);
  EXPECT_EQ(policy->spec.modifier, Modifier::kFastCaote);
}

TEST(ParsePolicy, ReadsWhenAndHowManyLeave) {
  const auto policy = ParsePolicy("streaming:overflow=32:slack=16:max_drop=8");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ(policy->spec.overflow, 32);
  EXPECT_EQ(policy->spec.slack, 16);
  EXPECT_EQ(policy->spec.max_drop, 8);
  EXPECT_TRUE(policy->spec.parameters.empty());
}

TEST(ParsePolicy, ReadsHowTheBudgetIsShared) {
  const auto policy = ParsePolicy("card/snapkv:recent=8+caote@pyramid:beta=14:exact_total=yes");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ(policy->spec.scorer, "snapkv");
  EXPECT_EQ(policy->spec.recent, 8);
  EXPECT_EQ(policy->spec.modifier, Modifier::kCaote);
  EXPECT_EQ(policy->spec.allocation, Allocation::kPyramid);
  EXPECT_EQ(policy->spec.allocation_parameters, (std::map<std::string, double>{{"beta", 14}, {"exact_total", 1}}));
}

TEST(ParsePolicy, StartsFromAPreset) {
  const auto policy = ParsePolicy("card/longkey:recent=8");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ(policy->spec.scorer, "knorm");
  EXPECT_EQ(policy->spec.parameters.at("keep"), 1);
  EXPECT_EQ(policy->spec.recent, 8);
  EXPECT_EQ(policy->spec.kv_type, KvType::kF32);
}

TEST(ParsePolicy, NamesThePartItCannotRead) {
  struct Case {
    std::string text;
    std::string why;
  };
  for (const auto& [text, why] :
       {Case{"nobody", "no scorer named 'nobody'"}, Case{"", "no scorer named ''"}, Case{"card/h3o", "card/h3o"},
        Case{"h2o+coat", "'+coat' is no modifier"}, Case{"h2o+caote+caote", "one modifier"},
        Case{"knorm:keep", "':keep' is not KEY=NUMBER"}, Case{"knorm:keep=medium", "':keep=medium'"},
        Case{"h2o@cone", "'@cone' is no allocation"}, Case{"h2o@ada@duo", "one allocation"},
        Case{"h2o@ada:floor=low", "':floor=low' is not KEY=NUMBER"},
        Case{"h2o:recent=1.5", "':recent=1.5' is no whole number"}}) {
    const auto policy = ParsePolicy(text);
    EXPECT_FALSE(policy.ok()) << text;
    EXPECT_THAT(std::string(policy.status().message()), HasSubstr(why)) << text;
  }
}

}  // namespace
}  // namespace ebb::lab
