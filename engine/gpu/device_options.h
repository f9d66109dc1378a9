// Which device computes sessions beside the host (placed_engine.h).

#ifndef EBB_ENGINE_GPU_DEVICE_OPTIONS_H_
#define EBB_ENGINE_GPU_DEVICE_OPTIONS_H_

#include <cstdint>
#include <string>

#include "policies/spec.h"

namespace ebb {

// What multiplies prompts' blocks where weights are BF16: the own kernels, or the library of the device's maker
// (blas_lt.h). kAuto: the library where it is found and passes its trial (block_products.h), else the own kernels.
enum class ProductsBy { kAuto, kOwn, kLibrary };

struct DeviceOptions {
  std::string kind = {};    // of the library of kernels, libebb_<kind>.so: cuda, hip, or in tests emulated
  std::string folder = {};  // where that is; empty: that of the program
  int32_t device = 0;
  int64_t arena_bytes = 0;         // for K and V; 0: nine tenths of what is free beside the weights
  KvType kv_type = KvType::kBf16;  // of the sessions that it computes
  ProductsBy products = ProductsBy::kAuto;
};

// As the server's fingerprint has it, what decides the bits of what sessions yield there: which code runs on which kind
// of device, the type of K and V of those that it computes, and whose products. "cuda sm_90 on 9.0, bf16, library".
// `code`: as Gpu::Code; `by_library`: what came of `products`.
inline std::string NameOf(const DeviceOptions& device, const std::string& code, bool by_library) {
  return device.kind + (code.empty() ? "" : " " + code) + ", " + std::string(NameOf(device.kv_type)) +
         (by_library ? ", library" : "");
}

}  // namespace ebb

#endif  // EBB_ENGINE_GPU_DEVICE_OPTIONS_H_
