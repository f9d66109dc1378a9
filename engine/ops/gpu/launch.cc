// What is asked of a device before a kernel is launched, and rehearsals, in which nothing else is done
// (kernels.h, Table::rehearse).

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#if defined(__CUDACC__) || defined(__HIPCC__)
#include "engine/ops/gpu/runtime_cuda_hip.h"
#else
#include "engine/ops/gpu/runtime_emulated.h"
#endif

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

struct Rehearsal {
  bool is_on = false;
  Error error = nullptr;
  Shortage shortage = {};
};
thread_local Rehearsal rehearsal;

}  // namespace

bool MayBeginEarly(const void* kernel) { return SharedRoomOf(kernel).code >= 90; }

bool MayLaunch(const void* kernel, const char* file, int32_t shared) {
  if (shared == 0 && !rehearsal.is_on) return true;
  const SharedRoom room = SharedRoomOf(kernel);
  if (!rehearsal.is_on) return true;  // where it does not fit the launch says so
  if (rehearsal.error == nullptr) rehearsal.error = room.error;
  const int32_t needed = room.declared + shared;
  if (room.error == nullptr && needed > room.there && rehearsal.shortage.file == nullptr) {
    rehearsal.shortage = {.file = file, .needed = needed, .there = room.there};
  }
  return false;
}

void Rehearse() { rehearsal = {.is_on = true}; }

Error Rehearsed(Shortage* shortage) {
  const Rehearsal done = rehearsal;
  rehearsal = {};
  *shortage = done.shortage;
  return done.error;
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
