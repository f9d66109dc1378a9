#include "engine/ops/gpu/emulated.h"

#include "policies/check.h"

namespace ebb::gpu {

namespace emulated32 {
const Table& TableOfTarget();
}
namespace emulated64 {
const Table& TableOfTarget();
}

const Table& EmulatedTable(int32_t warp) {
  EBB_CHECK(warp == 32 || warp == 64);
  return warp == 32 ? emulated32::TableOfTarget() : emulated64::TableOfTarget();
}

}  // namespace ebb::gpu
