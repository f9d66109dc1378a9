// Which instruction set the kernels use: the best that the processor has, unless told otherwise.

#ifndef EBB_ENGINE_OPS_CPU_DISPATCH_H_
#define EBB_ENGINE_OPS_CPU_DISPATCH_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/ops/cpu/kernels.h"

namespace ebb::cpu {

// Instruction sets that this build has and this processor can run, slowest first: "scalar", "avx2", "avx2vnni" (dot
// products of bytes), "avx512", "avx512vnni", "avx512bf16" (of BF16 pairs, too; before "avx512vnni" where it is
// slower). "avx512amx" (products of tiles of bytes) and "avx512amxbf16" (of BF16, too) are never last.
std::vector<const Kernels*> AvailableKernels();

// The kernels named `isa`, or the fastest available where it is empty. INVALID_ARGUMENT ISA_UNAVAILABLE names what is
// available.
absl::StatusOr<const Kernels*> ChooseKernels(std::string_view isa);

}  // namespace ebb::cpu

#endif  // EBB_ENGINE_OPS_CPU_DISPATCH_H_
