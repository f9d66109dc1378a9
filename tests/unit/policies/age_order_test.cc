#include "policies/age_order.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "policies/hash_random.h"

namespace ebb {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::IsEmpty;

std::vector<int32_t> Order(const std::vector<int32_t>& token) {
  std::vector<int32_t> spare;
  std::vector<int32_t> order = {99};
  SortByAge({.token = token}, spare, order);
  return order;
}

TEST(SortByAge, SkipsFreeSlots) {
  EXPECT_THAT(Order({7, -1, 3, 5, -1}), ElementsAre(2, 3, 0));
  EXPECT_THAT(Order({-1, 4, 9}), ElementsAre(1, 2));
  EXPECT_THAT(Order({-1, -1}), IsEmpty());
  EXPECT_THAT(Order({}), IsEmpty());
}

TEST(SortByAge, SpansAllAgesThereAre) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  EXPECT_THAT(Order({kMax, 0, 1 << 24, 255, 256, 1 << 16}), ElementsAre(1, 3, 4, 5, 2, 0));
}

TEST(SortByAge, AgreesWithAComparisonSort) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t slots = random.Uniform(1, 700);
    const int32_t first = random.Uniform(0, 1 << 25);
    const int32_t gap = 1 << random.Uniform(0, 15);
    std::vector<int32_t> token;
    for (int32_t slot = 0; slot < slots; ++slot) token.push_back(first + slot * gap + random.Uniform(0, gap - 1));
    for (int32_t slot = slots; slot-- > 1;) std::swap(token[slot], token[random.Uniform(0, slot)]);
    for (int32_t& t : token) t = random.Uniform(0, 4) == 0 ? -1 : t;
    std::vector<int32_t> expected;
    for (int32_t slot = 0; slot < slots; ++slot) {
      if (token[slot] >= 0) expected.push_back(slot);
    }
    std::ranges::sort(expected, {}, [&](int32_t slot) { return token[slot]; });
    EXPECT_THAT(Order(token), ElementsAreArray(expected));
  }
}

}  // namespace
}  // namespace ebb
