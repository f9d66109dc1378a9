#include "tests/support/gpu_target.h"

#include <utility>

#include "engine/ops/gpu/emulated.h"

namespace ebb::gpu {
namespace {

const Table* device_under_test = nullptr;

}  // namespace

void TestOnDevice(const Table& table) { device_under_test = &table; }
const Table* DeviceUnderTest() { return device_under_test; }

const Table& TableUnderTest(int32_t warp) {
  return device_under_test != nullptr ? *device_under_test : EmulatedTable(warp);
}

Mirror::Mirror(const Table& table) {
  auto gpu = Gpu::Open(table, 0);
  EBB_CHECK(gpu.ok());
  gpu_ = *std::move(gpu);
}

}  // namespace ebb::gpu
