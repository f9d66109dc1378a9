// Attention over lanes: cuts tasks into items, which threads take, and calls the kernel for each.

#ifndef EBB_ENGINE_OPS_CPU_ATTEND_OP_H_
#define EBB_ENGINE_OPS_CPU_ATTEND_OP_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/ops.h"
#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/work.h"

namespace ebb::cpu {

// What one kernel call takes: some tokens of one AttendTask, or all those of several, or of a part of their slots.
struct AttendItem {
  int32_t task = 0;
  int32_t first = 0;
  int32_t tokens = 0;
  int32_t tasks = 1;
  int32_t part = -1;             // of the slots (kPartSlots); -1: all
  float* column_sums = nullptr;  // where this item's own sums go, null unless wanted
};

class AttendOp {
 public:
  // Both outlive it.
  AttendOp(const Kernels& kernels, Parallel& parallel)
      : kernels_(kernels), parallel_(parallel), scratch_(static_cast<size_t>(parallel.threads())) {}

  // As Ops states them.
  void Store(const Rope& rope, std::span<const StoreTask> tasks);
  void Attend(const Rope& rope, int32_t group, std::span<const AttendTask> tasks, Ops::TaskDone done);

 private:
  void StoreOne(const Rope& rope, const StoreTask& task) const;
  void StoreOfSeveralItems(const Rope& rope, std::span<const AttendTask> tasks);
  void PlanItems(const Rope& rope, int32_t group, std::span<const AttendTask> tasks);
  void CutLanes(std::span<const AttendTask> tasks);
  void PlaceParts(int32_t group, std::span<const AttendTask> tasks);
  void JoinItems(const Rope& rope, std::span<const AttendTask> tasks);
  void ReserveScratch(int32_t group, const Rope& rope, std::span<const AttendTask> tasks);
  void AttendOne(const Rope& rope, int32_t group, std::span<const AttendTask> tasks, int64_t i, Scratch& scratch);
  void AskForLaneAfter(std::span<const AttendTask> tasks, int64_t i, AttendArgs& args) const;
  void MergeParts(const Rope& rope, int32_t group, std::span<const AttendTask> tasks, int32_t task, Scratch& scratch);
  void SumColumns(int32_t group, std::span<const AttendTask> tasks);

  const Kernels& kernels_;
  Parallel& parallel_;
  std::vector<Scratch> scratch_;  // by thread
  std::vector<AttendItem> items_ = {};
  std::vector<int32_t> cut_ = {};  // tasks of several items
  std::vector<StoreTask> stores_ = {};
  Scratch partial_sums_ = {};
  std::vector<AttendItem> uncut_ = {};  // of PlanItems, while lanes are cut
  std::vector<float*> parts_at_ = {};   // by task, where its lane is cut: what its parts come to, and their logits
  Scratch parts_ = {};
};

}  // namespace ebb::cpu

#endif  // EBB_ENGINE_OPS_CPU_ATTEND_OP_H_
