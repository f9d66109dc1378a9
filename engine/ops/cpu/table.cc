// The table of one instruction set. One that only adds dot products to another has linear_fast.cc of its own, and the
// rest of the other: EBB_KERNEL_BASE.

#include "engine/ops/cpu/kernels.h"

#ifndef EBB_KERNEL_BASE
#define EBB_KERNEL_BASE EBB_KERNEL_ISA
#endif

namespace ebb::cpu {

namespace EBB_KERNEL_BASE {
void LinearExact(const LinearArgs& args);
void RoundToBytes(const float* x, int32_t k, const RoundedRows& row);
void Attend(const AttendArgs& args);
void Store(const StoreArgs& args);
void Read(const ReadArgs& args);
void Angles(const RopeArgs& rope, const int32_t* position, float* angles);
void RmsNorm(const float* x, const float* weight, float eps, int64_t n, float* y);
void SwiGlu(const float* gate, const float* up, int64_t n, float* y);
}  // namespace EBB_KERNEL_BASE

namespace EBB_KERNEL_ISA {

#define EBB_NAME(isa) #isa
#define EBB_NAME_OF(isa) EBB_NAME(isa)

extern const Kernels kKernels;
constinit const Kernels kKernels = {
    .name = EBB_NAME_OF(EBB_KERNEL_ISA),
    .linear_exact = EBB_KERNEL_BASE::LinearExact,
    .linear_fast = LinearFast,
    .round_to_bytes = EBB_KERNEL_BASE::RoundToBytes,
    .round_to_bf16 = RoundToBf16,
    .attend = EBB_KERNEL_BASE::Attend,
    .store = EBB_KERNEL_BASE::Store,
    .read = EBB_KERNEL_BASE::Read,
    .angles = EBB_KERNEL_BASE::Angles,
    .rms_norm = EBB_KERNEL_BASE::RmsNorm,
    .swiglu = EBB_KERNEL_BASE::SwiGlu,
};

}  // namespace EBB_KERNEL_ISA
}  // namespace ebb::cpu
