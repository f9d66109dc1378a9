// A random weight matrix as a model file has it, as a device reads it, and as numbers.

#ifndef EBB_TESTS_UNIT_ENGINE_OPS_GPU_TEST_MATRIX_H_
#define EBB_TESTS_UNIT_ENGINE_OPS_GPU_TEST_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/gpu/device_matrix.h"
#include "engine/model/k_block.h"
#include "engine/model/quantization.h"
#include "policies/check.h"
#include "policies/hash_random.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/gpu_target.h"
#include "tests/support/test_lane.h"

namespace ebb::gpu {

class TestMatrix {
 public:
  TestMatrix(DType type, int64_t rows, int64_t cols, uint64_t seed) : rows_(rows), cols_(cols) {
    const std::vector<std::byte> bytes = IsKType(type) ? RandomKBlocks(type, seed, rows * cols)
                                                       : EncodeValues(type, RandomFloats(seed, 77, rows * cols));
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
            .scales = layout_.scales.empty() ? nullptr : mirror.In(layout_.scales),
            .supers = layout_.supers.empty() ? nullptr : mirror.In(layout_.supers),
            .upper = layout_.upper.empty() ? nullptr : mirror.In(layout_.upper)};
  }
  float at(int64_t row, int64_t column) const { return numbers_[row * cols_ + column]; }

 private:
  // Any bytes are a block, but for those of its scales, which are to be small numbers.
  static std::vector<std::byte> RandomKBlocks(DType type, uint64_t seed, int64_t values) {
    HashRandom random(seed, 78);
    std::vector<std::byte> bytes(RowBytes(type, values));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Next64() >> 56);
    for (size_t at = 0; at < bytes.size(); at += BlockBytes(type)) {
      const uint16_t d = F16FromFloat(static_cast<float>(random.Uniform(1, 99)) * 1e-4F);
      const uint16_t dmin = F16FromFloat(static_cast<float>(random.Uniform(1, 99)) * 1e-3F);
      std::memcpy(&bytes[at + (type == DType::kQ6_K ? 208 : 0)], &d, 2);
      if (type != DType::kQ6_K) std::memcpy(&bytes[at + 2], &dmin, 2);
    }
    return bytes;
  }

  int64_t rows_, cols_;
  DeviceLayout layout_ = {};
  std::vector<float> numbers_ = {};
};

}  // namespace ebb::gpu

#endif  // EBB_TESTS_UNIT_ENGINE_OPS_GPU_TEST_MATRIX_H_
