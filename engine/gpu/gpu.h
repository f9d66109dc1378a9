// A device that is open: its table of kernels, one stream, and memory that gives itself back. No other file calls the
// table's runtime.
//
// Used by one thread at a time. A device's errors are statuses: UNAVAILABLE GPU_FAULT says what the runtime said, and
// nothing that was computed since the last Wait is to be believed.

#ifndef EBB_ENGINE_GPU_GPU_H_
#define EBB_ENGINE_GPU_GPU_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/ops/gpu/kernels.h"

namespace ebb {

// Loads libebb_<kind>.so, `kind` "cuda" or "hip", from `folder`. It stays loaded. UNAVAILABLE GPU_UNAVAILABLE names
// what is missing: the library, a library of this version, or a device with a driver.
absl::StatusOr<const gpu::Table*> LoadGpuTable(std::string_view kind, const std::string& folder);

// What a table made and takes back, by that function of it; move-only. Null: nothing.
template <typename Handle, void (*gpu::Table::*kTakeBack)(Handle)>
class GpuOwned {
 public:
  GpuOwned() = default;
  GpuOwned(const gpu::Table* table, Handle handle) : table_(table), handle_(handle) {}
  GpuOwned(GpuOwned&& other) noexcept : table_(other.table_), handle_(std::exchange(other.handle_, nullptr)) {}
  GpuOwned& operator=(GpuOwned&& other) noexcept {
    GpuOwned taken(std::move(other));  // which leaves with what was here
    std::swap(table_, taken.table_);
    std::swap(handle_, taken.handle_);
    return *this;
  }
  ~GpuOwned() {
    if (handle_ != nullptr) (table_->*kTakeBack)(handle_);
  }

  bool empty() const { return handle_ == nullptr; }
  Handle get() const { return handle_; }

 private:
  const gpu::Table* table_ = nullptr;
  Handle handle_ = nullptr;
};

// Launches that were recorded. Used as long as the memory that they name is there.
using GpuRecording = GpuOwned<gpu::Recording, &gpu::Table::drop>;
// A place in a device's stream.
using GpuMoment = GpuOwned<gpu::Moment, &gpu::Table::drop_moment>;

// Of a device.
class GpuMemory {
 public:
  GpuMemory() = default;
  GpuMemory(const gpu::Table* table, void* memory, int64_t bytes) : memory_(table, memory), bytes_(bytes) {}

  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_.get());
  }
  int64_t bytes() const { return memory_.empty() ? 0 : bytes_; }

 private:
  GpuOwned<void*, &gpu::Table::release> memory_ = {};
  int64_t bytes_ = 0;
};

// Of the host. Pinned, copies between it and the device go on by themselves; else the host waits for each.
class GpuHostMemory {
 public:
  GpuHostMemory() = default;
  GpuHostMemory(const gpu::Table* table, void* memory, int64_t bytes) : pinned_(table, memory), bytes_(bytes) {}
  static GpuHostMemory Unpinned(int64_t bytes) {
    GpuHostMemory memory;
    memory.unpinned_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
    memory.bytes_ = bytes;
    return memory;
  }

  template <typename T>
  std::span<T> as() const {
    void* const memory = unpinned_ != nullptr ? unpinned_.get() : pinned_.get();
    return {static_cast<T*>(memory), static_cast<size_t>(bytes()) / sizeof(T)};
  }
  int64_t bytes() const { return unpinned_ == nullptr && pinned_.empty() ? 0 : bytes_; }
  bool is_pinned() const { return unpinned_ == nullptr; }

 private:
  GpuOwned<void*, &gpu::Table::release_host> pinned_ = {};
  std::unique_ptr<std::byte[]> unpinned_ = {};
  int64_t bytes_ = 0;
};

class Gpu {
 public:
  // `table` outlives this. UNAVAILABLE GPU_UNAVAILABLE where there are not so many devices, with both numbers and the
  // field, and where the library has no kernels for that one, by its name; UNAVAILABLE GPU_FAULT.
  static absl::StatusOr<std::unique_ptr<Gpu>> Open(const gpu::Table& table, int32_t device);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  // What a device is called, and by whom it is driven.
  static absl::StatusOr<std::string> Describe(const gpu::Table& table, int32_t device);

  // What decides bits there (Table::code).
  static absl::StatusOr<std::string> Code(const gpu::Table& table, int32_t device) {
    std::array<char, 64> text = {};
    const absl::Status told = Check(table.code(device, text.data(), static_cast<int32_t>(text.size())));
    if (!told.ok()) return told;
    return std::string(text.data());
  }

