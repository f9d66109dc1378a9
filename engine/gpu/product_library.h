// Products of matrices by a library of the device's maker (blas_lt.h), as block_products.h asks for them.

#ifndef EBB_ENGINE_GPU_PRODUCT_LIBRARY_H_
#define EBB_ENGINE_GPU_PRODUCT_LIBRARY_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gpu/gpu.h"

namespace ebb {

// y [rows][out] = x [rows][in] W [out][in]^T, or y += that: x and W in BF16, one row after another, y in floats, row t
// at y + t * y_stride; sums in floats. x and W are aligned to 256 bytes, y to 64.
struct ProductShape {
  int32_t rows = 0;
  int32_t out = 0;
  int32_t in = 0;
  int64_t y_stride = 0;
  bool add = false;
  auto operator<=>(const ProductShape&) const = default;
};

struct ProductOperands {
  const void* w = nullptr;
  const void* x = nullptr;
  float* y = nullptr;
  void* workspace = nullptr;  // of ProductLibrary::workspace_bytes, aligned to 256 bytes
};

// What a library calls an algorithm: a kernel, and how it cuts the product up. Bytes of its own.
using ProductWay = std::array<std::byte, 64>;

// Used by one thread at a time, on its device, and gone before the device is. What fails says what the library said.
class ProductLibrary {
 public:
  virtual ~ProductLibrary() = default;

  // Its own, and of the file that it was loaded from.
  virtual std::string name() const = 0;
  // Of the device, that it works in: its user's to allocate.
  virtual int64_t workspace_bytes() const = 0;
  // As the library numbers them, for whoever compares two devices.
  virtual std::string Describe(const ProductWay& way) const = 0;

  // For that shape, the one that it thinks fastest first; there may be none.
  virtual absl::StatusOr<std::vector<ProductWay>> Ways(const ProductShape& shape) = 0;

  // In the order of the device's stream. `way` is of that shape, or of one with more rows, and may be no way of this.
  virtual absl::Status Multiply(const ProductShape& shape, const ProductWay& way, const ProductOperands& operands) = 0;
};

using OpenProductLibrary = absl::StatusOr<std::unique_ptr<ProductLibrary>> (*)(const Gpu& gpu);

// Null: the own kernels multiply.
inline absl::StatusOr<std::unique_ptr<ProductLibrary>> NoProductLibrary(const Gpu& /*gpu*/) { return nullptr; }

}  // namespace ebb

#endif  // EBB_ENGINE_GPU_PRODUCT_LIBRARY_H_
