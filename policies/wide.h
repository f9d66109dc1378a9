// EBB_WIDE before a function compiles it for several instruction sets; the loader takes the widest that the machine
// has. For loops over slots and channels, in files that are compiled with -O3 (CMakeLists.txt).
//
// The same bits come out everywhere: nothing is contracted into a multiply-add (-ffp-contract=off), and whoever adds up
// floats writes down in how many parts. Not under sanitizers, whose run time is not there yet when the loader chooses.

#ifndef EBB_POLICIES_WIDE_H_
#define EBB_POLICIES_WIDE_H_

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define EBB_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EBB_WIDE
#endif

#endif  // EBB_POLICIES_WIDE_H_
