// Ops that the machine can make, or the test fails.

#ifndef EBB_TESTS_SUPPORT_TEST_OPS_H_
#define EBB_TESTS_SUPPORT_TEST_OPS_H_

#include <gmock/gmock.h>

#include <memory>
#include <utility>

#include "engine/ops/cpu/ops_cpu.h"
#include "tests/support/status_matchers.h"

namespace ebb {

inline std::unique_ptr<Ops> MakeTestOps(const CpuOptions& options = {}) {
  auto ops = MakeCpuOps(options);
  EXPECT_THAT(ops, IsOk());
  return *std::move(ops);
}

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_TEST_OPS_H_
