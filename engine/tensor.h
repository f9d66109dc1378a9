// A named tensor as a model file stores it: element type and shape over memory that it does not own.

#ifndef EBB_ENGINE_TENSOR_H_
#define EBB_ENGINE_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ebb {

enum class DType {
  kF32,
  kF16,
  kBf16,
  kQ8_0,
  kQ4_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kIq4Nl,
  kMxfp4
};

// Row-major [rows, cols]; a vector has rows = 1. In GGUF's words cols = ne[0], rows = ne[1]. The memory (a mapped file)
// outlives the view; `data` holds exactly rows * (bytes of one row), checked when the file was opened.
struct TensorView {
  std::string_view name = {};
  DType type = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  std::span<const std::byte> data = {};

  bool empty() const { return data.empty(); }
};

}  // namespace ebb

#endif  // EBB_ENGINE_TENSOR_H_
