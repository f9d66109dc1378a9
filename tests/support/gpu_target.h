// The kernels that tests of the GPU run: the emulation's, or a device's in the program that checks one
// (tests/gpu_check).

#ifndef EBB_TESTS_SUPPORT_GPU_TARGET_H_
#define EBB_TESTS_SUPPORT_GPU_TARGET_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/gpu/gpu.h"
#include "engine/ops/gpu/kernels.h"
#include "policies/check.h"

namespace ebb::gpu {

// All tests from now on run on `table`, a device's, which outlives them.
void TestOnDevice(const Table& table);
// Null where tests run in the emulation.
const Table* DeviceUnderTest();

// The device's table, or the emulation's with warps of 32 or 64.
const Table& TableUnderTest(int32_t warp);

// A test's vectors where kernels reach them: memory of the device that goes with this object. A device that fails ends
// the program.
class Mirror {
 public:
  explicit Mirror(const Table& table);

  Stream stream() const { return gpu_->stream(); }

  // A copy of `from` on the device.
  template <typename T>
  T* In(const std::vector<T>& from) {
    auto memory = gpu_->Upload(std::span<const T>(from), "a test's numbers");
    EBB_CHECK(memory.ok() && gpu_->Wait().ok());
    held_.push_back(*std::move(memory));
    return held_.back().template as<T>();
  }
  // `to` becomes what lies there, once all that was launched is done.
  template <typename T>
  void Out(const T* from, std::vector<T>& to) const {
    EBB_CHECK(gpu_->CopyOut(from, std::span(to)).ok() && gpu_->Wait().ok());
  }

 private:
  std::unique_ptr<Gpu> gpu_;
  std::vector<GpuMemory> held_ = {};  // goes before the device does
};

}  // namespace ebb::gpu

#endif  // EBB_TESTS_SUPPORT_GPU_TARGET_H_
