// RMS norm of one row.

#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/vec.h"

namespace ebb::cpu::EBB_KERNEL_ISA {

void RmsNorm(const float* x, const float* weight, float eps, int64_t n, float* y) {
  const int64_t whole = n / 16 * 16;
  const int tail = static_cast<int>(n - whole);
  Floats squares = Zero();
  for (int64_t i = 0; i < whole; i += 16) {
    const Floats a = Load(x + i);
    squares = Fma(a, a, squares);
  }
  const Floats last = LoadFirst(x + whole, tail);
  squares = Fma(last, last, squares);

  const Floats mean = Splat(Sum(squares)) / Splat(static_cast<float>(n));
  const Floats scale = Splat(1.0F) / Sqrt(mean + Splat(eps));
  for (int64_t i = 0; i < whole; i += 16) {
    Store(Load(x + i) * scale * Load(weight + i), y + i);
  }
  StoreFirst(last * scale * LoadFirst(weight + whole, tail), y + whole, tail);
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
