#include "engine/gpu/staged_copies.h"

#include <algorithm>

#include "policies/status.h"

namespace ebb {

absl::StatusOr<StagedCopies> StagedCopies::Make(const Gpu& gpu, int64_t bytes, std::string_view what) {
  std::array<GpuHostMemory, 2> stages;
  for (GpuHostMemory& stage : stages) {
    EBB_ASSIGN(stage, gpu.AllocateHost(bytes, what));
  }
  return StagedCopies(gpu, std::move(stages));
}

absl::Status StagedCopies::In(std::span<const std::byte> from, std::byte* to) {
  while (!from.empty()) {
    const std::span<std::byte> stage = stages_[filled_next_].as<std::byte>();
    const std::span<const std::byte> part = from.first(std::min(from.size(), stage.size()));
    std::ranges::copy(part, stage.begin());
    EBB_TRY(gpu_->Wait());  // for the other, which is filled next
    EBB_TRY(gpu_->CopyIn(std::span<const std::byte>(stage.first(part.size())), to));
    filled_next_ = 1 - filled_next_;
    from = from.subspan(part.size());
    to += part.size();
  }
  return absl::OkStatus();
}

}  // namespace ebb
