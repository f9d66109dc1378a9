// K and V of one lane as a scorer may read them: floats, slot by slot, whatever format the cache keeps them in.

#ifndef EBB_POLICIES_LANE_MEMORY_H_
#define EBB_POLICIES_LANE_MEMORY_H_

#include <cstdint>
#include <span>

namespace ebb {

// RoPE as the model states it: pair i of a row turns by position * frequencies[i] radians.
struct RopeView {
  bool halves = false;                       // pairs (i, i + rotary_dims / 2), else neighbours (2i, 2i + 1)
  std::span<const double> frequencies = {};  // [rotary_dims / 2]
};

// One lane's memory. Used by one thread at a time; implementations own the buffers they answer with.
class LaneMemory {
 public:
  virtual ~LaneMemory() = default;

  virtual int32_t head_dim() const = 0;
  virtual RopeView rope() const = 0;

  // [count, head_dim] unrotated keys of slots first .. first + count - 1, as attention reads them; rows of free slots
  // are 0. Valid until the next call of Keys.
  virtual std::span<const float> Keys(int32_t first, int32_t count) const = 0;

  // [count, head_dim] values, alike. Valid until the next call of Values.
  virtual std::span<const float> Values(int32_t first, int32_t count) const = 0;
};

// Turns `row` [head_dim] by `position`, in place; angles are float64.
void Rotate(const RopeView& rope, int64_t position, std::span<float> row);

}  // namespace ebb

#endif  // EBB_POLICIES_LANE_MEMORY_H_
