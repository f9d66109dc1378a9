// A token and its logit as one number. Candidates of a row differ and compare in the order of choosing, the larger
// logit first and of equal ones the smaller token, so that it does not matter in which order they are compared.
//
//   63                     32 31                      0
//   | logit, in the order of | 2^32 - 1 - token        |      NaN ranks as minus infinity, -0 as 0
//   | floats as integers     |                         |
//
// None is 0.

#ifndef EBB_ENGINE_OPS_GPU_CANDIDATE_H_
#define EBB_ENGINE_OPS_GPU_CANDIDATE_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"

namespace ebb::gpu::EBB_GPU_TARGET {

EBB_DEVICE uint64_t CandidateOf(float logit, int32_t token) {
  const uint32_t bits = BitsOf(logit != logit ? MinusInfinity() : logit + 0.0F);
  const uint64_t rank = bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
  return rank << 32 | (0xFFFFFFFFU - static_cast<uint32_t>(token));
}

EBB_DEVICE int32_t TokenOf(uint64_t candidate) {
  return static_cast<int32_t>(0xFFFFFFFFU - static_cast<uint32_t>(candidate));
}

EBB_DEVICE float LogitOf(uint64_t candidate) {
  const auto rank = static_cast<uint32_t>(candidate >> 32);
  return FloatOf(rank >> 31 != 0 ? rank & 0x7FFFFFFFU : ~rank);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_CANDIDATE_H_
