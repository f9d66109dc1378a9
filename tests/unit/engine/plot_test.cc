#include "engine/lab/plot.h"

#include <gmock/gmock.h>

#include <limits>
#include <string>
#include <vector>

namespace ebb::lab {
namespace {

using testing::HasSubstr;
using testing::Not;

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Elements that are opened are closed, in order; quotes are paired within each. Enough for what a plot writes.
testing::AssertionResult WellFormed(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at + 1)) {
    const size_t end = xml.find('>', at);
    if (end == std::string::npos) return testing::AssertionFailure() << "no end of " << xml.substr(at, 20);
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (Count(tag, "\"") % 2 != 0 || Count(tag, "<") != 0) return testing::AssertionFailure() << tag;
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag.front() == '/') {
      if (open.empty() || open.back() != name.substr(1)) return testing::AssertionFailure() << "stray " << tag;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
  }
  if (!open.empty()) return testing::AssertionFailure() << "open: " << open.back();
  return testing::AssertionSuccess();
}

Plot Small() {
  return {.title = "a < b & \"c\"",
          .rows = {"h2o", "tova"},
          .series = {"64", "128"},
          .panels = {{.title = "stream", .max = 1, .dots = {{0, 0, 0.5, {.low = 0.25, .high = 0.75}}, {1, 1, 1.0}}},
                     {.title = "perplexity", .dots = {{0, 0, 30, {.low = 20, .high = 40}}}}}};
}

TEST(Svg, IsWellFormedWhateverNamesHold) {
  EXPECT_TRUE(WellFormed(Svg(Small())));
  EXPECT_THAT(Svg(Small()), HasSubstr("a &lt; b &amp; &quot;c&quot;"));
  EXPECT_TRUE(WellFormed(Svg({})));
}

TEST(Svg, HasADotForEachValueAndALineForEachInterval) {
  const std::string svg = Svg(Small());
  EXPECT_EQ(Count(svg, "<circle"), 2 + 3);  // the legend's, and the dots
  Plot bare = Small();
  bare.panels[0].dots[0].interval = {.low = 0, .high = std::numeric_limits<double>::infinity()};
  EXPECT_EQ(Count(Svg(bare), "<line"), Count(svg, "<line") - 1);
}

// Panels are 140 wide; the first begins at 190 + 12.
TEST(Svg, PutsValuesToScale) {
  const std::string svg = Svg(Small());
  EXPECT_THAT(svg, HasSubstr("<circle cx=\"272.0\""));  // 0.5 of 0..1
  EXPECT_THAT(svg, HasSubstr("<circle cx=\"342.0\""));  // 1
  EXPECT_THAT(svg, HasSubstr("<line x1=\"237.0\""));    // 0.25
  EXPECT_THAT(svg, HasSubstr("<circle cx=\"436.0\""));  // 30 of 20..40, in the second panel, 164 further
}

TEST(Svg, DrawsWhatLiesBeyondAnAxisAtItsEnd) {
  Plot plot = Small();
  plot.panels[0].dots[0].value = 7;
  EXPECT_EQ(Count(Svg(plot), "<circle cx=\"342.0\""), 2);
  EXPECT_THAT(Svg(plot), Not(HasSubstr("cx=\"272.0\"")));
}

}  // namespace
}  // namespace ebb::lab
