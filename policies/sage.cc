#include "policies/sage.h"

#include <algorithm>
#include <bit>

#include "policies/tova.h"

namespace ebb {

std::unique_ptr<const Scorer> MakeSage() { return MakeTova(); }

int32_t SageSelectedPerHead(int32_t budget, int32_t query_heads) {
  return static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(budget) / (2 * static_cast<uint32_t>(query_heads))));
}

int32_t SageRecent(int32_t budget, int32_t sinks, int32_t query_heads) {
  return std::max(budget - sinks - query_heads * SageSelectedPerHead(budget, query_heads), 1);
}

}  // namespace ebb
