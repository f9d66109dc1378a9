#include "engine/text/regex.h"

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

std::vector<std::string> Matches(const std::string& pattern, const std::string& text) {
  const absl::StatusOr<Regex> regex = Regex::Make(pattern);
  EXPECT_THAT(regex, IsOk()) << pattern;
  std::vector<std::string> found;
  if (!regex.ok()) return found;
  for (const auto& [begin, end] : regex->FindAll(text).matches) found.push_back(text.substr(begin, end - begin));
  return found;
}

TEST(Regex, MeansWhatOnigurumaMeans) {
  struct Case {
    std::string pattern, text;
    std::vector<std::string> matches;
  };
  const std::vector<Case> cases = {
      {R"(\s+)", "a \t\xC2\x85\xE2\x80\xA8z\xE1\xA0\x8E", {" \t\xC2\x85\xE2\x80\xA8"}},  // U+180E is no space
      {R"([\s!]+)", "a !b", {" !"}},
      {R"(\S)", "\xE1\xA0\x8E ", {"\xE1\xA0\x8E"}},
      {R"(\w+)", "e\xCC\x81_9 \xE2\x92\xB6-", {"e\xCC\x81_9", "\xE2\x92\xB6"}},  // marks, and letters in circles
      {R"(\d\h)",
       "1g 1f \xD9\xA1"
       "a",
       {"1f",
        "\xD9\xA1"
        "a"}},
      {R"(\v)", "\n\v", {"\v"}},
      {R"([^(\s|[.,])]+)", "a.b(c d|e)", {"a", "b", "c", "d", "e"}},  // a class in a class adds what it has
      {R"(\u4E00+)", "\xE4\xB8\x80\xE4\xB8\x80", {"\xE4\xB8\x80\xE4\xB8\x80"}},
      {R"(\p{Han})", "\xE4\xB8\x80\xE3\x80\x82", {"\xE4\xB8\x80"}},  // the script, not its extensions: U+3002 has none
      {"(?i:'s)", "'S'\xC5\xBF", {"'S", "'\xC5\xBF"}},
      {"x*", "axb", {"", "x", "", ""}},
      {R"(\x{61}+[{,]?)", "aa,", {"aa,"}},
      {"a{1,2}?", "aa", {"a", "a"}},
      {"(?i)a|b", "AB", {"A", "B"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.pattern);
    EXPECT_THAT(Matches(c.pattern, c.text), ElementsAreArray(c.matches));
  }
}

TEST(Regex, FindsWhatGoesOnForLong) {
  const absl::StatusOr<Regex> regex = Regex::Make("(?:a|bc)+");
  ASSERT_THAT(regex, IsOk());
  const Regex::Found whole = regex->FindAll(std::string(5000, 'a'));
  EXPECT_FALSE(whole.ended_early);
  ASSERT_EQ(whole.matches.size(), 1U);
  EXPECT_EQ(whole.matches[0].end, 5000U);
  const Regex::Found cut = regex->FindAll("bc " + std::string(1000000, 'a'));  // more than may be gone back over
  EXPECT_TRUE(cut.ended_early);
  EXPECT_EQ(cut.matches.size(), 1U);
  EXPECT_FALSE(regex->FindAll("x").ended_early);
}

TEST(Regex, ALiteralMatchesItselfAndHasALongest) {
  const absl::StatusOr<Regex> literal = Regex::Literal("a.");
  ASSERT_THAT(literal, IsOk());
  EXPECT_EQ(literal->FindAll("aba.").matches.size(), 1U);
  EXPECT_EQ(Regex::Literal(std::string(33000, 'a')).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Regex, RefusesWhatItWouldReadOtherwiseNamingThePlace) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"(a\b)", "byte 1"},      {R"(a\G)", "byte 1"},
      {"[a&&b]", "byte 2"},      {"[a[^b]]", "byte 2"},
      {R"([\W])", "byte 1"},     {"a{1,2}+", "byte 5"},
      {"(?m:.)", "byte 0"},      {"[a", "byte 2"},
      {"(*COMMIT)", "byte 0"},   {R"(\p)", "byte 0"},
      {"a\\", "byte 1"},         {"(a", "parenthes"},
      {"[[:alpha:]]", "byte 1"}, {std::string(20000, 'a'), "longer"},
      {"x{,3}", "byte 1"},       {"a{2}?", "byte 1"},
      {"a(?i)b|c", "byte 1"},    {R"(\x{61)", "byte 0"}};
  for (const auto& [pattern, place] : cases) {
    const absl::StatusOr<Regex> made = Regex::Make(pattern);
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_THAT(std::string(made.status().message()), HasSubstr(place)) << pattern;
  }
}

}  // namespace
}  // namespace ebb
