// cuBLASLt and hipBLASLt, whose interfaces are one but for names and a few numbers. Loaded where they are installed:
// neither is needed to build, and neither travels with the program.

#ifndef EBB_ENGINE_GPU_BLAS_LT_H_
#define EBB_ENGINE_GPU_BLAS_LT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/gpu/gpu.h"
#include "engine/gpu/product_library.h"

namespace ebb {

// The library of that device's maker; `gpu` outlives it. UNAVAILABLE GPU_PRODUCTS_UNAVAILABLE names the files that were
// looked for and what each lacks; as Gpu::Use.
absl::StatusOr<std::unique_ptr<ProductLibrary>> OpenBlasLt(const Gpu& gpu);

}  // namespace ebb

#endif  // EBB_ENGINE_GPU_BLAS_LT_H_
