// The weight of a token in a draw. The host's sampler and a device's kernels share it, and give the same bits: it says
// nothing but additions, products and one division of floats, each of which IEEE 754 rounds in one way, and every
// compiler of ours is told to contract none of them.

#ifndef EBB_ENGINE_OPS_GPU_DRAW_WEIGHT_H_
#define EBB_ENGINE_OPS_GPU_DRAW_WEIGHT_H_

#include <cstdint>

#include "engine/ops/gpu/anywhere.h"

namespace ebb::gpu {

inline constexpr float kNoWeight = -87.0F;  // e to this is the smallest normal float, 2^-126; below, a weight is zero

// exp((logit - best) / temperature) within 2 units in the last place, without branches. Distances from the best logit,
// so that no temperature makes two of them infinite and thereby equal. Cody-Waite: x = n ln 2 + r, and e^r is Cephes'
// expf. NaN weighs nothing. REQUIRES: logit is not above best, temperature > 0.
EBB_ANYWHERE inline float DrawWeight(float logit, float best, float temperature) {
  const float scaled = (logit - best) / temperature;
  const float distance = logit == best ? 0.0F : scaled;
  const float x = distance > kNoWeight ? distance : kNoWeight;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves no room for a fraction
  const float n = (x * 1.44269504F + kRound) - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const float power = __builtin_bit_cast(float, (static_cast<int32_t>(n) + 127) << 23);
  return distance > kNoWeight ? p * power : 0.0F;
}

}  // namespace ebb::gpu

#endif  // EBB_ENGINE_OPS_GPU_DRAW_WEIGHT_H_
