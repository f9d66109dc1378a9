#include "engine/cache/page_pool.h"

#include <gmock/gmock.h>

#include <cstring>
#include <utility>
#include <vector>

#include "policies/hash_random.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

constexpr int64_t kPage = 4096;

std::unique_ptr<PagePool> MakePool(int64_t pages) {
  auto pool = PagePool::Create(pages * kPage, kPage);
  EXPECT_THAT(pool, IsOk());
  return *std::move(pool);
}

// Page numbers, counted from the first page of the arena.
std::vector<int64_t> Numbers(const PageLease& lease, const std::byte* arena) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < lease.size(); ++i) numbers.push_back((lease.address(i) - arena) / kPage);
  return numbers;
}

TEST(PagePool, HandsOutTheLowestFreePagesFirst) {
  const auto pool = MakePool(10);
  PageLease first = *pool->Reserve(3);
  const std::byte* const arena = first.address(0);
  PageLease second = *pool->Reserve(3);
  EXPECT_THAT(Numbers(first, arena), testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(Numbers(second, arena), testing::ElementsAre(3, 4, 5));
  first = PageLease();
  EXPECT_THAT(Numbers(*pool->Reserve(5), arena), testing::ElementsAre(0, 1, 2, 6, 7));
}

TEST(PagePool, RefusesMoreThanIsFreeAndNamesBothNumbers) {
  const auto pool = MakePool(4);
  const PageLease held = *pool->Reserve(3);
  const auto refused = pool->Reserve(2);
  EXPECT_THAT(refused, IsRefusal(absl::StatusCode::kUnavailable, "NO_PAGES", ""));
  EXPECT_THAT(std::string(refused.status().message()),
              testing::AllOf(testing::HasSubstr("2"), testing::HasSubstr("1")));
  EXPECT_EQ(pool->pages_free(), 1);
  EXPECT_THAT(pool->Reserve(1), IsOk());
}

TEST(PagePool, RefusesAnArenaWithoutRoomForAPage) {
  EXPECT_THAT(PagePool::Create(kPage - 1, kPage), IsRefusal(absl::StatusCode::kInvalidArgument, "ARENA_TOO_SMALL", ""));
}

// A server finds out first that the machine has no memory for it, unless it has.
TEST(PagePool, RefusesAnArenaOfMorePagesThanItCanCount) {
  EXPECT_THAT(PagePool::Create(int64_t{64} << 31, 64),
              IsRefusal(absl::StatusCode::kInvalidArgument, "ARENA_TOO_LARGE", "cache.arena"));
}

TEST(PageLease, GivesItsPagesBackOnceWhateverIsMoved) {
  const auto pool = MakePool(4);
  {
    PageLease a = *pool->Reserve(2);
    PageLease b = std::move(a);
    EXPECT_EQ(pool->pages_free(), 2);
    PageLease c = *pool->Reserve(1);
    c = std::move(b);  // what c held goes back at once
    EXPECT_EQ(pool->pages_free(), 2);
    PageLease& same = c;
    c = std::move(same);
    EXPECT_EQ(c.size(), 2);
  }
  EXPECT_EQ(pool->pages_free(), 4);
}

TEST(PageLease, SharesPagesThatAreFreeWhenNobodyHoldsThem) {
  const auto pool = MakePool(8);
  PageLease one = *pool->Reserve(3);
  PageLease other = one.Share();
  EXPECT_EQ(pool->pages_free(), 5);
  EXPECT_EQ(pool->pages_shared(), 3);
  EXPECT_EQ(pool->pages_spared(), 3);
  EXPECT_EQ(other.address(2), one.address(2));
  one = PageLease();
  EXPECT_EQ(pool->pages_free(), 5);
  EXPECT_EQ(pool->pages_shared(), 0);
  EXPECT_FALSE(other.shared(0));
  other = PageLease();
  EXPECT_EQ(pool->pages_free(), 8);
}

TEST(PageLease, CopiesASharedPageToOneThatIsPromisedOrGiven) {
  const auto pool = MakePool(8);
  const PageLease one = *pool->Reserve(2);
  std::memset(one.address(0), 7, kPage);
  PageLease other = one.Share();
  PageLease third = one.Share();
  EXPECT_EQ(other.PagesToCopy(0), 1);
  other.Promise(0);
  EXPECT_EQ(pool->pages_promised(), 2) << "all but one of three";
  EXPECT_EQ(pool->pages_free(), 4);
  PageLease none;
  EXPECT_EQ(other.PagesToCopy(0), 0);
  other.Copy(0, none);
  EXPECT_EQ(pool->pages_free(), 4);
  EXPECT_NE(other.address(0), one.address(0));
  EXPECT_EQ(std::memcmp(other.address(0), one.address(0), kPage), 0);
  EXPECT_FALSE(other.shared(0));
  third = PageLease();
  EXPECT_EQ(pool->pages_promised(), 0) << "one needs no copy now";
  EXPECT_EQ(pool->pages_free(), 5);
  PageLease given = *pool->Reserve(1);
  other.Copy(1, given);
  EXPECT_EQ(given.size(), 0);
  EXPECT_EQ(pool->pages_spared(), 0);
  EXPECT_EQ(pool->pages_copied(), 2);
}

TEST(PageLease, ASharedPromiseIsKeptForThoseWhoJoin) {
  const auto pool = MakePool(8);
  const PageLease one = *pool->Reserve(1);
  PageLease other = one.Share();
  EXPECT_FALSE(other.lacks_one_promise(0)) << "none was given";
  other.Promise(0);
  const PageLease third = one.Share();
  EXPECT_TRUE(third.lacks_one_promise(0));
  EXPECT_EQ(third.PagesToPromise(0), 1);
}

// Against the obvious model: a page is free or in one lease, and the free ones are handed out in order.
TEST(PagePool, NoPageHasTwoOwnersUnderRandomTraffic) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    HashRandom random(seed);
    const auto pool = MakePool(200);
    const std::byte* const arena = (*pool->Reserve(1)).address(0);
    std::vector<bool> owned(200, false);
    std::vector<PageLease> leases;
    for (int step = 0; step < 300; ++step) {
      if (random.Uniform(0, 1) == 0 && !leases.empty()) {
        const auto index = static_cast<size_t>(random.Uniform(0, static_cast<int32_t>(leases.size()) - 1));
        for (const int64_t page : Numbers(leases[index], arena)) owned[page] = false;
        leases.erase(leases.begin() + static_cast<std::ptrdiff_t>(index));
        continue;
      }
      auto lease = pool->Reserve(random.Uniform(0, 30));
      if (!lease.ok()) continue;
      for (const int64_t page : Numbers(*lease, arena)) {
        ASSERT_EQ(std::find(owned.begin(), owned.end(), false) - owned.begin(), page);
        owned[page] = true;
      }
      leases.push_back(*std::move(lease));
      ASSERT_EQ(pool->pages_free(), std::count(owned.begin(), owned.end(), false));
    }
  }
}

