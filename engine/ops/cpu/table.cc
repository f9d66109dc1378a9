// The table of one instruction set. Those that only add dot products to another have theirs from it (dispatch.cc).

#include "engine/ops/cpu/kernels.h"

namespace ebb::cpu::EBB_KERNEL_ISA {

#define EBB_NAME(isa) #isa
#define EBB_NAME_OF(isa) EBB_NAME(isa)

extern const Kernels kKernels;
constinit const Kernels kKernels = {
    .name = EBB_NAME_OF(EBB_KERNEL_ISA),
    .linear_exact = LinearExact,
    .linear_fast = LinearFast,
    .round_to_bytes = RoundToBytes,
    .round_to_bf16 = RoundToBf16,
    .attend = Attend,
    .merge = Merge,
    .store = Store,
    .read = Read,
    .angles = Angles,
    .rms_norm = RmsNorm,
    .layer_norm = LayerNorm,
    .activate = Activate,
    .soft_cap = SoftCap,
    .softmax = Softmax,
};

}  // namespace ebb::cpu::EBB_KERNEL_ISA
