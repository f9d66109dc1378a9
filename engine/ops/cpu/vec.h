// Sixteen logical lanes of float or int32, with the same functions in every instruction set.
//
// A kernel written over these gives equal bits on every machine: each operation rounds alike everywhere, multiply-add
// is written out (Fma; the build says -ffp-contract=off), and the two reductions have one tree. Loads of stored types
// (BF16, F16, E4M3, int8, 4-bit) widen exactly; stores round to nearest even.
//
// Everything here lives in a namespace of its own per instruction set. Kernel files include this, vec_math.h, kernels.h
// and <cstdint> and nothing else: an inline function from elsewhere, compiled with AVX-512, may be the copy that the
// linker keeps, and then kills an older CPU.

#ifndef EBB_ENGINE_OPS_CPU_VEC_H_
#define EBB_ENGINE_OPS_CPU_VEC_H_

#include <cstdint>

#ifndef EBB_KERNEL_ISA
#error "kernel files are compiled once per instruction set, with EBB_KERNEL_ISA=scalar|avx2|avx512|..."
#endif

#define EBB_VEC_JOIN(a, b) a##b
#define EBB_VEC_RANK(isa) EBB_VEC_JOIN(EBB_VEC_IS_, isa)
#define EBB_VEC_IS_scalar 0
#define EBB_VEC_IS_avx2 1
#define EBB_VEC_IS_avx2vnni 1
#define EBB_VEC_IS_avx512 2
#define EBB_VEC_IS_avx512vnni 2
#define EBB_VEC_IS_avx512bf16 2

#define EBB_INLINE inline __attribute__((always_inline))

#if EBB_VEC_RANK(EBB_KERNEL_ISA) == 2
#include "engine/ops/cpu/vec_avx512.h"  // IWYU pragma: export
#elif EBB_VEC_RANK(EBB_KERNEL_ISA) == 1
#include "engine/ops/cpu/vec_avx2.h"  // IWYU pragma: export
#else
#include "engine/ops/cpu/vec_scalar.h"  // IWYU pragma: export
#endif

#endif  // EBB_ENGINE_OPS_CPU_VEC_H_
