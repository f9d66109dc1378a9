// Ops on the processor's cores: splits the work of each op over threads and calls the kernels of one instruction set.

#ifndef EBB_ENGINE_OPS_CPU_OPS_CPU_H_
#define EBB_ENGINE_OPS_CPU_OPS_CPU_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/ops.h"

namespace ebb {

namespace cpu {
class PackFile;  // pack_file.h
}

struct CpuOptions {
  std::string isa = {};  // a name of AvailableKernels(); empty: what EBB_ISA names, else the fastest available
  Accuracy accuracy = Accuracy::kFast;
  int32_t threads = 1;             // compute threads, the caller's own included, 1..kThreadsMax
  cpu::PackFile* packs = nullptr;  // keeps packed weights; outlives every Pack. Null: none does
};

// One instance per worker, used by one thread at a time. Scratch memory grows to the largest step seen and stays.
// Beyond ops.h's promise, the bits of a result depend neither on `threads` nor on `isa`, but for products with BF16
// weights in fast arithmetic on "avx512amxbf16". Heads of up to kMaxHeadDim components.
//
// INVALID_ARGUMENT ISA_UNAVAILABLE, naming the instruction sets of this machine; THREADS_OUT_OF_RANGE.
absl::StatusOr<std::unique_ptr<Ops>> MakeCpuOps(const CpuOptions& options);

}  // namespace ebb

#endif  // EBB_ENGINE_OPS_CPU_OPS_CPU_H_
