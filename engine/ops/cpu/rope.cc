// Cosines and sines of a tile of positions.

#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/vec.h"
#include "engine/ops/cpu/vec_math.h"

namespace ebb::cpu::EBB_KERNEL_ISA {

// The faster way where every position is near. A lane's bits depend on its own position only.
void Angles(const RopeArgs& rope, const int32_t* position, float* angles) {
  const Ints at = Load(position);
  const Floats as_float = ToFloats(at);
  const Mask far = Greater(at, Splat(kNearPositions - 1));
  const bool any_far = Largest(as_float) >= static_cast<float>(kNearPositions);
  for (int32_t i = 0; i < rope.rotary_dims / 2; ++i) {
    HalfTurns angle = Near(as_float, Splat(rope.half_turns[2 * i]), Splat(rope.half_turns[2 * i + 1]));
    if (any_far) {
      const HalfTurns exact = FromPhase(Phase(at, rope.turns[i]));
      angle = {Select(far, exact.rest, angle.rest), Select(far, exact.odd, angle.odd)};
    }
    const CosSin turned = Turn(angle);
    Store(turned.cos, angles + 32 * i);
    Store(turned.sin, angles + 32 * i + 16);
  }
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
