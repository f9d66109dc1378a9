#include "engine/cache/slot_map.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <vector>

#include "policies/hash_random.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;

std::vector<int32_t> FirstPositions(const SlotMap& map, int32_t count) {
  return {map.position().begin(), map.position().begin() + count};
}

TEST(SlotMap, NewTokensTakeTheLowestFreeSlotsInTokenOrder) {
  SlotMap map(8, 4, {}, Positions::kOriginal);
  map.Place(0, 0, 4);
  map.Place(4, 4, 2);
  EXPECT_THAT(map.token(), ElementsAre(0, 1, 2, 3, 4, 5));
  map.Free(std::vector<int32_t>{1, 3});
  map.Place(6, 6, 3);
  EXPECT_THAT(map.placed_slots(), ElementsAre(1, 3, 6));
  EXPECT_THAT(map.placed_positions(), ElementsAre(6, 7, 8));
  EXPECT_THAT(map.token(), ElementsAre(0, 6, 2, 7, 4, 5, 8));
}

TEST(SlotMap, AFreeSlotCannotBeSeen) {
  SlotMap map(20, 20, {}, Positions::kOriginal);
  map.Place(0, 0, 17);
  map.Free(std::vector<int32_t>{0, 5});
  EXPECT_EQ(map.position().size(), 32);  // whole tiles
  EXPECT_EQ(map.token()[5], -1);
  for (const int32_t slot : {0, 5, 17, 31}) EXPECT_EQ(map.position()[slot], -1);
}

TEST(SlotMap, CompactedPositionsAreRanksByAge) {
  SlotMap map(6, 6, {}, Positions::kCompacted);
  map.Place(0, 0, 6);
  map.Free(std::vector<int32_t>{1, 4});
  EXPECT_THAT(FirstPositions(map, 6), ElementsAre(0, -1, 1, 2, -1, 3));
  map.Place(6, 6, 2);  // what the caller says of positions does not matter here
  EXPECT_THAT(FirstPositions(map, 6), ElementsAre(0, 4, 1, 2, 5, 3));
  EXPECT_THAT(map.placed_positions(), ElementsAre(4, 5));
}

// StreamingLLM's own example: tokens 0 1 2 3 6 7 8 are there when token 9 comes, and the positions are 0 to 7.
TEST(SlotMap, CompactedPositionsAreThoseOfTheWorkedExample) {
  SlotMap map(9, 9, {}, Positions::kCompacted);
  map.Place(0, 0, 9);
  map.Free(std::vector<int32_t>{4, 5});
  map.Place(9, 9, 1);
  EXPECT_THAT(map.token(), ElementsAre(0, 1, 2, 3, 9, -1, 6, 7, 8));
  EXPECT_THAT(FirstPositions(map, 9), ElementsAre(0, 1, 2, 3, 7, -1, 4, 5, 6));
}

TEST(SlotMap, OriginalPositionsMoveOnlyWhenShifted) {
  SlotMap map(4, 4, {}, Positions::kOriginal);
  map.Place(0, 10, 4);
  map.Free(std::vector<int32_t>{1});
  map.Shift(12, -1);
  EXPECT_THAT(FirstPositions(map, 4), ElementsAre(10, -1, 11, 12));
}

TEST(SlotMap, StateOfASlotIsZeroForTheTokenThatEntersIt) {
  SlotMap map(3, 3, {.slot_floats = 2}, Positions::kOriginal);
  map.Place(0, 0, 3);
  std::ranges::fill(map.state(0).slot, 7.0F);
  map.Free(std::vector<int32_t>{1});
  map.Place(3, 3, 1);
  EXPECT_THAT(map.state(0).slot, ElementsAre(7, 7, 0, 0, 7, 7));
}

TEST(SlotMap, EndsBehindTheHighestLiveSlot) {
  SlotMap map(8, 8, {.slot_floats = 1}, Positions::kOriginal);
  map.Place(0, 0, 8);
  map.Free(std::vector<int32_t>{0, 5, 6, 7});
  EXPECT_EQ(map.end(), 5);
  EXPECT_EQ(map.state(0).slot.size(), 5);
  map.Free(std::vector<int32_t>{1, 2, 3, 4});
  EXPECT_EQ(map.end(), 0);
}

// Evicting after attention, the lane has one slot more than the budget C = S + W.
TEST(SlotMap, StreamingFillsARingBehindTheSinks) {
  constexpr int32_t kSinks = 4;
  constexpr int32_t kRecent = 9;
  SlotMap map(kSinks + kRecent + 1, 1, {}, Positions::kCompacted);
  for (int32_t t = 0; t < 100; ++t) {
    map.Place(t, t, 1);
    const int32_t ring = t <= kSinks + kRecent ? t : kSinks + (t - kSinks) % (kRecent + 1);
    ASSERT_EQ(map.placed_slots()[0], ring);
    if (map.live() <= kSinks + kRecent) continue;
    const int32_t oldest = t - kRecent;
    const auto victim = std::ranges::find(map.token(), oldest) - map.token().begin();
    map.Free(std::vector<int32_t>{static_cast<int32_t>(victim)});
    // Rank: sinks keep theirs, the others count on from them by age.
    for (int32_t slot = 0; slot < map.end(); ++slot) {
      const int32_t token = map.token()[slot];
      if (token < 0) continue;
      ASSERT_EQ(map.position()[slot], token < kSinks ? token : kSinks + token - oldest - 1);
    }
  }
}

