// Experiments in a real Redis, by the server that writes them and those that come after it: what was written is one
// server's at any time, and counts once, whoever dies when.

#include "server/redis_experiments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "policies/status.h"
#include "server/redis_sessions.h"
#include "tests/support/eventually.h"
#include "tests/support/redis_process.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using Lefts = ExperimentStore::Lefts;

constexpr absl::Duration kLease = absl::Seconds(3);  // for how long a store waits after Redis was away

// What is in a store, whoever has it: a text for each experiment, in the place of images.
class RedisExperimentsTest : public testing::Test {
 protected:
  RedisExperimentsTest() {
    for (const char* server : {"a", "b", "c"}) Lives(server);
  }
  void Lives(const std::string& server) const {
    Ask(RedisKeys("ebb:", server).Lease("here:7700", absl::Minutes(10), false));
  }
  void Dies(const std::string& server) const { Ask(RedisKeys("ebb:", server).EndLease()); }
  void Ask(const RedisCommand& command) const { redis_.Ask(command); }

  std::unique_ptr<RedisExperiments> Of(const std::string& server) const {
    return std::make_unique<RedisExperiments>(redis_.options(), "ebb:", server, kLease);
  }
  static std::vector<std::string> Texts(RedisExperiments& store, const Lefts& lefts) {
    std::vector<std::string> texts;
    for (const ExperimentStore::Left& left : lefts) texts.push_back(absl::StrCat(left.id, "=", *store.Read(left)));
    return texts;
  }
  static std::vector<std::string> Found(RedisExperiments& store) {
    const auto found = store.Find();
    EXPECT_THAT(found.status(), IsOk());
    return Texts(store, *found);
  }

  TemporaryFolder folder_;
  RedisProcess redis_{folder_.path()};
};

TEST_F(RedisExperimentsTest, AreAnothersOnceTheirServerIsGone) {
  const auto a = Of("a");
  const auto b = Of("b");
  ASSERT_THAT(a->Write("e", "of a", {}), IsOk());
  ASSERT_THAT(a->Write("e", "of a, later", {}), IsOk());
  ASSERT_THAT(a->Write("f", std::string("\0\r\n\xff", 4), {}), IsOk());
  ASSERT_THAT(a->Write("gone", "of a", {}), IsOk());
  ASSERT_THAT(a->Remove("gone", {}), IsOk());
  EXPECT_THAT(Found(*b), IsEmpty()) << "it lives";
  EXPECT_THAT(Found(*a), IsEmpty()) << "it knows them";
  Dies("a");
  EXPECT_THAT(Found(*b), UnorderedElementsAre("e=of a, later", std::string("f=\0\r\n\xff", 6)));
  EXPECT_THAT(Found(*b), SizeIs(2)) << "as long as it has not written them itself";
  EXPECT_THAT(Found(*Of("c")), IsEmpty());
}

TEST_F(RedisExperimentsTest, AreTakenByOneOfTwoWhoLookAtOnce) {
  constexpr int kServers = 100;
  for (int i = 0; i < kServers; ++i) {
    const std::string server = absl::StrCat("server-", i);
    Lives(server);
    ASSERT_THAT(Of(server)->Write("e", absl::StrCat(i), {}), IsOk());
    Dies(server);
  }
  std::vector<std::string> of_b;
  std::vector<std::string> of_c;
  {
    std::jthread first([&] { of_b = Found(*Of("b")); });
    std::jthread second([&] { of_c = Found(*Of("c")); });
  }
  std::vector<std::string> all = of_b;
  all.insert(all.end(), of_c.begin(), of_c.end());
  EXPECT_THAT(all, SizeIs(kServers));
  std::ranges::sort(all);
  EXPECT_EQ(std::ranges::unique(all).begin(), all.end());
}

TEST_F(RedisExperimentsTest, CountOnceWheneverTheTakerDies) {
  ASSERT_THAT(Of("a")->Write("e", "of a", {}), IsOk());
  const auto b = Of("b");
  ASSERT_THAT(b->Write("e", "of b", {}), IsOk());
  Dies("a");
  ASSERT_THAT(*b->Find(), SizeIs(1));
  Dies("b");  // before it has written the sum
  const auto c = Of("c");
  const Lefts both = *c->Find();
  EXPECT_THAT(Texts(*c, both), UnorderedElementsAre("e=of a", "e=of b"));

  ASSERT_THAT(c->Write("e", "of all", both), IsOk());
  EXPECT_THAT(Found(*c), IsEmpty());
  ASSERT_THAT(c->Write("e", "of all", both), IsOk()) << "as if the answer had been lost";
  Dies("c");  // afterwards
  Lives("d");
  EXPECT_THAT(Found(*Of("d")), ElementsAre("e=of all"));
}

