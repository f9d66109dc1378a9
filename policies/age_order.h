// The live slots of a lane, oldest first: what pools along the text, and who asks for the newest, walk this.

#ifndef EBB_POLICIES_AGE_ORDER_H_
#define EBB_POLICIES_AGE_ORDER_H_

#include <cstdint>
#include <vector>

#include "policies/lane_view.h"

namespace ebb {

// Replaces `order` by the live slots in ascending order of token; `spare` is working memory. Allocates nothing once
// both have room for the lane. O(n) for each byte that the ages span: two passes for a log of 64 K tokens.
void SortByAge(const LaneView& lane, std::vector<int32_t>& spare, std::vector<int32_t>& order);

}  // namespace ebb

#endif  // EBB_POLICIES_AGE_ORDER_H_
