#include "engine/cache/lane_reader.h"

#include <algorithm>

#include "policies/check.h"

namespace ebb {

void LaneReader::Point(const Ops& ops, const LaneStorage& lane, const RopeView& rope) {
  ops_ = &ops;
  lane_ = lane;
  rope_ = rope;
  keys_.count = -1;
  values_.count = -1;
}

void LaneReader::Reserve(int32_t slots, int32_t head_dim) {
  keys_.at.reserve(static_cast<size_t>(slots) * head_dim);
  values_.at.reserve(static_cast<size_t>(slots) * head_dim);
}

std::span<const float> LaneReader::Read(Ops::Part part, int32_t first, int32_t count, Rows& rows) const {
  EBB_CHECK(ops_ != nullptr);
  EBB_CHECK(first >= 0);
  EBB_CHECK(count >= 0);
  EBB_CHECK(first + count <= lane_.slots);
  if (rows.first == first && rows.count == count) return rows.at;
  const int32_t d = head_dim();
  rows.first = first;
  rows.count = count;
  rows.at.resize(static_cast<size_t>(count) * d);
  ops_->Read(lane_, part, first, count, rows.at.data());
  for (int32_t i = 0; i < count; ++i) {
    if (lane_.position[first + i] < 0) std::fill_n(rows.at.begin() + int64_t{i} * d, d, 0.0F);
  }
  return rows.at;
}

}  // namespace ebb
