// The kernels run by the host (emulation.h): what tests compare with the CPU's ops, on any machine.

#ifndef EBB_ENGINE_OPS_GPU_EMULATED_H_
#define EBB_ENGINE_OPS_GPU_EMULATED_H_

#include <cstdint>

#include "engine/ops/gpu/kernels.h"

namespace ebb::gpu {

// REQUIRES: warp is 32 or 64.
const Table& EmulatedTable(int32_t warp);

}  // namespace ebb::gpu

#endif  // EBB_ENGINE_OPS_GPU_EMULATED_H_
