// Runs a case on both widths of warps, with threads and blocks taking turns in both orders, and holds all to the same
// bits: a sum whose order follows the hardware's, or a barrier that was forgotten, shows as another number. On a device
// it runs twice.

#ifndef EBB_TESTS_UNIT_ENGINE_OPS_GPU_EACH_TARGET_H_
#define EBB_TESTS_UNIT_ENGINE_OPS_GPU_EACH_TARGET_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/ops/gpu/emulated.h"
#include "engine/ops/gpu/emulation.h"
#include "tests/support/gpu_target.h"

namespace ebb::gpu {

// A sanitizer makes the emulation several times as slow.
constexpr int Cases(int count) {
#ifdef EBB_SANITIZED
  return (count + 7) / 8;
#else
  return count;
#endif
}

template <typename T>
bool BitsAreEqual(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// What run(table), a vector, yields.
template <typename Run>
auto OnEachTarget(const Run& run) {
  if (const Table* const device = DeviceUnderTest(); device != nullptr) {
    const auto result = run(*device);
    EXPECT_TRUE(BitsAreEqual(run(*device), result)) << "a second time";
    return result;
  }
  const auto result = run(EmulatedTable(32));
  for (const int32_t warp : {32, 64}) {
    for (const auto order : {emulation::Order::kAscending, emulation::Order::kDescending}) {
      if (warp == 32 && order == emulation::Order::kAscending) continue;  // that was the first
      emulation::SetOrder(order);
      EXPECT_TRUE(BitsAreEqual(run(EmulatedTable(warp)), result))
          << "warps of " << warp << (order == emulation::Order::kDescending ? ", backwards" : "");
    }
  }
  emulation::SetOrder(emulation::Order::kAscending);
  return result;
}

}  // namespace ebb::gpu

#endif  // EBB_TESTS_UNIT_ENGINE_OPS_GPU_EACH_TARGET_H_
