// How a block of kNormThreads shares a row whose norm it makes: thread i has vectors i, i + 512, ... of four
// components, the first kHeld of them in registers, asked for at once; what a longer row has beyond is read when it is
// needed.

#ifndef EBB_ENGINE_OPS_GPU_HELD_ROW_H_
#define EBB_ENGINE_OPS_GPU_HELD_ROW_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/numbers.h"

namespace ebb::gpu::EBB_GPU_TARGET {

inline constexpr int32_t kNormThreads = 512;
inline constexpr int32_t kNormFew = 2;  // vectors of a thread, of rows up to kNormFewNumbers
inline constexpr int32_t kNormFewNumbers = kNormFew * 4 * kNormThreads;

// Of a row of so many vectors; past its end `held` stays as it is.
template <int32_t kHeld>
EBB_DEVICE void Hold(const Vector16* row, int32_t vectors, Vector16 (&held)[kHeld]) {
  EBB_UNROLL
  for (int32_t j = 0; j < kHeld; ++j) {
    const int32_t i = ThreadIndex() + j * kNormThreads;
    if (i < vectors) held[j] = row[i];
  }
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_HELD_ROW_H_
