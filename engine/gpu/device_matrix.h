// A tensor of the model file in the form in which a device reads weights (ops/gpu/kernels.h, Matrix).

#ifndef EBB_ENGINE_GPU_DEVICE_MATRIX_H_
#define EBB_ENGINE_GPU_DEVICE_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gpu/gpu.h"
#include "engine/gpu/staged_copies.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/tensor.h"

namespace ebb {

// The host's copy, on its way.
struct DeviceLayout {
  gpu::Element type = gpu::Element::kF32;
  std::vector<std::byte> values = {};
  std::vector<uint16_t> scales = {};  // empty unless quantised
  std::vector<uint32_t> supers = {};  // of K types
  std::vector<uint32_t> upper = {};   // of Q5_K and Q6_K

  int64_t bytes() const {
    return std::ssize(values) + 2 * std::ssize(scales) + 4 * std::ssize(supers) + 4 * std::ssize(upper);
  }
};

// The same numbers, bit for bit. FAILED_PRECONDITION UNSUPPORTED_TENSOR_TYPE names the tensor: another K type than
// Q4_K, Q5_K and Q6_K, or rows that are no whole number of kWeightBlock columns.
absl::StatusOr<DeviceLayout> ToDeviceLayout(const TensorView& tensor);

// Bytes that the layout will have, without making it. As ToDeviceLayout.
absl::StatusOr<int64_t> DeviceBytes(const TensorView& tensor);

// A weight matrix on a device.
class DeviceMatrix {
 public:
  // Whole when the stream was waited for. As ToDeviceLayout and Gpu::Allocate.
  static absl::StatusOr<DeviceMatrix> Upload(StagedCopies& copies, const TensorView& tensor);

  // Random numbers, made on the device, to measure with: of BF16 such as keep what they are multiplied with at its
  // size, of quantised types any codes with small scales. REQUIRES: BF16 or quantised; of K types whole super-blocks.
  static absl::StatusOr<DeviceMatrix> Random(const Gpu& gpu, int32_t rows, int32_t cols, uint64_t seed,
                                             gpu::Element type = gpu::Element::kBf16);

  const gpu::Matrix& matrix() const { return matrix_; }
  int64_t bytes() const { return values_.bytes() + scales_.bytes() + supers_.bytes() + upper_.bytes(); }

 private:
  GpuMemory values_ = {}, scales_ = {}, supers_ = {}, upper_ = {};
  gpu::Matrix matrix_ = {};
};

}  // namespace ebb

#endif  // EBB_ENGINE_GPU_DEVICE_MATRIX_H_