// A page whose first byte is this one.
PageLease Written(PagePool& pool, char byte) {
  PageLease lease = *pool.Reserve(1);
  *lease.address(0) = static_cast<std::byte>(byte);
  return lease;
}

TEST(PagePool, AKeptPageIsFreeAndStaysAsItWasUntilItIsWanted) {
  const auto pool = MakePool(3);
  KeptPages kept;
  pool->SetLetGo([&] { kept = KeptPages(); });
  PageLease writer = Written(*pool, 'a');
  writer.Keep(0, kept);
  EXPECT_FALSE(writer.writable(0));
  writer.LeaveKept(0);  // before it writes
  ASSERT_TRUE(writer.writable(0));
  EXPECT_EQ(pool->pages_free(), 2);
  EXPECT_EQ(*writer.address(0), std::byte{'a'});
  *writer.address(0) = std::byte{'b'};

  PageLease later = *pool->Reserve(1);
  later.Take(0, kept, 0);  // takes the page over, since nobody holds it
  EXPECT_EQ(*later.address(0), std::byte{'a'});
  EXPECT_FALSE(later.writable(0));
  PageLease third = *pool->Reserve(1);
  third.Take(0, kept, 0);  // copies
  EXPECT_EQ(*third.address(0), std::byte{'a'});
  EXPECT_TRUE(third.writable(0));
  EXPECT_EQ(pool->pages_free(), 0);
  EXPECT_EQ(pool->pages_kept(), 1);

  later.LeaveKept(0);  // no room for both: in place
  EXPECT_EQ(pool->pages_kept(), 0);
  EXPECT_TRUE(later.writable(0));
}

TEST(PagePool, KeptPagesGoToWhoeverReservesThem) {
  const auto pool = MakePool(2);
  std::vector<KeptPages> kept(2);
  pool->SetLetGo([&] { kept.pop_back(); });
  {
    const PageLease lease = *pool->Reserve(2);
    for (KeptPages& pages : kept) {
      lease.Keep(0, pages);
      lease.Keep(1, pages);
    }
  }
  EXPECT_EQ(pool->pages_free(), 2);
  EXPECT_EQ(pool->pages_kept(), 2);
  EXPECT_THAT(pool->Reserve(3), IsRefusal(absl::StatusCode::kUnavailable, "NO_PAGES", ""));
  const PageLease all = *pool->Reserve(2);
  EXPECT_TRUE(kept.empty());
  EXPECT_EQ(pool->pages_kept(), 0);
}

}  // namespace
}  // namespace ebb
