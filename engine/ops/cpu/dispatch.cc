#include "engine/ops/cpu/dispatch.h"

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "policies/status.h"

namespace ebb::cpu {

namespace scalar {
extern const Kernels kKernels;
}
#ifdef EBB_X86
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
#endif

std::vector<const Kernels*> AvailableKernels() {
  std::vector<const Kernels*> available = {&scalar::kKernels};
#ifdef EBB_X86
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx2) available.push_back(&avx2::kKernels);
  if (has_avx512) available.push_back(&avx512::kKernels);
#endif
  return available;
}

absl::StatusOr<const Kernels*> ChooseKernels(std::string_view isa) {
  const std::vector<const Kernels*> available = AvailableKernels();
  if (isa.empty()) return available.back();
  for (const Kernels* kernels : available) {
    if (isa == kernels->name) return kernels;
  }
  const std::string names =
      absl::StrJoin(available, ", ", [](std::string* out, const Kernels* kernels) { out->append(kernels->name); });
  return Refuse(absl::StatusCode::kInvalidArgument,
                absl::StrFormat("instruction set %s is not available on this machine; available: %s", isa, names),
                {.reason = "ISA_UNAVAILABLE"});
}

}  // namespace ebb::cpu
