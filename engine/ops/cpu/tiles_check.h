// Whether products of tiles are what they should be, on a processor where they may never have run before.

#ifndef EBB_ENGINE_OPS_CPU_TILES_CHECK_H_
#define EBB_ENGINE_OPS_CPU_TILES_CHECK_H_

#include "engine/ops/cpu/kernels.h"

namespace ebb::cpu {

using LinearKernel = decltype(Kernels::linear_fast);

// Whether `by_tiles` gives the bits of `in_loops` for one group of weights of `type`, 256 columns and 33 rows: two
// tiles of rows, and one row that is left over. Takes well below a millisecond but for the loops' time.
bool TilesAreRight(Element type, LinearKernel by_tiles, LinearKernel in_loops);

}  // namespace ebb::cpu

#endif  // EBB_ENGINE_OPS_CPU_TILES_CHECK_H_
