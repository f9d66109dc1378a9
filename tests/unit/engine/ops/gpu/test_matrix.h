// A random weight matrix as a model file has it, as a device reads it, and as numbers.

#ifndef EBB_TESTS_UNIT_ENGINE_OPS_GPU_TEST_MATRIX_H_
#define EBB_TESTS_UNIT_ENGINE_OPS_GPU_TEST_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/gpu/device_matrix.h"
#include "engine/model/quantization.h"
#include "policies/check.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/gpu_target.h"
#include "tests/support/test_lane.h"

namespace ebb::gpu {

class TestMatrix {
 public:
  TestMatrix(DType type, int64_t rows, int64_t cols, uint64_t seed) : rows_(rows), cols_(cols) {
    const std::vector<std::byte> bytes = EncodeValues(type, RandomFloats(seed, 77, rows * cols));
    absl::StatusOr<DeviceLayout> layout =
        ToDeviceLayout({.name = "w", .type = type, .rows = rows, .cols = cols, .data = bytes});
    EBB_CHECK(layout.ok());
    layout_ = *std::move(layout);
    numbers_.resize(rows * cols);
    for (int64_t row = 0; row < rows; ++row) {
      DequantizeRow(type, bytes.data() + row * RowBytes(type, cols), cols, numbers_.data() + row * cols);
    }
  }

  Matrix On(Mirror& mirror) const {
    return {.type = layout_.type,
            .rows = static_cast<int32_t>(rows_),
            .cols = static_cast<int32_t>(cols_),
            .values = mirror.In(layout_.values),
            .scales = layout_.scales.empty() ? nullptr : mirror.In(layout_.scales)};
  }
  float at(int64_t row, int64_t column) const { return numbers_[row * cols_ + column]; }

 private:
  int64_t rows_, cols_;
  DeviceLayout layout_ = {};
  std::vector<float> numbers_ = {};
};

}  // namespace ebb::gpu

#endif  // EBB_TESTS_UNIT_ENGINE_OPS_GPU_TEST_MATRIX_H_