TEST_F(RedisExperimentsTest, OfAServerThatWasTakenForDeadAreTheTakers) {
  const auto a = Of("a");
  const auto b = Of("b");
  ASSERT_THAT(a->Write("e", "of a", {}), IsOk());
  Dies("a");
  EXPECT_EQ(GetRefusal(a->Write("e", "of a, which has no lease", {})).reason, "STORE_FAILED");
  const Lefts taken = *b->Find();
  ASSERT_THAT(taken, SizeIs(1));
  Lives("a");
  for (int tries = 0; tries < 2; ++tries) {
    const auto again = Of("a");  // whose first answer was lost
    EXPECT_EQ(again->Write("e", "of a, which slept", {}).code(), absl::StatusCode::kAborted);
  }
  EXPECT_EQ(a->Write("e", "of a, which slept", {}).code(), absl::StatusCode::kAborted);
  EXPECT_THAT(a->Write("e", "of a, begun anew", {}), IsOk());
  EXPECT_THAT(Texts(*b, taken), ElementsAre("e=of a"));
  ASSERT_THAT(b->Write("e", "of both", taken), IsOk());
  Dies("a");
  EXPECT_THAT(Found(*b), ElementsAre("e=of a, begun anew"));
}

// It may have more than was taken: what is its own still, it has to find again.
TEST_F(RedisExperimentsTest, OfWhichATakerLostSomeAreFoundAgain) {
  ASSERT_THAT(Of("a")->Write("e", "of a", {}), IsOk());
  const auto b = Of("b");
  Dies("a");
  const Lefts taken = *b->Find();
  Dies("b");
  const auto c = Of("c");
  ASSERT_THAT(*c->Find(), SizeIs(1));  // of a; b has written nothing yet
  Lives("b");
  ASSERT_THAT(b->Write("f", "of b", {}), IsOk());
  EXPECT_EQ(b->Write("e", "of a and b", taken).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(b->Read(taken[0]).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Found(*c), ElementsAre("e=of a"));
  ASSERT_THAT(b->Write("e", "of b", {}), IsOk());
  EXPECT_THAT(Found(*b), ElementsAre("f=of b"));
}

TEST_F(RedisExperimentsTest, ThatOneServerLeavesAreForTheOthers) {
  ASSERT_THAT(Of("a")->Write("e", "of a", {}), IsOk());
  Dies("a");
  const auto b = Of("b");
  const auto c = Of("c");
  const Lefts first = *b->Find();
  ASSERT_THAT(first, SizeIs(1));
  EXPECT_THAT(first[0].beside, MatchesRegex("e-[0-9]+"));
  ASSERT_THAT(b->Leave(first[0].place), IsOk());
  ASSERT_THAT(*c->Find(), SizeIs(1));
  EXPECT_THAT(Found(*b), IsEmpty());
  ASSERT_THAT(c->Leave((*c->Find())[0].place), IsOk());
  const Lefts second = *b->Find();
  EXPECT_EQ(second, first) << "it is known where it was seen before";
  EXPECT_THAT(b->Write("e", "of both", second), IsOk()) << "and is b's as if nobody else had had it";
  Dies("b");
  EXPECT_THAT(Found(*c), ElementsAre("e=of both"));
}

TEST_F(RedisExperimentsTest, ThatAreSetAsideAreFoundByNobodyButWhoLooksAfterRedis) {
  ASSERT_THAT(Of("a")->Write("e", "damaged", {}), IsOk());
  Dies("a");
  const auto b = Of("b");
  const Lefts found = *b->Find();
  ASSERT_THAT(found, SizeIs(1));
  const auto aside = b->SetAside(found[0]);
  ASSERT_THAT(aside.status(), IsOk());
  EXPECT_EQ(*aside, absl::StrCat("ebb:experiments:aside ", found[0].beside));
  EXPECT_EQ(redis_.Ask({"HGET", "ebb:experiments:aside", found[0].beside}), "damaged");
  EXPECT_THAT(Found(*b), IsEmpty());
  EXPECT_EQ(redis_.Ask({"SCARD", "ebb:experiments"}), "0");
}

TEST_F(RedisExperimentsTest, HaveNamesBesideThatAreNames) {
  const std::string longest(63, 'e');
  ASSERT_THAT(Of("a")->Write(longest, "of a", {}), IsOk());
  Dies("a");
  const Lefts found = *Of("b")->Find();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].beside, SizeIs(63));
  EXPECT_NE(found[0].beside, longest);
}

TEST_F(RedisExperimentsTest, WaitForARedisThatIsAwayAndGiveOthersTheTimeToRenewTheirLeases) {
  const auto a = Of("a");
  const auto b = Of("b");
  EXPECT_FALSE(a->HasBeenAway());
  ASSERT_THAT(a->Write("e", "of a", {}), IsOk());
  ASSERT_THAT(b->Write("e", "of b", {}), IsOk());
  a->HasBeenAway();
  EXPECT_FALSE(a->HasBeenAway());
  const absl::Time killed = absl::Now();
  redis_.Kill();
  EXPECT_EQ(GetRefusal(a->Write("e", "of a, later", {})).reason, "STORE_FAILED");
  EXPECT_FALSE(b->Find().ok());
  redis_.Start();
  Dies("a");  // as far as b can tell
  ASSERT_TRUE(Eventually([&] { return b->Find().ok(); }));
  ASSERT_TRUE(Eventually([&] { return !Found(*b).empty(); }));
  EXPECT_GE(absl::Now() - killed, kLease);
  Lives("a");
  absl::Status written;
  ASSERT_TRUE(Eventually([&] { return absl::IsAborted(written = a->Write("e", "of a, later", {})); })) << written;
  EXPECT_TRUE(a->HasBeenAway()) << "it may have come back with less";
}

}  // namespace
}  // namespace ebb
