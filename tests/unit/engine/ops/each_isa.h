// Every instruction set that this machine can run, for tests that hold all of them to the same bits.

#ifndef EBB_TESTS_UNIT_ENGINE_OPS_EACH_ISA_H_
#define EBB_TESTS_UNIT_ENGINE_OPS_EACH_ISA_H_

#include <functional>
#include <memory>
#include <string>

#include "engine/ops/cpu/dispatch.h"
#include "engine/ops/cpu/ops_cpu.h"
#include "gtest/gtest.h"

namespace ebb {

inline std::unique_ptr<Ops> OpsFor(const std::string& isa, int32_t threads = 1, Accuracy accuracy = Accuracy::kExact) {
  auto ops = MakeCpuOps({.isa = isa, .accuracy = accuracy, .threads = threads});
  EXPECT_TRUE(ops.ok()) << ops.status();
  return *std::move(ops);
}

// Calls test(ops) once per instruction set, scalar first.
inline void ForEachIsa(const std::function<void(Ops&)>& test, Accuracy accuracy = Accuracy::kExact) {
  for (const cpu::Kernels* kernels : cpu::AvailableKernels()) {
    SCOPED_TRACE(kernels->name);
    test(*OpsFor(kernels->name, 1, accuracy));
  }
}

}  // namespace ebb

#endif  // EBB_TESTS_UNIT_ENGINE_OPS_EACH_ISA_H_