// Against the obvious model: an ordered map from slot to token.
TEST(SlotMap, KeepsItsInvariantsUnderRandomTraffic) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    HashRandom random(seed);
    const int32_t capacity = random.Uniform(1, 90);
    const Positions kind = random.Uniform(0, 1) == 0 ? Positions::kOriginal : Positions::kCompacted;
    SlotMap map(capacity, capacity, {.slot_floats = 1}, kind);
    std::map<int32_t, int32_t> model;
    int32_t next = 0;
    for (int step = 0; step < 60; ++step) {
      const int32_t room = capacity - static_cast<int32_t>(model.size());
      if (room > 0) {
        const int32_t count = random.Uniform(1, room);
        map.Place(next, next, count);
        for (int32_t i = 0; i < count; ++i) {
          int32_t slot = 0;
          while (model.contains(slot)) ++slot;
          ASSERT_EQ(map.placed_slots()[i], slot);
          model[slot] = next + i;
        }
        next += count;
      }
      std::vector<int32_t> freed;
      for (const auto& [slot, token] : model) {
        if (random.Uniform(0, 3) == 0) freed.push_back(slot);
      }
      for (const int32_t slot : freed) model.erase(slot);
      map.Free(freed);
      map.CheckInvariants();
      ASSERT_EQ(map.live(), static_cast<int32_t>(model.size()));
      for (const auto& [slot, token] : model) ASSERT_EQ(map.token()[slot], token);
    }
  }
}

TEST(SlotMap, SeatsTokensBetweenOthers) {
  SlotMap map(12, 6, {.slot_floats = 1}, Positions::kCompacted);
  map.Place(0, 0, 6);
  map.SetState(2, std::vector<float>{7});
  map.Renumber(std::vector<int32_t>{0, -1, 4, 5, 6, 7});  // token 1 leaves, and three come in its place
  EXPECT_THAT(map.token(), ElementsAre(0, -1, 4, 5, 6, 7));
  map.Seat(std::vector<int32_t>{1, 2, 3, 7}, 0);
  EXPECT_THAT(map.placed_slots(), ElementsAre(1, 6, 7, 5)) << "who lives stays where it is";
  EXPECT_THAT(map.placed_positions(), ElementsAre(1, 2, 3, 7));
  EXPECT_THAT(FirstPositions(map, 8), ElementsAre(0, 1, 4, 5, 6, 7, 2, 3));
  EXPECT_EQ(map.state(0).slot[2], 7) << "a token that is renumbered keeps its state";
  map.CheckInvariants();
  std::vector<int32_t> slots(3);
  map.Find(std::vector<int32_t>{3, 7, 9}, slots);
  EXPECT_THAT(slots, ElementsAre(7, 5, -1));
  map.FreeFrom(4);
  EXPECT_EQ(map.live(), 4);
  map.CheckInvariants();
}

TEST(SlotMap, OriginalPositionsMoveWithTheirTokens) {
  SlotMap map(8, 4, {}, Positions::kOriginal);
  map.Place(0, 0, 4);
  map.Shift(2, 10);  // positions are no longer the tokens' indices
  map.Renumber(std::vector<int32_t>{0, -1, 3, 4});
  EXPECT_THAT(FirstPositions(map, 4), ElementsAre(0, -1, 13, 14));
  map.Seat(std::vector<int32_t>{5, 6}, 10);
  EXPECT_THAT(map.placed_positions(), ElementsAre(15, 16));
  map.CheckInvariants();
}

// Against the tokens in order: edits, each renumbering all that follows, and seats between others.
TEST(SlotMap, KeepsItsInvariantsUnderRandomEdits) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    HashRandom random(seed);
    const Positions kind = random.Uniform(0, 1) == 0 ? Positions::kOriginal : Positions::kCompacted;
    SlotMap map(300, 300, {.slot_floats = 1}, kind);
    std::vector<int32_t> names;  // of the log's tokens; a token's state is its name for as long as it lives
    const auto enter = [&](std::vector<int32_t> tokens) {
      map.Seat(tokens, 0);
      for (size_t i = 0; i < tokens.size(); ++i) {
        map.SetState(map.placed_slots()[i], std::vector<float>{static_cast<float>(names[tokens[i]])});
      }
    };
    int32_t named = 0;
    for (int step = 0; step < 40; ++step) {
      const auto length = static_cast<int32_t>(names.size());
      const int32_t start = random.Uniform(0, length), end = std::min(length, start + random.Uniform(0, 12));
      const int32_t count = random.Uniform(1, 12);
      std::vector<int32_t> to(length), fresh;
      for (int32_t t = 0; t < length; ++t) to[t] = t < start ? t : t < end ? -1 : t + count - (end - start);
      names.erase(names.begin() + start, names.begin() + end);
      for (int32_t i = 0; i < count; ++i) {
        names.insert(names.begin() + start + i, ++named);
        fresh.push_back(start + i);
      }
      map.Renumber(to);
      enter(fresh);
      map.CheckInvariants();
      ASSERT_EQ(map.live(), static_cast<int32_t>(names.size()));
      for (int32_t slot = 0; slot < map.end(); ++slot) {
        const int32_t token = map.token()[slot];
        if (token < 0) continue;
        ASSERT_EQ(map.position()[slot], token) << "nobody was evicted: both kinds are the index";
        ASSERT_EQ(map.state(0).slot[slot], static_cast<float>(names[token]));
      }
      if (map.live() > 150) {
        map.FreeFrom(60);
        names.resize(60);
      }
    }
  }
}

}  // namespace
}  // namespace ebb
