// What evictions were like, in counts that metrics can hold whatever the model and the session: from which layers, how
// old who left was, and what choosing them took.

#ifndef EBB_ENGINE_EVICTION_CENSUS_H_
#define EBB_ENGINE_EVICTION_CENSUS_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace ebb {

struct EvictionCensus {
  static constexpr int32_t kQuarters = 4;     // of a model's layers, from its first
  static constexpr int32_t kAgeClasses = 19;  // class i: ages in (2^(i-1), 2^i], the first holds 1, the last all above

  std::array<int64_t, kQuarters> slots = {};
  std::array<int64_t, kAgeClasses> ages = {};  // slots, by their tokens' age: how many tokens the log has from them on
  int64_t age_sum = 0;
  double seconds = 0;  // that threads took to choose, divided by the number of threads

  // REQUIRES: layer < layers.
  void AddSlots(int32_t layer, int32_t layers, int64_t count) { slots[int64_t{layer} * kQuarters / layers] += count; }

  // Of a token that left in so many lanes. An edit that is not over has tokens beyond its log's end: they are new.
  void AddAge(int64_t age, int64_t lanes) {
    age = std::max<int64_t>(age, 1);
    ages[std::min<size_t>(std::bit_width(static_cast<uint64_t>(age - 1)), kAgeClasses - 1)] += lanes;
    age_sum += age * lanes;
  }

  void Add(const EvictionCensus& other) {
    for (size_t i = 0; i < slots.size(); ++i) slots[i] += other.slots[i];
    for (size_t i = 0; i < ages.size(); ++i) ages[i] += other.ages[i];
    age_sum += other.age_sum;
    seconds += other.seconds;
  }
};

}  // namespace ebb

#endif  // EBB_ENGINE_EVICTION_CENSUS_H_
