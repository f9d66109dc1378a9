// Norms of one row.

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

void LayerNorm(const float* x, const float* weight, const float* bias, float eps, int64_t n, float* y) {
  const int64_t whole = n / 16 * 16;
  const int tail = static_cast<int>(n - whole);
  const Floats count = Splat(static_cast<float>(n));
  Floats sum = Zero();
  for (int64_t i = 0; i < whole; i += 16) sum = sum + Load(x + i);
  sum = sum + LoadFirst(x + whole, tail);
  const Floats mean = Splat(Sum(sum)) / count;

  Floats squares = Zero();
  for (int64_t i = 0; i < whole; i += 16) {
    const Floats a = Load(x + i) - mean;
    squares = Fma(a, a, squares);
  }
  // What lies past the row is no part of it: it must not count as minus the mean.
  float rest[16] = {};
  StoreFirst(LoadFirst(x + whole, tail) - mean, rest, tail);
  const Floats last = Load(rest);
  squares = Fma(last, last, squares);

  const Floats scale = Splat(1.0F) / Sqrt(Splat(Sum(squares)) / count + Splat(eps));
  for (int64_t i = 0; i < whole; i += 16) {
    Store(Fma((Load(x + i) - mean) * scale, Load(weight + i), Load(bias + i)), y + i);
  }
  StoreFirst(Fma(last * scale, LoadFirst(weight + whole, tail), LoadFirst(bias + whole, tail)), y + whole, tail);
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
