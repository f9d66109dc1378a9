// From the host's ordinary memory to a device through two pinned buffers: while one is on its way, the other is filled,
// and whoever makes what is copied next goes on.

#ifndef EBB_ENGINE_GPU_STAGED_COPIES_H_
#define EBB_ENGINE_GPU_STAGED_COPIES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gpu/gpu.h"

namespace ebb {

class StagedCopies {
 public:
  // Of so many bytes each. `gpu` outlives it. HOST_OUT_OF_MEMORY.
  static absl::StatusOr<StagedCopies> Make(const Gpu& gpu, int64_t bytes, std::string_view what);

  // In the stream's order. `from` may go when this returns; `to` is whole after Wait.
  absl::Status In(std::span<const std::byte> from, std::byte* to);

  // New memory with these numbers in it.
  template <typename T>
  absl::StatusOr<GpuMemory> Upload(std::span<const T> from, std::string_view what) {
    absl::StatusOr<GpuMemory> memory = gpu_->Allocate(static_cast<int64_t>(from.size_bytes()), what);
    if (!memory.ok()) return memory;
    if (const absl::Status copied = In(std::as_bytes(from), memory->as<std::byte>()); !copied.ok()) return copied;
    return memory;
  }

  StagedCopies(StagedCopies&& other) noexcept
      : gpu_(std::exchange(other.gpu_, nullptr)), stages_(std::move(other.stages_)), filled_next_(other.filled_next_) {}
  StagedCopies& operator=(StagedCopies&&) = delete;
  // Waits for what it copies. A device that fails here says so in the next Wait, too.
  ~StagedCopies() {
    if (gpu_ != nullptr) gpu_->Wait().IgnoreError();
  }

 private:
  StagedCopies(const Gpu& gpu, std::array<GpuHostMemory, 2> stages) : gpu_(&gpu), stages_(std::move(stages)) {}

  const Gpu* gpu_;
  std::array<GpuHostMemory, 2> stages_;
  size_t filled_next_ = 0;  // of the two, which no copy reads
};

}  // namespace ebb

#endif  // EBB_ENGINE_GPU_STAGED_COPIES_H_
