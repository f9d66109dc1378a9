// The rate of a large BF16 product by cuBLASLt, which is loaded where it is found: neither the build nor the folder
// that is carried to a device has it. The engine does not use it (docs/explanation/gpu.md, "Decided otherwise").

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "tests/gpu_check/bench.h"

namespace ebb::gpu_check {
namespace {

// As cublasLt.h has them, of versions 12 and 13; handles and descriptors are pointers.
constexpr int kCompute32F = 68;
constexpr int kReal32F = 0;
constexpr int kReal16Bf = 14;
constexpr int kPreferenceWorkspaceMax = 1;
struct Heuristic {
  std::array<uint64_t, 8> algorithm;
  size_t workspace;
  int status;
  float waves;
  std::array<int, 4> reserved;
};

struct CublasLt {
  int (*create)(void** handle);
  int (*descriptor)(void** descriptor, int compute, int scale);
  int (*layout)(void** layout, int type, uint64_t rows, uint64_t cols, int64_t stride);
  int (*preference)(void** preference);
  int (*prefer)(void* preference, int attribute, const void* value, size_t bytes);
  int (*find)(void* handle, void* descriptor, void* a, void* b, void* c, void* d, void* preference, int wanted,
              Heuristic* found, int* count);
  int (*multiply)(void* handle, void* descriptor, const void* alpha, const void* a, void* a_layout, const void* b,
                  void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                  const Heuristic* algorithm, void* workspace, size_t bytes, void* stream);
};

// NOT_FOUND where there is none, or it lacks a function.
absl::StatusOr<CublasLt> LoadCublasLt() {
  void* library = nullptr;
  for (const char* const name :
       {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so", "/usr/local/cuda/lib64/libcublasLt.so"}) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) return absl::NotFoundError("no cuBLASLt was found: libcublasLt.so.13 or .12");
  CublasLt lt = {};
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto& function) {
    void* const symbol = dlsym(library, name);
    if (symbol == nullptr) missing = name;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  find("cublasLtCreate", lt.create);
  find("cublasLtMatmulDescCreate", lt.descriptor);
  find("cublasLtMatrixLayoutCreate", lt.layout);
  find("cublasLtMatmulPreferenceCreate", lt.preference);
  find("cublasLtMatmulPreferenceSetAttribute", lt.prefer);
  find("cublasLtMatmulAlgoGetHeuristic", lt.find);
  find("cublasLtMatmul", lt.multiply);
  if (missing != nullptr) return absl::NotFoundError(absl::StrFormat("the cuBLASLt that was found lacks %s", missing));
  return lt;
}

absl::Status Succeeded(int status, const char* what) {
  if (status == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("cuBLASLt: %s gave status %d", what, status));
}

}  // namespace

// What the library makes goes with the program.
absl::StatusOr<double> DenseRate(Bench& b) {
  EBB_ASSIGN(const CublasLt lt, LoadCublasLt());
  constexpr int64_t kSide = kDenseSide;
  constexpr int64_t kNumbers = kSide * kSide;
  constexpr size_t kWorkspace = 64 << 20;
  EBB_ASSIGN(const GpuMemory from, b.gpu->Allocate(2 * kNumbers * 2, "what is multiplied"));
  EBB_ASSIGN(const GpuMemory to, b.gpu->Allocate(kNumbers * 2, "the product"));
  EBB_ASSIGN(const GpuMemory workspace, b.gpu->Allocate(kWorkspace, "the product's workspace"));
  b.table.random({.type = gpu::Element::kBf16, .values = from.as<void>(), .n = 2 * kNumbers, .seed = 1},
                 b.gpu->stream());
  uint16_t* const second = from.as<uint16_t>() + kNumbers;
  const std::vector<uint16_t> nothing(kSide);
  EBB_TRY(b.gpu->CopyIn(std::span<const uint16_t>(nothing), to.as<uint16_t>() + kNumbers - kSide));

  void *handle = nullptr, *descriptor = nullptr, *layout = nullptr, *preference = nullptr;
  EBB_TRY(Succeeded(lt.create(&handle), "cublasLtCreate"));
  EBB_TRY(Succeeded(lt.descriptor(&descriptor, kCompute32F, kReal32F), "cublasLtMatmulDescCreate"));
  EBB_TRY(Succeeded(lt.layout(&layout, kReal16Bf, kSide, kSide, kSide), "cublasLtMatrixLayoutCreate"));
  EBB_TRY(Succeeded(lt.preference(&preference), "cublasLtMatmulPreferenceCreate"));
  EBB_TRY(Succeeded(lt.prefer(preference, kPreferenceWorkspaceMax, &kWorkspace, sizeof(kWorkspace)),
                    "cublasLtMatmulPreferenceSetAttribute"));
  Heuristic found = {};
  int count = 0;
  EBB_TRY(Succeeded(lt.find(handle, descriptor, layout, layout, layout, layout, preference, 1, &found, &count),
                    "cublasLtMatmulAlgoGetHeuristic"));
  if (count == 0) return absl::InternalError("cuBLASLt: it has no way to multiply on this device");
  const float one = 1, zero = 0;
  int status = 0;
  const auto multiply = [&](int) {
    const int now =
        lt.multiply(handle, descriptor, &one, from.as<void>(), layout, second, layout, &zero, to.as<void>(), layout,
                    to.as<void>(), layout, &found, workspace.as<void>(), kWorkspace, b.gpu->stream());
    if (now != 0) status = now;
  };
  multiply(0);  // it loads its kernels, which a recording must not
  EBB_TRY(b.gpu->Wait());
  EBB_ASSIGN(const double seconds, SecondsOf(b, 4, multiply));
  EBB_TRY(Succeeded(status, "cublasLtMatmul"));
  std::vector<uint16_t> last(kSide);
  EBB_TRY(b.gpu->CopyOut(to.as<uint16_t>() + kNumbers - kSide, std::span(last)));
  EBB_TRY(b.gpu->Wait());
  if (std::ranges::all_of(last, [](uint16_t number) { return number == 0; })) {
    return absl::InternalError("cuBLASLt: nothing was written");
  }
  return 2.0 * kSide * kSide * kSide / seconds;
}

}  // namespace ebb::gpu_check
