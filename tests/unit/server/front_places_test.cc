#include "server/front_places.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace ebb {
namespace {

using Taken = std::vector<std::shared_ptr<FrontPlaces::Place>>;

// As many as there are.
Taken All(FrontPlaces& places, const std::string& tenant) {
  Taken all;
  while (auto place = places.Take(tenant)) all.push_back(std::move(place));
  return all;
}

TEST(FrontPlaces, WhoFillsThemLeavesOthersAsMany) {
  FrontPlaces places(64);
  Taken greedy = All(places, "greedy");
  EXPECT_EQ(greedy.size(), 64U);
  Taken others;
  for (int tenant = 0; tenant < 16; ++tenant) {
    const Taken few = All(places, "t" + std::to_string(tenant));
    EXPECT_EQ(few.size(), 4U) << "a sixteenth";
    others.insert(others.end(), few.begin(), few.end());
  }
  EXPECT_EQ(places.taken(), 128);
  EXPECT_EQ(places.Take("late"), nullptr) << "there are no more than twice as many";
  greedy.pop_back();
  EXPECT_EQ(places.Take("greedy"), nullptr) << "it goes to who has fewer";
  EXPECT_NE(places.Take("late"), nullptr);
}

TEST(FrontPlaces, WhoHasNoneFindsOneAlsoWhereThereAreFew) {
  FrontPlaces places(1);
  const auto one = places.Take("a");
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(places.Take("a"), nullptr);
  auto other = places.Take("b");
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(places.Take("c"), nullptr);
  other.reset();
  EXPECT_NE(places.Take("c"), nullptr);
}

}  // namespace
}  // namespace ebb
