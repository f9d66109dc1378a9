// A lane's values alone, for what never looks at keys.

#ifndef EBB_TESTS_SUPPORT_VALUE_MEMORY_H_
#define EBB_TESTS_SUPPORT_VALUE_MEMORY_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "policies/check.h"
#include "policies/lane_memory.h"

namespace ebb {

class ValueMemory final : public LaneMemory {
 public:
  // `values` is [slots, head_dim].
  ValueMemory(int32_t head_dim, std::vector<float> values) : head_dim_(head_dim), values_(std::move(values)) {}

  int32_t head_dim() const override { return head_dim_; }
  RopeView rope() const override { return {}; }
  std::span<const float> Keys(int32_t /*first*/, int32_t /*count*/) const override {
    CheckFailed("nobody reads keys here", __FILE__, __LINE__);
  }
  std::span<const float> Values(int32_t first, int32_t count) const override {
    return std::span(values_).subspan(static_cast<size_t>(first) * head_dim_, static_cast<size_t>(count) * head_dim_);
  }

 private:
  int32_t head_dim_;
  std::vector<float> values_;
};

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_VALUE_MEMORY_H_
