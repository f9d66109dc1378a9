#include "client/cli/policy_flags.h"

#include <gtest/gtest.h>

namespace ebb::cli {
namespace {

TEST(PolicyFlags, SetTheArmThatTheNameSays) {
  for (const std::string& name : ScorerNames()) {
    SCOPED_TRACE(name);
    PolicyFlags flags;
    flags.scorer = name;
    EXPECT_EQ(ScorerOf(flags.Build()), name);
  }
}

TEST(PolicyFlags, LeaveUnsetWhatWasNotGiven) {
  PolicyFlags flags;
  EXPECT_FALSE(flags.given());
  EXPECT_EQ(flags.Build().ByteSizeLong(), 0U);
}

TEST(PolicyFlags, FillEveryField) {
  CLI::App app;
  PolicyFlags flags;
  flags.AddTo(app);
  app.parse(
      "--policy h2o --budget 256 --overflow 32 --slack 16 --max-drop 8 --sinks 2 --recent 64 --positions compacted "
      "--kv-dtype f32 --rope-cache rk");
  ASSERT_TRUE(flags.given());
  const v1::PolicySpec spec = flags.Build();
  EXPECT_EQ(Summary(spec), "h2o, budget 256, overflow 32, slack 16, max_drop 8, sinks 2, recent 64, COMPACTED");
  EXPECT_EQ(spec.cache().kv_dtype(), v1::KV_TYPE_F32);
  EXPECT_EQ(spec.cache().rope_cache(), v1::ROPE_CACHE_RK);
}

// A choice is written as ListPolicies names it, whether its enum's values carry a prefix or not.
TEST(PolicyFlags, TakeAChoiceByItsName) {
  PolicyFlags flags;
  flags.scorer = "expected_attention";
  flags.parameters = {"covariance=diagonal", "values=ignore", "epsilon=0.5"};
  EXPECT_EQ(Summary(flags.Build()), "expected_attention epsilon=0.5 covariance=DIAGONAL values=IGNORE");
  flags.scorer = "snapkv";
  flags.parameters = {"pooling=none"};
  EXPECT_EQ(Summary(flags.Build()), "snapkv pooling=NONE");
  flags.parameters = {"pooling=unspecified"};
  EXPECT_THROW(flags.Build(), CLI::ParseError);
}

TEST(PolicyFlags, ChooseAnAllocationAndItsParameters) {
  CLI::App app;
  PolicyFlags flags;
  flags.AddTo(app);
  app.parse("--policy snapkv --allocation pyramid --allocation-param beta=14 --allocation-param exact_total=true");
  ASSERT_TRUE(flags.given());
  const v1::PolicySpec spec = flags.Build();
  EXPECT_EQ(spec.pyramid().beta(), 14U);
  EXPECT_TRUE(spec.pyramid().exact_total());
  EXPECT_EQ(Summary(spec), "snapkv, pyramid beta=14 exact_total=true");

  flags.allocation_parameters = {"gamma=1"};
  EXPECT_THROW(flags.Build(), CLI::ValidationError);
  flags.allocation_parameters = {"exact_total=perhaps"};
  EXPECT_THROW(flags.Build(), CLI::ValidationError);
}

TEST(PolicyFlags, RefuseAnUnknownScorerAndTwoBudgets) {
  CLI::App app;
  PolicyFlags flags;
  flags.AddTo(app);
  EXPECT_THROW(app.parse("--policy h20"), CLI::ParseError);
  EXPECT_THROW(app.parse("--budget 4 --budget-ratio 0.5"), CLI::ParseError);
}

}  // namespace
}  // namespace ebb::cli
