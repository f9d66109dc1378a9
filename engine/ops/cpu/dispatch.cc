#include "engine/ops/cpu/dispatch.h"

#ifdef EBB_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/ops/cpu/tiles_check.h"
#include "policies/status.h"

namespace ebb::cpu {

namespace scalar {
extern const Kernels kKernels;
void LinearByTiles(const LinearArgs& args);      // linear_amx.cc, over plain loops
void LinearByPairTiles(const LinearArgs& args);  // linear_amx_bf16.cc, alike
}  // namespace scalar

#ifdef EBB_X86

namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}

// Instruction sets that add dot products to one of these: what they have of their own.
namespace avx2vnni {
void LinearFast(const LinearArgs& args);
void RoundToBf16(const float* x, int32_t k, const RoundedRows& row);
}  // namespace avx2vnni
namespace avx512vnni {
void LinearFast(const LinearArgs& args);
void LinearByTiles(const LinearArgs& args);
void RoundToBf16(const float* x, int32_t k, const RoundedRows& row);
}  // namespace avx512vnni
namespace avx512bf16 {
void LinearFast(const LinearArgs& args);
void LinearByPairTiles(const LinearArgs& args);
void RoundToBf16(const float* x, int32_t k, const RoundedRows& row);
}  // namespace avx512bf16

namespace {

// `base` with products of its own, and x rounded as they take it.
Kernels With(Kernels base, const char* name, decltype(Kernels::linear_fast) linear_fast,
             decltype(Kernels::round_to_bf16) round_to_bf16) {
  base.name = name;
  base.linear_fast = linear_fast;
  base.round_to_bf16 = round_to_bf16;
  return base;
}

const Kernels kAvx2Vnni = With(avx2::kKernels, "avx2vnni", avx2vnni::LinearFast, avx2vnni::RoundToBf16);
const Kernels kAvx512Vnni = With(avx512::kKernels, "avx512vnni", avx512vnni::LinearFast, avx512vnni::RoundToBf16);
const Kernels kAvx512Bf16 = With(avx512::kKernels, "avx512bf16", avx512bf16::LinearFast, avx512bf16::RoundToBf16);

void LinearByAllTiles(const LinearArgs& args) {
  (args.type == Element::kBf16 ? avx512bf16::LinearByPairTiles : avx512vnni::LinearByTiles)(args);
}

const Kernels kAvx512Amx = [] {
  Kernels kernels = With(avx512::kKernels, "avx512amx", avx512vnni::LinearByTiles, avx512vnni::RoundToBf16);
  kernels.tile_rows = 16;
  return kernels;
}();
const Kernels kAvx512AmxBf16 = [] {
  Kernels kernels = With(avx512::kKernels, "avx512amxbf16", LinearByAllTiles, avx512bf16::RoundToBf16);
  kernels.tile_rows = 32;
  kernels.sums_apart = true;
  return kernels;
}();

// Not among the names that the compiler's own test knows.
bool HasAvxVnni() {
  unsigned int a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1U << 4U)) != 0;
}

// What leaf 7 says of tiles.
constexpr unsigned int kTilesOfBf16 = 1U << 22U, kTiles = 1U << 24U, kTilesOfBytes = 1U << 25U;

// Of these those that this process may use, none where the system does not keep tiles between threads. It is asked
// once, for all threads of the process (Linux 5.16 and later).
unsigned int PermittedTiles() {
  constexpr unsigned int kTileState = 3U << 17U;  // XTILECFG and XTILEDATA of XCR0
  constexpr long kRequestPermission = 0x1023;     // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;                  // XFEATURE_XTILEDATA
  unsigned int a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTiles) == 0) return 0;
  unsigned int low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & kTileState) != kTileState) return 0;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? d & (kTilesOfBf16 | kTilesOfBytes) : 0;
}

}  // namespace

#endif

namespace {

std::vector<const Kernels*> FindKernels() {
  std::vector<const Kernels*> available = {&scalar::kKernels};
#ifdef EBB_X86
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool has_vnni = has_avx512 && __builtin_cpu_supports("avx512vnni");
  if (has_avx2) available.push_back(&avx2::kKernels);
  if (has_avx2 && HasAvxVnni()) available.push_back(&kAvx2Vnni);
  if (has_avx512) available.push_back(&avx512::kKernels);
  if (has_vnni) available.push_back(&kAvx512Vnni);
  if (has_vnni && __builtin_cpu_supports("avx512bf16")) {
    // Intel's cores take twice as long for a dot product of pairs as for its two multiply-adds (measured on one, an
    // Emerald Rapids). That AMD's do it in half is from published tables of instructions, not measured.
    available.insert(available.end() - (__builtin_cpu_is("intel") ? 1 : 0), &kAvx512Bf16);
  }
  // Used where asked for by name: nobody has measured them yet.
  const unsigned int tiles = has_vnni ? PermittedTiles() : 0;
  if ((tiles & kTilesOfBytes) != 0 && TilesAreRight(Element::kQ8, avx512vnni::LinearByTiles, scalar::LinearByTiles) &&
      TilesAreRight(Element::kQ6K, avx512vnni::LinearByTiles, scalar::LinearByTiles)) {
    available.insert(available.end() - 1, &kAvx512Amx);
    if ((tiles & kTilesOfBf16) != 0 && __builtin_cpu_supports("avx512bf16") &&
        TilesAreRight(Element::kBf16, avx512bf16::LinearByPairTiles, scalar::LinearByPairTiles)) {
      available.insert(available.end() - 1, &kAvx512AmxBf16);
    }
  }
#endif
  return available;
}

}  // namespace

std::vector<const Kernels*> AvailableKernels() {
  static const auto& found = *new std::vector(FindKernels());  // once: tiles are tried at some length
  return found;
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
