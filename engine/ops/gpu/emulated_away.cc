// In place of emulated.cc in a program that is carried to a device (EBB_STATIC): a device runs there what tests launch.

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "engine/ops/gpu/emulated.h"

namespace ebb::gpu {

const Table& EmulatedTable(int32_t warp) {
  std::fprintf(
      stderr,
      "warps of %d: this program was built with EBB_STATIC, and carries no emulation; one built without it does\n",
      warp);
  std::abort();
}

}  // namespace ebb::gpu
