// The few calls of the CUDA and HIP runtimes that the table needs, under one name each: they differ in their prefix.

#ifndef EBB_ENGINE_OPS_GPU_RUNTIME_CUDA_HIP_H_
#define EBB_ENGINE_OPS_GPU_RUNTIME_CUDA_HIP_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"

#if defined(__CUDACC__)
#define EBB_RUNTIME(name) cuda##name
#else
#define EBB_RUNTIME(name) hip##name
#endif

namespace ebb::gpu::EBB_GPU_TARGET {

using RuntimeError = EBB_RUNTIME(Error_t);
using RuntimeStream = EBB_RUNTIME(Stream_t);

inline constexpr char kNoMemory[] = "out of memory";

// The runtime remembers an error until it is asked for the last one; what is told here is not to be told again by Wait.
inline Error ErrorOf(RuntimeError error) {
  if (error == EBB_RUNTIME(Success)) return nullptr;
  static_cast<void>(EBB_RUNTIME(GetLastError)());
  if (error == EBB_RUNTIME(ErrorMemoryAllocation)) return kNoMemory;
  return EBB_RUNTIME(GetErrorString)(error);
}

inline Error Devices(int32_t* count) {
  int found = 0;
  const Error error = ErrorOf(EBB_RUNTIME(GetDeviceCount)(&found));
  *count = found;
  return error;
}
inline Error Describe(int32_t device, char* text, int32_t bytes) {
#if defined(__CUDACC__)
  cudaDeviceProp is = {};
  const char* const kind = "CUDA";
#else
  hipDeviceProp_t is = {};
  const char* const kind = "HIP";
#endif
  int driver = 0;
  int runtime = 0;
  if (const Error error = ErrorOf(EBB_RUNTIME(GetDeviceProperties)(&is, device))) return error;
  if (const Error error = ErrorOf(EBB_RUNTIME(DriverGetVersion)(&driver))) return error;
  if (const Error error = ErrorOf(EBB_RUNTIME(RuntimeGetVersion)(&runtime))) return error;
  std::snprintf(text, static_cast<size_t>(bytes), "%s, capability %d.%d, %d multiprocessors, %s driver %d, runtime %d",
                is.name, is.major, is.minor, is.multiProcessorCount, kind, driver, runtime);
  return nullptr;
}
// Of a library's kernels, which are all compiled for the same, any says which code runs: "sm_90 on 9.0", or where the
// driver made it of what was compiled for another device, "compute_90 on 10.0"; of AMD's, "gfx90a".
EBB_KERNEL(64) AnyKernel() {}
inline Error Code(int32_t device, char* text, int32_t bytes) {
  const auto room = static_cast<size_t>(bytes);
#if defined(__CUDACC__)
  cudaDeviceProp is = {};
  cudaFuncAttributes has = {};
  if (const Error error = ErrorOf(cudaGetDeviceProperties(&is, device))) return error;
  if (const Error error = ErrorOf(cudaSetDevice(device))) return error;
  if (const Error error = ErrorOf(cudaFuncGetAttributes(&has, reinterpret_cast<const void*>(AnyKernel)))) return error;
  const bool is_compiled = has.binaryVersion <= has.ptxVersion;
  std::snprintf(text, room, "%s%d on %d.%d", is_compiled ? "sm_" : "compute_",
                is_compiled ? has.binaryVersion : has.ptxVersion, is.major, is.minor);
#else
  hipDeviceProp_t is = {};
  if (const Error error = ErrorOf(hipGetDeviceProperties(&is, device))) return error;
  const std::string_view name = is.gcnArchName;  // and what may be switched on or off: gfx90a:sramecc+:xnack-
  std::snprintf(text, room, "%.*s", static_cast<int>(name.find(':') < name.size() ? name.find(':') : name.size()),
                name.data());
#endif
  return nullptr;
}
inline Error Open(int32_t device, Stream* stream) {
  if (const Error error = ErrorOf(EBB_RUNTIME(SetDevice)(device))) return error;
  RuntimeStream made = nullptr;
  const RuntimeError error = EBB_RUNTIME(StreamCreate)(&made);
  *stream = made;
  return ErrorOf(error);
}
inline Error Use(int32_t device) { return ErrorOf(EBB_RUNTIME(SetDevice)(device)); }
inline void Close(Stream stream) { static_cast<void>(EBB_RUNTIME(StreamDestroy)(static_cast<RuntimeStream>(stream))); }
inline Error Memory(int64_t* free_bytes, int64_t* total_bytes) {
  size_t free = 0;
  size_t total = 0;
  const RuntimeError error = EBB_RUNTIME(MemGetInfo)(&free, &total);
  *free_bytes = static_cast<int64_t>(free);
  *total_bytes = static_cast<int64_t>(total);
  return ErrorOf(error);
}
inline Error Allocate(int64_t bytes, void** memory) {
  return ErrorOf(EBB_RUNTIME(Malloc)(memory, static_cast<size_t>(bytes)));
}
inline void Release(void* memory) { static_cast<void>(EBB_RUNTIME(Free)(memory)); }
inline Error AllocateHost(int64_t bytes, void** memory) {
#if defined(__CUDACC__)
  return ErrorOf(cudaMallocHost(memory, static_cast<size_t>(bytes)));
#else
  return ErrorOf(hipHostMalloc(memory, static_cast<size_t>(bytes), hipHostMallocDefault));
#endif
}
inline void ReleaseHost(void* memory) {
#if defined(__CUDACC__)
  static_cast<void>(cudaFreeHost(memory));
#else
  static_cast<void>(hipHostFree(memory));
#endif
}
inline Error CopyIn(void* to, const void* from, int64_t bytes, Stream stream) {
  return ErrorOf(EBB_RUNTIME(MemcpyAsync)(to, from, static_cast<size_t>(bytes), EBB_RUNTIME(MemcpyHostToDevice),
                                          static_cast<RuntimeStream>(stream)));
}
inline Error CopyOut(void* to, const void* from, int64_t bytes, Stream stream) {
  return ErrorOf(EBB_RUNTIME(MemcpyAsync)(to, from, static_cast<size_t>(bytes), EBB_RUNTIME(MemcpyDeviceToHost),
                                          static_cast<RuntimeStream>(stream)));
}
inline Error CopyWithin(void* to, const void* from, int64_t bytes, Stream stream) {
  return ErrorOf(EBB_RUNTIME(MemcpyAsync)(to, from, static_cast<size_t>(bytes), EBB_RUNTIME(MemcpyDeviceToDevice),
                                          static_cast<RuntimeStream>(stream)));
}
// A launch that could not begin is remembered by the runtime, not by the stream.
inline Error Wait(Stream stream) {
  const Error launched = ErrorOf(EBB_RUNTIME(GetLastError)());
  const Error ran = ErrorOf(EBB_RUNTIME(StreamSynchronize)(static_cast<RuntimeStream>(stream)));
  return launched != nullptr ? launched : ran;
}

inline SharedRoom AskForSharedRoom(const void* kernel, int device) {
#if defined(__CUDACC__)
  cudaFuncAttributes has = {};
  constexpr auto kThere = cudaDevAttrMaxSharedMemoryPerBlockOptin;
#else
  hipFuncAttributes has = {};
  constexpr auto kThere = hipDeviceAttributeMaxSharedMemoryPerBlock;
#endif
  int there = 0;
  SharedRoom room;
  room.error = ErrorOf(EBB_RUNTIME(FuncGetAttributes)(&has, kernel));
  if (room.error == nullptr) room.error = ErrorOf(EBB_RUNTIME(DeviceGetAttribute)(&there, kThere, device));
  room.declared = static_cast<int32_t>(has.sharedSizeBytes);
  room.there = there;
#if defined(__CUDACC__)
  room.code = has.binaryVersion < has.ptxVersion ? has.binaryVersion : has.ptxVersion;
  // Past 48 KB, what the kernel declares included, a launch must be allowed to: all that there is, and never less, as
  // other threads may be about to launch the same kernel with more.
  const int32_t most = there < kSharedMax ? there : kSharedMax;
  if (room.error == nullptr && room.declared < most) {
    room.error =
        ErrorOf(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most - room.declared));
  }
#endif
  return room;
}
// The device is asked once for each kernel.
inline SharedRoom SharedRoomOf(const void* kernel) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, SharedRoom> rooms;
  int device = 0;
  if (const Error error = ErrorOf(EBB_RUNTIME(GetDevice)(&device))) return {.error = error};
  const std::lock_guard lock(mutex);
  const auto [at, is_new] = rooms.try_emplace({kernel, device});
  if (is_new) at->second = AskForSharedRoom(kernel, device);
  return at->second;
}

