// Which device computes sessions beside the host (placed_engine.h).

#ifndef EBB_ENGINE_GPU_DEVICE_OPTIONS_H_
#define EBB_ENGINE_GPU_DEVICE_OPTIONS_H_

#include <cstdint>
#include <string>

#include "policies/spec.h"

namespace ebb {

struct DeviceOptions {
  std::string kind = {};    // of the library of kernels, libebb_<kind>.so: cuda, hip, or in tests emulated
  std::string folder = {};  // where that is; empty: that of the program
  int32_t device = 0;
  int64_t arena_bytes = 0;         // for K and V; 0: nine tenths of what is free beside the weights
  KvType kv_type = KvType::kBf16;  // of the sessions that it computes
  bool by_library = false;         // prompts' products, where weights are BF16 (blas_lt.h); else by the own kernels
};

// As the server's fingerprint has it: what decides the bits of what the device computes.
inline std::string NameOf(const DeviceOptions& device) { return device.kind + (device.by_library ? " library" : ""); }

}  // namespace ebb

#endif  // EBB_ENGINE_GPU_DEVICE_OPTIONS_H_
