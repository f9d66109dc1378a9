// Cosines and sines of a tile of positions.

#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/vec.h"
#include "engine/ops/cpu/vec_math.h"

namespace ebb::cpu::EBB_KERNEL_ISA {

void Angles(const RopeArgs& rope, const int32_t* position, float* angles) {
  const Ints at = Load(position);
  for (int32_t i = 0; i < rope.rotary_dims / 2; ++i) {
    const CosSin turned = Turn(Phase(at, rope.turns[i]));
    Store(turned.cos, angles + 32 * i);
    Store(turned.sin, angles + 32 * i + 16);
  }
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