// Recordings are the runtime's graphs.
inline Error Record(Stream stream) {
  return ErrorOf(
      EBB_RUNTIME(StreamBeginCapture)(static_cast<RuntimeStream>(stream), EBB_RUNTIME(StreamCaptureModeThreadLocal)));
}
inline Error Recorded(Stream stream, Recording* recording) {
  EBB_RUNTIME(Graph_t) graph = nullptr;
  EBB_RUNTIME(GraphExec_t) made = nullptr;
  if (const Error error = ErrorOf(EBB_RUNTIME(StreamEndCapture)(static_cast<RuntimeStream>(stream), &graph)))
    return error;
#if defined(__CUDACC__)
  const Error error = ErrorOf(cudaGraphInstantiate(&made, graph, 0));
#else
  const Error error = ErrorOf(hipGraphInstantiate(&made, graph, nullptr, nullptr, 0));
#endif
  static_cast<void>(EBB_RUNTIME(GraphDestroy)(graph));
  *recording = made;
  return error;
}
inline Error Replay(Recording recording, Stream stream) {
  return ErrorOf(
      EBB_RUNTIME(GraphLaunch)(static_cast<EBB_RUNTIME(GraphExec_t)>(recording), static_cast<RuntimeStream>(stream)));
}
inline void Drop(Recording recording) {
  static_cast<void>(EBB_RUNTIME(GraphExecDestroy)(static_cast<EBB_RUNTIME(GraphExec_t)>(recording)));
}

// Moments are the runtime's events.
using RuntimeEvent = EBB_RUNTIME(Event_t);
inline Error MakeMoment(Moment* moment) {
  RuntimeEvent made = nullptr;
  const Error error = ErrorOf(EBB_RUNTIME(EventCreate)(&made));
  *moment = made;
  return error;
}
inline void DropMoment(Moment moment) {
  static_cast<void>(EBB_RUNTIME(EventDestroy)(static_cast<RuntimeEvent>(moment)));
}
inline Error Mark(Moment moment, Stream stream) {
  return ErrorOf(EBB_RUNTIME(EventRecord)(static_cast<RuntimeEvent>(moment), static_cast<RuntimeStream>(stream)));
}
inline Error Between(Moment from, Moment to, double* seconds) {
  float milliseconds = 0;
  const Error error = ErrorOf(
      EBB_RUNTIME(EventElapsedTime)(&milliseconds, static_cast<RuntimeEvent>(from), static_cast<RuntimeEvent>(to)));
  *seconds = milliseconds / 1e3;
  return error;
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_RUNTIME_CUDA_HIP_H_
