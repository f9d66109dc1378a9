// A device that is open: its table of kernels, one stream, and memory that gives itself back. No other file calls the
// table's runtime.
//
// Used by one thread at a time. A device's errors are statuses: UNAVAILABLE GPU_FAULT says what the runtime said, and
// nothing that was computed since the last Wait is to be believed.

#ifndef EBB_ENGINE_GPU_GPU_H_
#define EBB_ENGINE_GPU_GPU_H_

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

// Of a device; move-only.
class GpuMemory {
 public:
  GpuMemory() = default;
  GpuMemory(const gpu::Table* table, void* memory, int64_t bytes) : table_(table), memory_(memory), bytes_(bytes) {}
  GpuMemory(GpuMemory&& other) noexcept
      : table_(other.table_), memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  GpuMemory& operator=(GpuMemory&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~GpuMemory() {
    if (memory_ != nullptr) table_->release(memory_);
  }

  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  const gpu::Table* table_ = nullptr;
  void* memory_ = nullptr;
  int64_t bytes_ = 0;
};

// Of the host, pinned: copies between it and the device go on by themselves. Move-only.
class GpuHostMemory {
 public:
  GpuHostMemory() = default;
  GpuHostMemory(const gpu::Table* table, void* memory, int64_t bytes) : table_(table), memory_(memory), bytes_(bytes) {}
  GpuHostMemory(GpuHostMemory&& other) noexcept
      : table_(other.table_), memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  GpuHostMemory& operator=(GpuHostMemory&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~GpuHostMemory() {
    if (memory_ != nullptr) table_->release_host(memory_);
  }

  template <typename T>
  std::span<T> as() const {
    return {static_cast<T*>(memory_), static_cast<size_t>(bytes_) / sizeof(T)};
  }
  int64_t bytes() const { return bytes_; }

 private:
  const gpu::Table* table_ = nullptr;
  void* memory_ = nullptr;
  int64_t bytes_ = 0;
};

// Launches of a device that were recorded; move-only. Used as long as the memory that they name is there.
class GpuRecording {
 public:
  GpuRecording() = default;
  GpuRecording(const gpu::Table* table, gpu::Recording recording) : table_(table), recording_(recording) {}
  GpuRecording(GpuRecording&& other) noexcept
      : table_(other.table_), recording_(std::exchange(other.recording_, nullptr)) {}
  GpuRecording& operator=(GpuRecording&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(recording_, other.recording_);
    return *this;
  }
  ~GpuRecording() {
    if (recording_ != nullptr) table_->drop(recording_);
  }

  bool empty() const { return recording_ == nullptr; }
  gpu::Recording get() const { return recording_; }

 private:
  const gpu::Table* table_ = nullptr;
  gpu::Recording recording_ = nullptr;
};

// A place in a device's stream; move-only.
class GpuMoment {
 public:
  GpuMoment() = default;
  GpuMoment(const gpu::Table* table, gpu::Moment moment) : table_(table), moment_(moment) {}
  GpuMoment(GpuMoment&& other) noexcept : table_(other.table_), moment_(std::exchange(other.moment_, nullptr)) {}
  GpuMoment& operator=(GpuMoment&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(moment_, other.moment_);
    return *this;
  }
  ~GpuMoment() {
    if (moment_ != nullptr) table_->drop_moment(moment_);
  }

  gpu::Moment get() const { return moment_; }

 private:
  const gpu::Table* table_ = nullptr;
  gpu::Moment moment_ = nullptr;
};

class Gpu {
 public:
  // `table` outlives this. UNAVAILABLE GPU_FAULT.
  static absl::StatusOr<std::unique_ptr<Gpu>> Open(const gpu::Table& table, int32_t device);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  // What a device is called, and by whom it is driven.
  static absl::StatusOr<std::string> Describe(const gpu::Table& table, int32_t device);

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

  // Keeps what launches() launches instead of running it. REQUIRES: it copies nothing in or out.
  template <typename Launches>
  absl::StatusOr<GpuRecording> Record(const Launches& launches) const {
    if (const absl::Status begun = Check(table_.record(stream_)); !begun.ok()) return begun;
    launches();
    gpu::Recording recording = nullptr;
    if (const absl::Status ended = Check(table_.recorded(stream_, &recording)); !ended.ok()) return ended;
    return GpuRecording(&table_, recording);
  }
  absl::Status Replay(const GpuRecording& recording) const { return Check(table_.replay(recording.get(), stream_)); }

  absl::StatusOr<GpuMoment> MakeMoment() const;
  absl::Status Mark(const GpuMoment& moment) const { return Check(table_.mark(moment.get(), stream_)); }
  // Seconds that the device took from one to the other, both of which were waited for.
  absl::StatusOr<double> Between(const GpuMoment& from, const GpuMoment& to) const;

  // Until all that was launched is done.
  absl::Status Wait() const { return Check(table_.wait(stream_)); }

 private:
  Gpu(const gpu::Table& table, int32_t device, gpu::Stream stream) : table_(table), device_(device), stream_(stream) {}
  static absl::Status Check(gpu::Error error);
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
