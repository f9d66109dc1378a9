// A lane's K and V for scorers: rows read through the ops into buffers of its own.

#ifndef EBB_ENGINE_CACHE_LANE_READER_H_
#define EBB_ENGINE_CACHE_LANE_READER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/ops.h"
#include "policies/lane_memory.h"

namespace ebb {

// One thread's; keeps its buffers from lane to lane.
class LaneReader final : public LaneMemory {
 public:
  // Everything it answers from here on is of this lane. All three outlive the use.
  void Point(const Ops& ops, const LaneStorage& lane, const RopeView& rope);

  // Room for lanes of `slots` slots, so that reading them allocates nothing.
  void Reserve(int32_t slots, int32_t head_dim);

  int32_t head_dim() const override { return lane_.format.head_dim; }
  RopeView rope() const override { return rope_; }
  std::span<const float> Keys(int32_t first, int32_t count) const override {
    return Read(Ops::Part::kKeys, first, count, keys_);
  }
  std::span<const float> Values(int32_t first, int32_t count) const override {
    return Read(Ops::Part::kValues, first, count, values_);
  }

 private:
  struct Rows {
    int32_t first = 0;
    int32_t count = -1;  // -1: nothing of this lane was read yet
    std::vector<float> at = {};
  };
  std::span<const float> Read(Ops::Part part, int32_t first, int32_t count, Rows& rows) const;

  const Ops* ops_ = nullptr;
  LaneStorage lane_ = {};
  RopeView rope_ = {};
  mutable Rows keys_ = {};
  mutable Rows values_ = {};
};

}  // namespace ebb

#endif  // EBB_ENGINE_CACHE_LANE_READER_H_