  const gpu::Table& table() const { return table_; }
  gpu::Stream stream() const { return stream_; }
  int32_t device() const { return device_; }

  // From now on the calling thread launches on this device.
  absl::Status Use() const { return Check(table_.use(device_)); }

  absl::StatusOr<int64_t> FreeBytes() const;

  // RESOURCE_EXHAUSTED GPU_OUT_OF_MEMORY names what it is for, the bytes needed and those free, where fewer are.
  absl::Status CheckRoom(int64_t bytes, std::string_view what) const;

  // As CheckRoom, where the device has no room.
  absl::StatusOr<GpuMemory> Allocate(int64_t bytes, std::string_view what) const;

  // RESOURCE_EXHAUSTED HOST_OUT_OF_MEMORY.
  absl::StatusOr<GpuHostMemory> AllocateHost(int64_t bytes, std::string_view what) const;

  // In the stream's order. `from` may go when this returns, unless it is pinned; `to` is whole after Wait.
  template <typename T>
  absl::Status CopyIn(std::span<const T> from, T* to) const {
    return Check(table_.copy_in(to, from.data(), static_cast<int64_t>(from.size_bytes()), stream_));
  }
  template <typename T>
  absl::Status CopyOut(const T* from, std::span<T> to) const {
    return Check(table_.copy_out(to.data(), from, static_cast<int64_t>(to.size_bytes()), stream_));
  }
  // New memory with these numbers in it.
  template <typename T>
  absl::StatusOr<GpuMemory> Upload(std::span<const T> from, std::string_view what) const {
    absl::StatusOr<GpuMemory> memory = Allocate(static_cast<int64_t>(from.size_bytes()), what);
    if (!memory.ok()) return memory;
    if (const absl::Status copied = CopyIn(from, memory->as<T>()); !copied.ok()) return copied;
    return memory;
  }

  absl::Status CopyWithin(void* to, const void* from, int64_t bytes) const {
    return Check(table_.copy_within(to, from, bytes, stream_));
  }

  // Keeps what launches() launches instead of running it. RESOURCE_EXHAUSTED GPU_OUT_OF_MEMORY where the device has no
  // room for that; nothing was run, as where Replay says so. REQUIRES: it copies nothing in or out.
  template <typename Launches>
  absl::StatusOr<GpuRecording> Record(const Launches& launches) const {
    if (const absl::Status begun = CheckRecording(table_.record(stream_)); !begun.ok()) return begun;
    launches();
    gpu::Recording recording = nullptr;
    if (const absl::Status ended = CheckRecording(table_.recorded(stream_, &recording)); !ended.ok()) return ended;
    return GpuRecording(&table_, recording);
  }
  absl::Status Replay(const GpuRecording& recording) const {
    return CheckRecording(table_.replay(recording.get(), stream_));
  }

  // Runs nothing of what launches() launches. FAILED_PRECONDITION GPU_SHARED_MEMORY names the first kernel for whose
  // blocks the device has too little shared memory, the bytes needed and there; UNAVAILABLE GPU_FAULT where it has no
  // such kernel. REQUIRES: it copies nothing.
  template <typename Launches>
  absl::Status Rehearse(const Launches& launches) const {
    table_.rehearse();
    launches();
    return Rehearsed();
  }

  absl::StatusOr<GpuMoment> MakeMoment() const;
  absl::Status Mark(const GpuMoment& moment) const { return Check(table_.mark(moment.get(), stream_)); }
  // Seconds that the device took from one to the other, both of which were waited for.
  absl::StatusOr<double> Between(const GpuMoment& from, const GpuMoment& to) const;

  // Until all that was launched is done.
  absl::Status Wait() const { return Check(table_.wait(stream_)); }

 private:
  Gpu(const gpu::Table& table, int32_t device, gpu::Stream stream) : table_(table), device_(device), stream_(stream) {}
  static absl::Status Check(gpu::Error error);
  absl::Status CheckRecording(gpu::Error error) const;
  absl::Status CheckKernels() const;
  absl::Status Rehearsed() const;
  struct Room {
    int64_t free = 0, total = 0;  // bytes
  };
  absl::StatusOr<Room> FreeRoom() const;
  static absl::Status OutOfMemory(int64_t bytes, std::string_view what, const Room& room);

  const gpu::Table& table_;
  int32_t device_;
  gpu::Stream stream_;
};

}  // namespace ebb

#endif  // EBB_ENGINE_GPU_GPU_H_
