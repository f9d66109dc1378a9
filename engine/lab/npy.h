// Reads a matrix of float32 from a NumPy file: version 1.0, little-endian, C order, two dimensions.

#ifndef EBB_ENGINE_LAB_NPY_H_
#define EBB_ENGINE_LAB_NPY_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ebb::lab {

struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> values = {};  // [rows, cols]

  std::span<const float> row(int64_t r) const {
    return std::span(values).subspan(static_cast<size_t>(r * cols), static_cast<size_t>(cols));
  }
};

// Errors name the file: NOT_FOUND where it cannot be read; DATA_LOSS where it is of another kind, or its size is not
// what its header says.
absl::StatusOr<Matrix> ReadNpy(const std::string& path);

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_NPY_H_
