#include "engine/gpu/gpu.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "absl/strings/str_format.h"
#include "policies/status.h"

namespace ebb {
namespace {

absl::Status Unavailable(const std::string& what, const std::string& field = {}) {
  return Refuse(absl::StatusCode::kUnavailable, what, {.reason = "GPU_UNAVAILABLE", .field = field});
}

}  // namespace

absl::StatusOr<const gpu::Table*> LoadGpuTable(std::string_view kind, const std::string& folder) {
  const std::string path = absl::StrFormat("%s/libebb_%s.so", folder, std::string(kind));
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return Unavailable(absl::StrFormat("%s: not loaded: %s; a build with EBB_CUDA or EBB_HIP makes it", path,
                                       why == nullptr ? "no reason given" : why));
  }
  const auto table_of = reinterpret_cast<const gpu::Table* (*)()>(dlsym(library, gpu::kTableSymbol));
  const gpu::Table* const table = table_of == nullptr ? nullptr : table_of();
  if (table == nullptr || table->version != gpu::kTableVersion) {
    dlclose(library);
    return Unavailable(
        absl::StrFormat("%s: not this program's library: its kernels are of version %d, and %d is needed", path,
                        table == nullptr ? 0 : table->version, gpu::kTableVersion));
  }
  int32_t devices = 0;
  const gpu::Error why = table->devices(&devices);
  if (why != nullptr || devices == 0) {
    absl::Status none = Unavailable(absl::StrFormat("%s: the kernels are here, but no device with a driver is%s%s",
                                                    path, why != nullptr ? ": " : "", why != nullptr ? why : ""));
    dlclose(library);
    return none;
  }
  return table;
}

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open(const gpu::Table& table, int32_t device) {
  int32_t devices = 0;
  EBB_TRY(Check(table.devices(&devices)));
  if (device < 0 || device >= devices) {
    return Unavailable(
        absl::StrFormat(
            "model.gpu_device: %d is not among the GPUs that the process sees: there are %d, from number 0 on", device,
            devices),
        "model.gpu_device");
  }
  gpu::Stream stream = nullptr;
  EBB_TRY(Check(table.open(device, &stream)));
  auto gpu = std::unique_ptr<Gpu>(new Gpu(table, device, stream));
  EBB_TRY(gpu->CheckKernels());
  return gpu;
}

// A library that was compiled for other devices opens this one, too: that it has no kernels for it, only a launch
// tells.
absl::Status Gpu::CheckKernels() const {
  table_.rehearse();
  table_.round({}, stream_);  // whichever
  gpu::Shortage no_shortage;  // of what it does not ask for
  const gpu::Error why = table_.rehearsed(&no_shortage);
  if (why == nullptr) return absl::OkStatus();
  EBB_ASSIGN(const std::string device, Describe(table_, device_));
  return Unavailable(absl::StrFormat("libebb_%s.so has no kernels for %s: %s", table_.name, device, why));
}

absl::StatusOr<std::string> Gpu::Describe(const gpu::Table& table, int32_t device) {
  std::array<char, 256> text = {};
  EBB_TRY(Check(table.describe(device, text.data(), static_cast<int32_t>(text.size()))));
  return std::string(text.data());
}

Gpu::~Gpu() { table_.close(stream_); }

absl::Status Gpu::Check(gpu::Error error) {
  if (error == nullptr) return absl::OkStatus();
  return Refuse(absl::StatusCode::kUnavailable, absl::StrFormat("the GPU failed: %s", error), {.reason = "GPU_FAULT"});
}

// How much it needs, the runtime does not say.
absl::Status Gpu::CheckRecording(gpu::Error error) const {
  if (error == nullptr || error != table_.no_memory) return Check(error);
  return Refuse(absl::StatusCode::kResourceExhausted, "a recording of a step: the GPU has no memory for it",
                {.reason = "GPU_OUT_OF_MEMORY"});
}

absl::Status Gpu::Rehearsed() const {
  gpu::Shortage shortage;
  EBB_TRY(Check(table_.rehearsed(&shortage)));
  if (shortage.file == nullptr) return absl::OkStatus();
  EBB_ASSIGN(const std::string device, Describe(table_, device_));
  return Refuse(
      absl::StatusCode::kFailedPrecondition,
      absl::StrFormat("%s has %d bytes of shared memory for a block of threads, and the kernel %s needs %d", device,
                      shortage.there, std::filesystem::path(shortage.file).stem().string(), shortage.needed),
      {.reason = "GPU_SHARED_MEMORY",
       .metadata = {{"bytes", absl::StrFormat("%d", shortage.needed)},
                    {"there", absl::StrFormat("%d", shortage.there)}}});
}

absl::StatusOr<GpuMoment> Gpu::MakeMoment() const {
  gpu::Moment moment = nullptr;
  EBB_TRY(Check(table_.make_moment(&moment)));
  return GpuMoment(&table_, moment);
}

absl::StatusOr<double> Gpu::Between(const GpuMoment& from, const GpuMoment& to) const {
  double seconds = 0;
  EBB_TRY(Check(table_.between(from.get(), to.get(), &seconds)));
  return seconds;
}

absl::StatusOr<int64_t> Gpu::FreeBytes() const {
  EBB_ASSIGN(const Room room, FreeRoom());
  return room.free;
}

absl::StatusOr<Gpu::Room> Gpu::FreeRoom() const {
  Room room;
  EBB_TRY(Check(table_.memory(&room.free, &room.total)));
  return room;
}

absl::Status Gpu::OutOfMemory(int64_t bytes, std::string_view what, const Room& room) {
  return Refuse(absl::StatusCode::kResourceExhausted,
                absl::StrFormat("%s: needs %d bytes of the GPU, and %d of its %d are free", std::string(what), bytes,
                                room.free, room.total),
                {.reason = "GPU_OUT_OF_MEMORY",
                 .metadata = {{"bytes", absl::StrFormat("%d", bytes)}, {"free", absl::StrFormat("%d", room.free)}}});
}

absl::Status Gpu::CheckRoom(int64_t bytes, std::string_view what) const {
  EBB_ASSIGN(const Room room, FreeRoom());
  return bytes <= room.free ? absl::OkStatus() : OutOfMemory(bytes, what, room);
}

absl::StatusOr<GpuMemory> Gpu::Allocate(int64_t bytes, std::string_view what) const {
  void* memory = nullptr;
  if (table_.allocate(std::max<int64_t>(bytes, 1), &memory) == nullptr) return GpuMemory(&table_, memory, bytes);
  EBB_ASSIGN(const Room room, FreeRoom());
  return OutOfMemory(bytes, what, room);
}

absl::StatusOr<GpuHostMemory> Gpu::AllocateHost(int64_t bytes, std::string_view what) const {
  void* memory = nullptr;
  if (table_.allocate_host(std::max<int64_t>(bytes, 1), &memory) == nullptr) {
    return GpuHostMemory(&table_, memory, bytes);
  }
  return Refuse(absl::StatusCode::kResourceExhausted,
                absl::StrFormat("%s: %d bytes of the host's memory could not be pinned", std::string(what), bytes),
                {.reason = "HOST_OUT_OF_MEMORY", .metadata = {{"bytes", absl::StrFormat("%d", bytes)}}});
}

}  // namespace ebb
