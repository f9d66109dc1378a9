// Products of prompts' blocks by a library, which is fast and promises nothing of the order in which it adds. A session
// is to yield the same bits alone and in company, so nothing is believed of it that was not seen on this device: when a
// model is opened, each shape of its products is tried with random numbers. A way to multiply is used in pieces of
// those sizes alone in which equal rows came out with equal bits wherever they stood, the bits that they have in the
// largest piece, and near the own kernel's; twice, at two alignments; with nothing written beside the piece.
//
//   1200 rows   1024 | 128 | 64   a piece's rows beyond those are multiplied, too, and nobody reads them
//
// That says it of every row of such a piece, as where a row's sum is cut cannot depend on what is in it.

#ifndef EBB_ENGINE_GPU_BLOCK_PRODUCTS_H_
#define EBB_ENGINE_GPU_BLOCK_PRODUCTS_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gpu/gpu.h"
#include "engine/gpu/product_library.h"
#include "engine/ops/gpu/kernels.h"

namespace ebb {

class BlockProducts {
 public:
  // Rows of a piece.
  static constexpr std::array<int32_t, 5> kPieces = {1024, 512, 256, 128, 64};

  // Of the model's products those with BF16 weights and without bias; `w`, `y_stride` and `add` of each say which they
  // are. FAILED_PRECONDITION GPU_PRODUCTS_UNFIT names the product for which no way of the library's was fit; as
  // Gpu::Allocate and Gpu::Wait.
  static absl::StatusOr<BlockProducts> Make(const Gpu& gpu, std::unique_ptr<ProductLibrary> library,
                                            std::span<const gpu::LinearArgs> products);

  // Who multiplies, and of each shape by which way, in pieces of how many rows.
  std::string Describe() const;

  // Of the device, that the library works in.
  int64_t workspace_bytes() const { return workspace_.bytes(); }

  // Of a model that has no such product.
  bool empty() const { return fits_.empty(); }

  // Whether it makes that product.
  bool Takes(const gpu::LinearArgs& args) const;

  // Rows that x and y have room for, where `rows` are multiplied.
  int64_t RoomFor(int64_t rows) const;

  // `x` [RoomFor(rows)][in] are those of `args` in BF16. REQUIRES: it takes it.
  void Multiply(const gpu::LinearArgs& args, const uint16_t* x);

  // What a product since the last call gave instead of a result: UNAVAILABLE GPU_FAULT.
  absl::Status TakeFailure() { return std::exchange(failure_, absl::OkStatus()); }

 private:
  struct Fit {
    ProductWay way = {};
    std::vector<int32_t> pieces = {};  // descending
  };
  explicit BlockProducts(std::unique_ptr<ProductLibrary> library) : library_(std::move(library)) {}

  static ProductShape ShapeOf(const gpu::LinearArgs& args);
  absl::StatusOr<Fit> FindFit(const Gpu& gpu, const ProductShape& shape);

  std::unique_ptr<ProductLibrary> library_;
  GpuMemory workspace_ = {};
  std::map<ProductShape, Fit> fits_ = {};  // of shapes without rows
  absl::Status failure_ = absl::OkStatus();
};

}  // namespace ebb

#endif  // EBB_ENGINE_GPU_BLOCK_PRODUCTS_H_
