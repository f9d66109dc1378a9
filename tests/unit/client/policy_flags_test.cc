#include "client/cli/policy_flags.h"

#include <gtest/gtest.h>

#include "absl/strings/str_split.h"

namespace ebb::cli {
namespace {

bool Stops(Program& app, const std::string& line) { return app.parse(absl::StrSplit(line, ' ')).has_value(); }

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
  Program app;
  PolicyFlags flags;
  flags.AddTo(app);
  ASSERT_FALSE(Stops(
      app,
      "--policy h2o --budget 256 --overflow 32 --slack 16 --max-drop 8 --sinks 2 --recent 64 --positions compacted "
      "--kv-dtype f32 --rope-cache rk"));
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
  EXPECT_THROW(flags.Build(), UsageError);
}

TEST(PolicyFlags, ChooseAnAllocationAndItsParameters) {
  Program app;
  PolicyFlags flags;
  flags.AddTo(app);
  ASSERT_FALSE(Stops(
      app, "--policy snapkv --allocation pyramid --allocation-param beta=14 --allocation-param exact_total=true"));
  ASSERT_TRUE(flags.given());
  const v1::PolicySpec spec = flags.Build();
  EXPECT_EQ(spec.pyramid().beta(), 14U);
  EXPECT_TRUE(spec.pyramid().exact_total());
  EXPECT_EQ(Summary(spec), "snapkv, pyramid beta=14 exact_total=true");

  flags.allocation_parameters = {"gamma=1"};
  EXPECT_THROW(flags.Build(), UsageError);
  flags.allocation_parameters = {"exact_total=perhaps"};
  EXPECT_THROW(flags.Build(), UsageError);
}

TEST(PolicyFlags, RefuseAnUnknownScorerAndTwoBudgets) {
  Program app;
  PolicyFlags flags;
  flags.AddTo(app);
  EXPECT_TRUE(Stops(app, "--policy h20"));
  EXPECT_TRUE(Stops(app, "--budget 4 --budget-ratio 0.5"));
}

}  // namespace
}  // namespace ebb::cli
