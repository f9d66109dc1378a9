#include "client/cli/heat_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

namespace ebb::cli {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Two lanes of a log of eight tokens: the first kept 0, 1, 2 and 7, the second nothing.
v1::DescribeCacheResponse SomeCache() {
  v1::DescribeCacheResponse cache;
  cache.set_session_tokens(8);
  v1::LaneDescription& lane = *cache.add_lanes();
  lane.set_layer(1);
  lane.set_head(3);
  lane.set_length(4);
  for (const uint64_t token : {7, 0, 1, 2}) lane.add_tokens(token);
  for (const float score : {0.5F, 9.0F, 1.0F, 0.25F}) lane.add_scores(score);
  cache.add_lanes()->set_layer(2);
  return cache;
}

TEST(HeatMap, ACellIsTheShareOfItsTokensThatLive) {
  const auto rows = HeatMap(SomeCache(), 1, Shade::kKept, 4);
  ASSERT_THAT(rows, SizeIs(2));
  EXPECT_EQ(rows[0].layer, 1U);
  EXPECT_EQ(rows[0].head, 3U);
  EXPECT_EQ(rows[0].length, 4U);
  EXPECT_THAT(rows[0].cells, ElementsAre(1, 0.5, 0, 0.5));
  EXPECT_THAT(rows[1].cells, ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(HeatText(rows[0]), "█▒ ▒");
}

TEST(HeatMap, CellsOfUnequalSizeAreSharesOfTheirOwn) {
  v1::DescribeCacheResponse cache;
  for (uint64_t tokens = 1; tokens < 40; ++tokens) {
    cache.set_session_tokens(tokens);
    cache.clear_lanes();
    cache.clear_lanes();
    v1::LaneDescription& lane = *cache.add_lanes();
    for (uint64_t token = 0; token < tokens; ++token) lane.add_tokens(token);
    for (size_t columns = 1; columns < 50; ++columns) {
      const auto rows = HeatMap(cache, 1, Shade::kKept, columns);
      EXPECT_THAT(rows[0].cells, SizeIs(std::min<size_t>(columns, tokens)));
      EXPECT_THAT(rows[0].cells, Each(1.0)) << tokens << " tokens in " << columns;
    }
  }
}

TEST(HeatMap, ScoresAreShownByRankWithinTheLane) {
  const auto rows = HeatMap(SomeCache(), 1, Shade::kScore, 4);
  // Means 5 of tokens 0 and 1, 0.25 of token 2, 0.5 of token 7.
  EXPECT_THAT(rows[0].cells, ElementsAre(1, 1.0 / 3, 0, 2.0 / 3));
  v1::DescribeCacheResponse cache = SomeCache();
  for (float& score : *cache.mutable_lanes(0)->mutable_scores()) score = NAN;
  EXPECT_THAT(HeatMap(cache, 1, Shade::kScore, 4)[0].cells, Each(0.0));
  cache.mutable_lanes(0)->clear_scores();
  EXPECT_THAT(HeatMap(cache, 1, Shade::kScore, 4)[0].cells, Each(0.0));
}

TEST(HeatMap, AStrideStandsForTheSlotsItLeftOut) {
  v1::DescribeCacheResponse cache = SomeCache();
  cache.mutable_lanes(0)->mutable_tokens()->Truncate(2);  // 7 and 0 of 7, 0, 1, 2
  EXPECT_THAT(HeatMap(cache, 2, Shade::kKept, 4)[0].cells, ElementsAre(1, 0, 0, 1));
}

TEST(HeatMap, AnEmptyLogHasNoCells) {
  EXPECT_THAT(HeatMap(v1::DescribeCacheResponse(), 1, Shade::kKept, 4), IsEmpty());
}

TEST(HeatMap, ThePictureHasABandForEachLaneAndItsColours) {
  const auto path = std::filesystem::path(testing::TempDir()) / "heat_map_test.png";
  ASSERT_EQ(WriteHeatPng(HeatMap(SomeCache(), 1, Shade::kKept, 4), path), "");
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  ASSERT_NE(png_image_begin_read_from_file(&image, path.c_str()), 0);
  image.format = PNG_FORMAT_RGB;
  std::vector<png_byte> pixels(PNG_IMAGE_SIZE(image));
  ASSERT_NE(png_image_finish_read(&image, nullptr, pixels.data(), 0, nullptr), 0);
  std::filesystem::remove(path);
  ASSERT_EQ(image.width, 512U);
  ASSERT_EQ(image.height, 12U + 4 + 12);
  const auto pixel = [&](size_t x, size_t y) {
    const png_byte* at = pixels.data() + 3 * (y * image.width + x);
    return std::vector<int>{at[0], at[1], at[2]};
  };
  EXPECT_THAT(pixel(0, 0), ElementsAre(8, 48, 107));  // all kept
  EXPECT_THAT(pixel(127, 11), ElementsAre(8, 48, 107));
  EXPECT_THAT(pixel(128, 0), ElementsAre(132, 152, 181));  // half
  EXPECT_THAT(pixel(256, 0), ElementsAre(255, 255, 255));  // none
  EXPECT_THAT(pixel(0, 12), ElementsAre(160, 160, 160));   // between two layers
  EXPECT_THAT(pixel(0, 16), ElementsAre(255, 255, 255));   // the empty lane
}

TEST(HeatMap, APictureThatCannotBeWrittenSaysWhy) {
  EXPECT_NE(WriteHeatPng(HeatMap(SomeCache(), 1, Shade::kKept, 4), "/nowhere/picture.png"), "");
}

}  // namespace
}  // namespace ebb::cli
