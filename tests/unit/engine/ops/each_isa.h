// Every instruction set that this machine can run, for tests that hold all of them to the same bits.

#ifndef EBB_TESTS_UNIT_ENGINE_OPS_EACH_ISA_H_
#define EBB_TESTS_UNIT_ENGINE_OPS_EACH_ISA_H_

#include <functional>
#include <memory>
#include <string>

#include "engine/ops/cpu/dispatch.h"
#include "gtest/gtest.h"
#include "tests/support/test_ops.h"

namespace ebb {

inline std::unique_ptr<Ops> OpsFor(const std::string& isa, int32_t threads = 1, Accuracy accuracy = Accuracy::kExact) {
  return MakeTestOps({.isa = isa, .accuracy = accuracy, .threads = threads});
}

// Calls test(ops) once per instruction set whose bits are those of the others, scalar first.
inline void ForEachIsa(const std::function<void(Ops&)>& test, Accuracy accuracy = Accuracy::kExact) {
  for (const cpu::Kernels* kernels : cpu::AvailableKernels()) {
    if (kernels->sums_apart && accuracy == Accuracy::kFast) continue;
    SCOPED_TRACE(kernels->name);
    test(*OpsFor(kernels->name, 1, accuracy));
  }
}

}  // namespace ebb

#endif  // EBB_TESTS_UNIT_ENGINE_OPS_EACH_ISA_H_
