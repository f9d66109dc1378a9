#include "server/bounded_text.h"

#include <gmock/gmock.h>

#include <random>
#include <string>

#include "engine/text/utf8.h"

namespace ebb {
namespace {

TEST(BoundedText, KeepsValidTextAndReplacesWhatIsNoCharacter) {
  EXPECT_EQ(BoundedText("gr\xC3\xBC\xC3\x9F \xF0\x9F\x8C\x8A", 100), "gr\xC3\xBC\xC3\x9F \xF0\x9F\x8C\x8A");
  EXPECT_EQ(BoundedText("a\xFF\x80z\xE2\x82", 100), "a\xEF\xBF\xBD\xEF\xBF\xBDz\xEF\xBF\xBD");
}

TEST(BoundedText, CutsBetweenCharactersAndSaysSo) {
  EXPECT_EQ(BoundedText("abcdef", 6), "abcdef");
  EXPECT_EQ(BoundedText("abcdefg", 6), "abc...");
  EXPECT_EQ(BoundedText("a\xE2\x82\xAC\xE2\x82\xAC", 6), "a...");
  EXPECT_EQ(BoundedText("abcd", 3), "...");
}

TEST(BoundedText, YieldsShortUtf8ForAnyBytes) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string bytes(random() % 64, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    const size_t bytes_max = 3 + random() % 64;
    const std::string bounded = BoundedText(bytes, bytes_max);
    EXPECT_LE(bounded.size(), bytes_max);
    EXPECT_EQ(ValidUtf8Size(bounded), bounded.size());
    EXPECT_EQ(BoundedText(bounded, bytes_max), bounded);
  }
}

}  // namespace
}  // namespace ebb
