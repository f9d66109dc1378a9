// Curves, element by element: activations, gated or not, the soft cap, and softmax of one row.

#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/vec.h"
#include "engine/ops/cpu/vec_math.h"

namespace ebb::cpu::EBB_KERNEL_ISA {
namespace {

EBB_INLINE Floats Silu(Floats a) { return a / (Splat(1.0F) + Exp(Zero() - a)); }

// a (1 + tanh(t)) / 2 = a / (1 + e^(-2 t)) with t = sqrt(2 / pi) (a + 0.044715 a^3).
EBB_INLINE Floats Gelu(Floats a) {
  const Floats t = a * Fma(a * a, Splat(0.044715F), Splat(1.0F));
  return a / (Splat(1.0F) + Exp(t * Splat(-1.5957691216F)));
}

// The first argument wins only where it is larger: what is not a number is not.
EBB_INLINE Floats Relu(Floats a) { return Max(Zero(), a); }

template <typename Curve>
EBB_INLINE void ForEach(const float* x, const float* up, int64_t n, float* y, const Curve& curve) {
  const int64_t whole = n / 16 * 16;
  const int tail = static_cast<int>(n - whole);
  if (up == nullptr) {
    for (int64_t i = 0; i < whole; i += 16) Store(curve(Load(x + i)), y + i);
    StoreFirst(curve(LoadFirst(x + whole, tail)), y + whole, tail);
    return;
  }
  for (int64_t i = 0; i < whole; i += 16) Store(curve(Load(x + i)) * Load(up + i), y + i);
  StoreFirst(curve(LoadFirst(x + whole, tail)) * LoadFirst(up + whole, tail), y + whole, tail);
}

}  // namespace

void Activate(Curve curve, const float* x, const float* up, int64_t n, float* y) {
  switch (curve) {
    case Curve::kSilu:
      return ForEach(x, up, n, y, Silu);
    case Curve::kGelu:
      return ForEach(x, up, n, y, Gelu);
    case Curve::kRelu:
      return ForEach(x, up, n, y, Relu);
  }
}

void SoftCap(float cap, int64_t n, float* x) {
  ForEach(
      x, nullptr, n, x, [cap](Floats a) __attribute__((always_inline)) { return Capped(a, Splat(cap)); });
}

void Softmax(float largest, int64_t n, float* x) {
  float total = 0;
  ForEach(
      x, nullptr, n, x, [&](Floats a) __attribute__((always_inline)) { return Exp(a - Splat(largest)); });
  for (int64_t i = 0; i < n; ++i) total = total + x[i];
  ForEach(
      x, nullptr, n, x, [&](Floats a) __attribute__((always_inline)) { return a / Splat(total); });
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
