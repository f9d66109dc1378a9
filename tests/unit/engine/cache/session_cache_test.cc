#include "engine/cache/session_cache.h"

#include <gmock/gmock.h>

#include <set>
#include <vector>

#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

constexpr KvFormat kFormat = {.type = KvType::kF32, .rope_cache = RopeCache::kFused, .head_dim = 8, .page_tiles = 2};
const CacheShape kShape = {.layers = 2, .kv_heads = 3, .format = kFormat, .capacity = 50, .block_max = 8};

ValidSpec Spec(const std::string& scorer) {
  const auto valid = Resolve({.scorer = scorer, .budget = 40}, {.trained_context = 4096});
  EXPECT_THAT(valid, IsOk());
  return *valid;
}

class SessionCacheTest : public testing::Test {
 protected:
  SessionCache Make(const std::string& scorer) {
    return SessionCache(kShape, *pool_->Reserve(kShape.pages()), Spec(scorer));
  }

  std::unique_ptr<PagePool> pool_ = *PagePool::Create(100 * 2048, 2048);
};

TEST_F(SessionCacheTest, ReservesWholePagesForEveryLane) {
  EXPECT_EQ(kShape.pages_of(0), 2);  // 50 slots in pages of 32
  EXPECT_EQ(Make("full").pages(), 12);
}

TEST_F(SessionCacheTest, NoTwoLanesShareAPage) {
  const SessionCache cache = Make("full");
  std::set<std::byte*> pages;
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (int32_t head = 0; head < 3; ++head) {
      const LaneStorage lane = cache.storage(layer, head);
      pages.insert(lane.pages[0]);
      pages.insert(lane.pages[1]);
    }
  }
  EXPECT_EQ(pages.size(), 12);
}

TEST_F(SessionCacheTest, LanesShareOneMapWhileTheyHoldTheSameTokens) {
  EXPECT_EQ(Make("full").maps().size(), 1);
  EXPECT_EQ(Make("streaming").maps().size(), 1);
  EXPECT_EQ(Make("h2o").maps().size(), 6);
}

TEST_F(SessionCacheTest, SeparatedLanesBeginAlikeAndThenDiffer) {
  SessionCache cache = Make("full");
  cache.maps()[0].Place(0, 0, 8);
  cache.maps()[0].Free(std::vector<int32_t>{2});
  cache.SeparateLanes();
  ASSERT_EQ(cache.maps().size(), 6);
  cache.map(1, 2).Free(std::vector<int32_t>{5});
  EXPECT_THAT(cache.map(1, 2).token(), testing::ElementsAre(0, 1, -1, 3, 4, -1, 6, 7));
  EXPECT_THAT(cache.map(0, 0).token(), testing::ElementsAre(0, 1, -1, 3, 4, 5, 6, 7));
  EXPECT_EQ(cache.storage(1, 2).position[5], -1);
  EXPECT_EQ(cache.storage(0, 0).position[5], 5);
}

TEST_F(SessionCacheTest, MovingACacheKeepsItsMemory) {
  SessionCache cache = Make("h2o");
  cache.map(1, 1).Place(0, 0, 3);
  const std::byte* const page = cache.storage(1, 1).pages[0];
  const SessionCache moved = std::move(cache);
  EXPECT_EQ(moved.storage(1, 1).pages[0], page);
  EXPECT_EQ(moved.map(1, 1).live(), 3);
}

}  // namespace
}  // namespace ebb
