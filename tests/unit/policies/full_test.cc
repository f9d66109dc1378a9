#include "policies/full.h"

#include <gmock/gmock.h>

#include <vector>

namespace ebb {
namespace {

using testing::Each;

TEST(Full, AsksNothingAndPrefersNobody) {
  const auto full = MakeFull();
  EXPECT_FALSE(full->needs().observes());
  EXPECT_EQ(full->needs().state_floats, 0);
  const std::vector<int32_t> token = {5, -1, 0, 9};
  std::vector<float> keep = {7, 8, 9, 10};
  full->Observe({}, {.queries = 1}, {});
  full->Score({.token = token, .live = 3}, {}, keep);
  EXPECT_THAT(keep, Each(0.0F));
}

}  // namespace
}  // namespace ebb
