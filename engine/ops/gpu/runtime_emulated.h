// The table's runtime in the emulation: the device's memory is the host's, and a launch is over when it returns. Fresh
// memory is all ones, which is not a number in any element type, and no slot in any map.

#ifndef EBB_ENGINE_OPS_GPU_RUNTIME_EMULATED_H_
#define EBB_ENGINE_OPS_GPU_RUNTIME_EMULATED_H_

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/emulation.h"
#include "engine/ops/gpu/kernels.h"

namespace ebb::gpu::EBB_GPU_TARGET {

inline constexpr char kNoMemory[] = "out of memory";

inline Error Devices(int32_t* count) {
  *count = 1;
  return nullptr;
}
inline Error Describe(int32_t /*device*/, char* text, int32_t bytes) {
  std::snprintf(text, static_cast<size_t>(bytes), "emulated on the host, warps of %d", EBB_GPU_WARP);
  return nullptr;
}
inline Error Code(int32_t /*device*/, char* text, int32_t bytes) {
  std::snprintf(text, static_cast<size_t>(bytes), "%s", "");
  return nullptr;
}
inline Error Open(int32_t /*device*/, Stream* stream) {
  *stream = new emulation::Stream();
  return nullptr;
}
inline Error Use(int32_t /*device*/) { return nullptr; }
inline void Close(Stream stream) { delete static_cast<emulation::Stream*>(stream); }
inline Error Memory(int64_t* free_bytes, int64_t* total_bytes) {
  *free_bytes = *total_bytes = int64_t{1} << 30;
  return nullptr;
}
inline Error Allocate(int64_t bytes, void** memory) {
  constexpr int64_t kAlignment = 256;
  if (bytes > int64_t{1} << 30) return kNoMemory;
  if (posix_memalign(memory, kAlignment, static_cast<size_t>(bytes)) != 0) return kNoMemory;
  std::memset(*memory, 0xFF, static_cast<size_t>(bytes));
  return nullptr;
}
inline void Release(void* memory) { std::free(memory); }
inline Error AllocateHost(int64_t bytes, void** memory) { return Allocate(bytes, memory); }
inline void ReleaseHost(void* memory) { Release(memory); }
inline Error CopyIn(void* to, const void* from, int64_t bytes, Stream stream) {
  if (stream != nullptr && static_cast<emulation::Stream*>(stream)->records) return "a copy while the stream records";
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  return nullptr;
}
inline Error CopyOut(void* to, const void* from, int64_t bytes, Stream stream) {
  return CopyIn(to, from, bytes, stream);
}
inline Error CopyWithin(void* to, const void* from, int64_t bytes, Stream stream) {
  emulation::Enqueue(stream, std::function<void()>([=] { std::memcpy(to, from, static_cast<size_t>(bytes)); }));
  return nullptr;
}
inline Error Wait(Stream /*stream*/) { return nullptr; }
// What an emulated kernel declares is the host's, and is not counted.
inline SharedRoom SharedRoomOf(const void* /*kernel*/) { return {.there = emulation::SharedMax()}; }

inline Error Record(Stream stream) {
  static_cast<emulation::Stream*>(stream)->records = true;
  return nullptr;
}
inline Error Recorded(Stream stream, Recording* recording) {
  auto* const of = static_cast<emulation::Stream*>(stream);
  of->records = false;
  *recording = new emulation::Launches(std::exchange(of->recorded, {}));
  return nullptr;
}
inline Error Replay(Recording recording, Stream /*stream*/) {
  emulation::Run(*static_cast<emulation::Launches*>(recording));
  return nullptr;
}
inline void Drop(Recording recording) { delete static_cast<emulation::Launches*>(recording); }

using Clock = std::chrono::steady_clock;
inline Error MakeMoment(Moment* moment) {
  *moment = new Clock::time_point();
  return nullptr;
}
inline void DropMoment(Moment moment) { delete static_cast<Clock::time_point*>(moment); }
inline Error Mark(Moment moment, Stream stream) {
  if (stream != nullptr && static_cast<emulation::Stream*>(stream)->records) return "a moment while the stream records";
  *static_cast<Clock::time_point*>(moment) = Clock::now();
  return nullptr;
}
inline Error Between(Moment from, Moment to, double* seconds) {
  const auto took = *static_cast<Clock::time_point*>(to) - *static_cast<Clock::time_point*>(from);
  *seconds = std::chrono::duration<double>(took).count();
  return nullptr;
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_RUNTIME_EMULATED_H_
