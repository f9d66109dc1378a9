// A lane's memory for tests: rows of floats in a vector, as LaneMemory shows them.

#ifndef EBB_TESTS_SUPPORT_LANE_MEMORY_OF_H_
#define EBB_TESTS_SUPPORT_LANE_MEMORY_OF_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "policies/check.h"
#include "policies/lane_memory.h"

namespace ebb {

class LaneMemoryOf final : public LaneMemory {
 public:
  // [slots, head_dim] each; without values these are zeros.
  LaneMemoryOf(int32_t head_dim, std::vector<float> key_rows, std::vector<float> value_rows = {})
      : keys(std::move(key_rows)), values(std::move(value_rows)), head_dim_(head_dim) {
    values.resize(keys.size());
  }

  int32_t head_dim() const override { return head_dim_; }
  RopeView rope() const override { return {.halves = halves, .frequencies = frequencies}; }
  std::span<const float> Keys(int32_t first, int32_t count) const override { return Rows(keys, first, count); }
  std::span<const float> Values(int32_t first, int32_t count) const override { return Rows(values, first, count); }

  std::vector<float> keys, values;
  bool halves = false;
  std::vector<double> frequencies = {};  // none: keys are not rotated

 private:
  std::span<const float> Rows(const std::vector<float>& rows, int32_t first, int32_t count) const {
    EBB_CHECK(first >= 0 && count >= 0);
    EBB_CHECK((int64_t{first} + count) * head_dim_ <= static_cast<int64_t>(rows.size()));
    return std::span(rows).subspan(static_cast<size_t>(int64_t{first} * head_dim_),
                                   static_cast<size_t>(int64_t{count} * head_dim_));
  }

  int32_t head_dim_;
};

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_LANE_MEMORY_OF_H_
