// Lanes full of random K and V, as a step of many sessions finds them after long eviction: positions and pages in no
// order.

#ifndef EBB_TESTS_GPU_CHECK_LANES_H_
#define EBB_TESTS_GPU_CHECK_LANES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/gpu_check/bench.h"

namespace ebb::gpu_check {

struct LaneShape {
  int32_t sessions = 1;
  int32_t layers = 1;
  int32_t kv_heads = 8;
  int32_t group = 4;
  int32_t head_dim = 128;
  gpu::Element type = gpu::Element::kBf16;  // of K and V
  int32_t slots = 1024;
  int32_t tokens = 1;      // that each session brings to a step
  int32_t free = 0;        // slots, the last ones
  bool is_prompt = false;  // rows attend together, else each for itself
  gpu::ScoreRule rule = gpu::ScoreRule::kAge;
  gpu::ScoreModifier modifier = gpu::ScoreModifier::kNone;
  int32_t tracks = 1;  // scores of a slot
  gpu::HeadReduction reduction = gpu::HeadReduction::kTogether;
  int32_t drop = 0;

  int32_t lanes() const { return layers * kv_heads; }
  int32_t rows() const { return sessions * tokens; }
  int32_t split_slots() const { return is_prompt ? gpu::kBlockSplitSlots : gpu::kSplitSlots; }
  int32_t strips() const { return gpu::LaidStrips(slots); }
  // Scores are made into others before anybody leaves.
  bool keeps() const {
    return modifier != gpu::ScoreModifier::kNone || tracks > 1 || rule == gpu::ScoreRule::kKeyLikeness ||
           rule == gpu::ScoreRule::kChance;
  }
  // Of K and V that one layer of all sessions reads.
  double bytes() const {
    return static_cast<double>(gpu::PageBytes(type, head_dim)) / gpu::kPageSlots * sessions * kv_heads * slots;
  }
};

class Lanes {
 public:
  static absl::StatusOr<Lanes> Make(const Gpu& gpu, const LaneShape& shape);

  // `rotary_dims`: 0 for keys that are not rotated. `observes`: logits are left behind.
  gpu::AttendArgs Attend(int layer, int32_t rotary_dims, bool observes) const;
  // REQUIRES: shape().is_prompt.
  gpu::BlockArgs Block(int layer) const;
  gpu::StoreArgs Store(int layer) const;
  const gpu::CacheArgs& cache() const { return cache_; }
  // The same for who evicts and places nobody afterwards: rows attend as before, as `placed`, where an eviction leaves
  // word of the slot, is not theirs.
  gpu::CacheArgs evicting() const;
  const LaneShape& shape() const { return shape_; }
  // What scores were made into, [sessions][lanes][tracks][slots], zeros before. REQUIRES: shape().keeps().
  const GpuMemory& keep() const { return keep_; }
  // The maps, [sessions][lanes][slots] each: what a bench that evicts puts back.
  const GpuMemory& token() const { return token_; }
  const GpuMemory& position() const { return position_; }

 private:
  LaneShape shape_ = {};
  GpuMemory arena_ = {}, token_ = {}, position_ = {}, score_ = {}, keep_ = {}, placed_ = {}, scratch_ = {}, page_ = {},
            views_ = {}, evicting_views_ = {}, row_session_ = {}, turns_ = {}, q_ = {}, partial_sums_ = {},
            partial_stats_ = {}, logits_ = {}, out_ = {}, stats_ = {}, laid_q_ = {}, laid_kv_ = {}, laid_position_ = {},
            laid_earliest_ = {}, laid_latest_ = {}, arrived_ = {};
  gpu::CacheArgs cache_ = {};
};

}  // namespace ebb::gpu_check

#endif  // EBB_TESTS_GPU_CHECK_LANES_H_
