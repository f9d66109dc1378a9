#include "policies/presets.h"

#include <gmock/gmock.h>

#include <set>
#include <string>

namespace ebb {
namespace {

TEST(Presets, HaveNamesOfTheirOwnAndAreFoundByThem) {
  std::set<std::string> names;
  for (const Preset& preset : Presets()) {
    EXPECT_TRUE(names.insert(preset.name).second) << preset.name;
    EXPECT_EQ(FindPreset(preset.name), &preset);
  }
  EXPECT_EQ(FindPreset("card/none"), nullptr);
  EXPECT_EQ(FindPreset(""), nullptr);
}

TEST(Presets, LeaveTheBudgetToTheCallerAndNothingElse) {
  for (const Preset& preset : Presets()) {
    EXPECT_FALSE(preset.spec.budget || preset.spec.budget_ratio) << preset.name;
    PolicySpec spec = preset.spec;
    spec.budget = 64;
    const auto valid = Resolve(spec, {.trained_context = 1024});
    ASSERT_TRUE(valid.ok()) << preset.name << ": " << valid.status();
    EXPECT_EQ(valid->trigger.budget, 64) << preset.name;
    EXPECT_EQ(valid->positions, Positions::kOriginal) << preset.name;
    EXPECT_EQ(valid->kv_type, KvType::kF32) << preset.name;
  }
}

// The rules of the card, as far as protection states them: who stays whatever the scores.
TEST(Presets, ProtectAsTheCardSays) {
  struct Case {
    std::string name;
    int32_t sinks;
    int32_t recent;
  };
  for (const auto& [name, sinks, recent] :
       {Case{"card/window", 0, 256}, Case{"card/streaming", 4, 252}, Case{"card/h2o", 0, 128}, Case{"card/tova", 0, 0},
        Case{"card/snapkv", 0, 32}, Case{"card/knorm", 0, 32}, Case{"card/keydiff", 0, 32}, Case{"card/longkey", 0, 32},
        Case{"card/random", 0, 0}}) {
    ASSERT_NE(FindPreset(name), nullptr) << name;
    PolicySpec spec = FindPreset(name)->spec;
    spec.budget = 256;
    const auto valid = Resolve(spec, {.trained_context = 1024});
    ASSERT_TRUE(valid.ok()) << name;
    EXPECT_EQ(valid->sinks, sinks) << name;
    EXPECT_EQ(valid->recent, recent) << name;
  }
}

}  // namespace
}  // namespace ebb
