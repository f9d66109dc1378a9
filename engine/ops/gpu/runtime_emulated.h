// The table's runtime in the emulation: the device's memory is the host's, and a launch is over when it returns. Fresh
// memory is all ones, which is not a number in any element type, and no slot in any map.

#ifndef EBB_ENGINE_OPS_GPU_RUNTIME_EMULATED_H_
#define EBB_ENGINE_OPS_GPU_RUNTIME_EMULATED_H_

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "engine/ops/gpu/kernels.h"

namespace ebb::gpu::EBB_GPU_TARGET {

inline int32_t Devices() { return 1; }
inline Error Open(int32_t /*device*/, Stream* stream) {
  *stream = nullptr;
  return nullptr;
}
inline void Close(Stream /*stream*/) {}
inline Error Memory(int64_t* free_bytes, int64_t* total_bytes) {
  *free_bytes = *total_bytes = int64_t{1} << 30;
  return nullptr;
}
inline Error Allocate(int64_t bytes, void** memory) {
  constexpr int64_t kAlignment = 256;
  if (bytes > int64_t{1} << 30) return "out of memory";
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  *memory = std::aligned_alloc(kAlignment, static_cast<size_t>(bytes));
  if (*memory == nullptr) return "out of memory";
  std::memset(*memory, 0xFF, static_cast<size_t>(bytes));
  return nullptr;
}
inline void Release(void* memory) { std::free(memory); }
inline Error CopyIn(void* to, const void* from, int64_t bytes, Stream /*stream*/) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return nullptr;
}
inline Error CopyOut(void* to, const void* from, int64_t bytes, Stream stream) {
  return CopyIn(to, from, bytes, stream);
}
inline Error Wait(Stream /*stream*/) { return nullptr; }

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_RUNTIME_EMULATED_H_
