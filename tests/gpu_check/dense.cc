// What a device's own library of products makes of them, in a process of its own: what a library from elsewhere does to
// that is lost with it alone.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/gpu/blas_lt.h"
#include "engine/gpu/product_library.h"
#include "policies/status.h"
#include "tests/gpu_check/bench.h"

namespace ebb::gpu_check {

absl::StatusOr<Peers> DenseRate(Bench& b) {
  EBB_ASSIGN(const std::unique_ptr<ProductLibrary> library, OpenBlasLt(*b.gpu));
  constexpr int64_t kSide = kDenseSide;
  constexpr int64_t kNumbers = kSide * kSide;
  EBB_ASSIGN(const GpuMemory from, b.gpu->Allocate(2 * kNumbers * 2, "what is multiplied"));
  EBB_ASSIGN(const GpuMemory to, b.gpu->Allocate(kNumbers * 4, "the product"));
  b.table.random({.type = gpu::Element::kBf16, .values = from.as<void>(), .n = 2 * kNumbers, .seed = 1},
                 b.gpu->stream());
  EBB_ASSIGN(const GpuMemory workspace, b.gpu->Allocate(library->workspace_bytes(), "the library's workspace"));
  const std::vector<float> nothing(kSide);
  float* const last_row = to.as<float>() + kNumbers - kSide;
  EBB_TRY(b.gpu->CopyIn(std::span<const float>(nothing), last_row));

  const ProductShape shape = {.rows = kSide, .out = kSide, .in = kSide, .y_stride = kSide};
  EBB_ASSIGN(const std::vector<ProductWay> ways, library->Ways(shape));
  if (ways.empty()) return absl::InternalError("the library has no way to multiply on this device");
  double fastest = 0;  // of all its ways, and not the one that it guesses
  for (const ProductWay& way : ways) {
    absl::Status status = absl::OkStatus();
    const auto multiply = [&](int) {
      const absl::Status now = library->Multiply(shape, way,
                                                 {.w = from.as<uint16_t>() + kNumbers,
                                                  .x = from.as<void>(),
                                                  .y = to.as<float>(),
                                                  .workspace = workspace.as<void>()});
      if (!now.ok()) status = now;
    };
    multiply(0);  // it loads its kernels, which a recording must not
    EBB_TRY(b.gpu->Wait());
    if (!status.ok()) continue;
    EBB_ASSIGN(const double seconds, SecondsOf(b, 4, multiply));
    EBB_TRY(status);
    fastest = std::max(fastest, 2.0 * kSide * kSide * kSide / seconds);
  }
  std::vector<float> last(kSide);
  EBB_TRY(b.gpu->CopyOut(last_row, std::span(last)));
  EBB_TRY(b.gpu->Wait());
  if (std::ranges::all_of(last, [](float number) { return number == 0; })) {
    return absl::InternalError("the library wrote nothing");
  }
  return Peers{{"cublaslt", fastest}};
}

}  // namespace ebb::gpu_check
