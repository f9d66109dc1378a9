// SwiGLU: silu(gate) * up, with silu(a) = a / (1 + e^-a).

#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/vec.h"
#include "engine/ops/cpu/vec_math.h"

namespace ebb::cpu::EBB_KERNEL_ISA {
namespace {

EBB_INLINE Floats Silu(Floats a) { return a / (Splat(1.0F) + Exp(Zero() - a)); }

}  // namespace

void SwiGlu(const float* gate, const float* up, int64_t n, float* y) {
  const int64_t whole = n / 16 * 16;
  for (int64_t i = 0; i < whole; i += 16) {
    Store(Silu(Load(gate + i)) * Load(up + i), y + i);
  }
  const int tail = static_cast<int>(n - whole);
  StoreFirst(Silu(LoadFirst(gate + whole, tail)) * LoadFirst(up + whole, tail), y + whole, tail);
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
