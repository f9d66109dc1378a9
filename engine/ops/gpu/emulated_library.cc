// The emulation as a library that is loaded at run time as a device's is: a server computes on it where there is no
// device, in tests.

#include "engine/ops/gpu/kernels.h"

namespace ebb::gpu::emulated32 {
const Table& TableOfTarget();
}  // namespace ebb::gpu::emulated32

extern "C" __attribute__((visibility("default"))) const ebb::gpu::Table* ebb_gpu_table() {
  return &ebb::gpu::emulated32::TableOfTarget();
}
