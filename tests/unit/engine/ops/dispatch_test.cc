#include "engine/ops/cpu/dispatch.h"

#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/status.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/engine/ops/each_isa.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

// Sets EBB_ISA for the life of the object.
class WithEnvironment {
 public:
  explicit WithEnvironment(const char* isa) { setenv("EBB_ISA", isa, 1); }
  ~WithEnvironment() { unsetenv("EBB_ISA"); }
};

TEST(Dispatch, ScalarIsAlwaysThereAndTheFastestIsTheDefault) {
  const auto available = cpu::AvailableKernels();
  ASSERT_FALSE(available.empty());
  EXPECT_STREQ(available.front()->name, "scalar");
  const auto chosen = cpu::ChooseKernels("");
  ASSERT_THAT(chosen, IsOk());
  EXPECT_EQ(*chosen, available.back());
}

TEST(Dispatch, GivesWhatIsAskedFor) {
  for (const cpu::Kernels* kernels : cpu::AvailableKernels()) {
    const auto chosen = cpu::ChooseKernels(kernels->name);
    ASSERT_THAT(chosen, IsOk());
    EXPECT_EQ(*chosen, kernels);
    EXPECT_EQ(OpsFor(kernels->name)->fingerprint(), std::string(kernels->name) + " exact");
  }
}

TEST(Dispatch, AnInstructionSetThatIsNotHereIsRefusedWithTheOnesThatAre) {
  const auto chosen = cpu::ChooseKernels("sve");
  EXPECT_THAT(chosen, IsRefusal(absl::StatusCode::kInvalidArgument, "ISA_UNAVAILABLE", ""));
  EXPECT_THAT(std::string(chosen.status().message()), HasSubstr("sve"));
  EXPECT_THAT(std::string(chosen.status().message()), HasSubstr("available: scalar"));
}

TEST(MakeCpuOps, TakesTheEnvironmentUnlessTold) {
  const WithEnvironment isa("scalar");
  EXPECT_EQ(OpsFor("")->fingerprint(), "scalar exact");
  const std::string best = cpu::AvailableKernels().back()->name;
  EXPECT_EQ(OpsFor(best)->fingerprint(), best + " exact");
}

TEST(MakeCpuOps, RefusesAnEnvironmentThatNamesNoInstructionSet) {
  const WithEnvironment isa("quantum");
  EXPECT_THAT(MakeCpuOps({}), IsRefusal(absl::StatusCode::kInvalidArgument, "ISA_UNAVAILABLE", ""));
}

TEST(MakeCpuOps, RefusesANumberOfThreadsOutOfRange) {
  for (const int32_t threads : {-1, 0, 257}) {
    EXPECT_THAT(MakeCpuOps({.threads = threads}),
                IsRefusal(absl::StatusCode::kInvalidArgument, "THREADS_OUT_OF_RANGE", "threads"));
  }
}

}  // namespace
}  // namespace ebb
