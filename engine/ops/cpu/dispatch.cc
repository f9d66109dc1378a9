#include "engine/ops/cpu/dispatch.h"

#ifdef EBB_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#endif

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

// Instruction sets that add dot products to one of these: what they have of their own.
namespace avx2vnni {
void LinearFast(const LinearArgs& args);
void RoundToBf16(const float* x, int32_t k, const RoundedRows& row);
}  // namespace avx2vnni
namespace avx512vnni {
void LinearFast(const LinearArgs& args);
void LinearByTiles(const LinearArgs& args);  // linear_amx.cc
void RoundToBf16(const float* x, int32_t k, const RoundedRows& row);
}  // namespace avx512vnni
namespace avx512bf16 {
void LinearFast(const LinearArgs& args);
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
const Kernels kAvx512Amx = With(avx512::kKernels, "avx512amx", avx512vnni::LinearByTiles, avx512vnni::RoundToBf16);
const Kernels kAvx512Bf16 = With(avx512::kKernels, "avx512bf16", avx512bf16::LinearFast, avx512bf16::RoundToBf16);

// Not among the names that the compiler's own test knows.
bool HasAvxVnni() {
  unsigned int a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1U << 4U)) != 0;
}

// Whether tiles give the bits of plain loops, for one chunk of 16 rows: on this processor they run for the first time.
bool TilesAreRight() {
  alignas(64) std::byte weights[ChunkBytes(Element::kQ8)];
  int8_t bytes[16 * kChunk];
  int32_t offsets[16];
  float scales[16];
  uint32_t random = 1;
  const auto next = [&random] { return (random = random * 1664525 + 1013904223) >> 24; };
  for (int i = 0; i < 64; ++i) weights[i] = static_cast<std::byte>(i % 2 == 0 ? next() : 0x30 + i % 8);  // 0.1 and more
  for (int64_t i = 64; i < ChunkBytes(Element::kQ8); ++i) weights[i] = static_cast<std::byte>(next());
  for (int row = 0; row < 16; ++row) {
    offsets[row] = 0;
    for (int k = 0; k < kChunk; ++k) {
      bytes[row * kChunk + k] = static_cast<int8_t>(next());
      offsets[row] -= 128 * bytes[row * kChunk + k];
    }
    scales[row] = static_cast<float>(row + 1);
  }
  float y[2][16 * kGroupRows];
  LinearArgs args = {.type = Element::kQ8, .weights = weights, .outputs = kGroupRows, .k = kChunk};
  args.rounded = {.bytes = bytes, .scales = scales, .offsets = offsets, .halves = offsets};
  args.rows = 16;
  args.y_stride = kGroupRows;
  args.y = y[0];
  scalar::kKernels.linear_fast(args);
  args.y = y[1];
  avx512vnni::LinearByTiles(args);
  return std::memcmp(y[0], y[1], sizeof y[0]) == 0;
}

// A process asks the kernel once, for all its threads, before it may use tiles (Linux 5.16 and later).
bool HasTiles() {
  constexpr unsigned int kTilesOfBytes = 3U << 24U;  // AMX-TILE and AMX-INT8
  constexpr long kRequestPermission = 0x1023;        // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;                     // XFEATURE_XTILEDATA
  unsigned int a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTilesOfBytes) == kTilesOfBytes &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 && TilesAreRight();
}

}  // namespace

#endif

std::vector<const Kernels*> AvailableKernels() {
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
  // Used where asked for by name: nobody has measured it yet.
  if (has_vnni && HasTiles()) available.insert(available.end() - 1, &kAvx512Amx);
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
