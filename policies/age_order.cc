#include "policies/age_order.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace ebb {

void SortByAge(const LaneView& lane, std::vector<int32_t>& spare, std::vector<int32_t>& order) {
  order.clear();
  int32_t oldest = 0;
  int32_t newest = -1;
  bool sorted = true;
  for (int32_t slot = 0; slot < static_cast<int32_t>(lane.token.size()); ++slot) {
    const int32_t token = lane.token[slot];
    if (token < 0) continue;
    if (order.empty()) oldest = token;
    oldest = std::min(oldest, token);
    sorted = sorted && token > newest;
    newest = std::max(newest, token);
    order.push_back(slot);
  }
  if (sorted) return;  // as a prompt leaves it
  // Radix sort from the lowest byte: each pass keeps the order of the one before among equals.
  spare.resize(order.size());
  for (int32_t shift = 0; shift < 32 && (newest - oldest) >> shift > 0; shift += 8) {
    const auto digit = [&](int32_t slot) { return ((lane.token[slot] - oldest) >> shift) & 0xFF; };
    std::array<int32_t, 256> place = {};
    for (const int32_t slot : order) ++place[digit(slot)];
    std::exclusive_scan(place.begin(), place.end(), place.begin(), 0);
    for (const int32_t slot : order) spare[place[digit(slot)]++] = slot;
    std::swap(order, spare);
  }
}

}  // namespace ebb
