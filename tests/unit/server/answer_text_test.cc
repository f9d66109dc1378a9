#include "server/answer_text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ebb {
namespace {

// What a reader gets for tokens of these bytes.
std::string Read(AnswerText text, const std::vector<std::string>& pieces) {
  std::string all;
  for (const std::string& piece : pieces) all += text.Add(piece);
  return all;
}

TEST(AnswerText, CutsBeforeTheFirstStop) {
  struct Case {
    std::string name;
    std::vector<std::string> stops;
    std::vector<std::string> pieces;
    std::string text;
    bool stopped;
  };
  const std::vector<Case> cases = {
      {"no stop", {}, {"ab", "cd"}, "abcd", false},
      {"in one token", {"END"}, {"one END two"}, "one ", true},
      {"straddles tokens", {"END"}, {"one E", "N", "D two"}, "one ", true},
      {"nothing after it", {"END"}, {"END", "more"}, "", true},
      {"the earlier of two", {"two", "one"}, {"zero one two"}, "zero ", true},
      {"the earlier even if it ends later", {"bcd", "c"}, {"ab", "cd"}, "a", true},
      {"what only began is sent in the end", {"END"}, {"EN", "E", "x"}, "ENEx", false},
      {"overlaps itself", {"aab"}, {"aa", "ab"}, "a", true},
      {"inside a character's bytes", {"é"}, {"x\xC3", "\xA9y"}, "x", true},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    AnswerText text(c.stops);
    std::string all;
    for (const std::string& piece : c.pieces) all += text.Add(piece);
    EXPECT_EQ(all, c.text);
    EXPECT_EQ(text.stopped(), c.stopped);
  }
}

TEST(AnswerText, HoldsBackWhatMayBecomeAStop) {
  AnswerText text({"END"});
  EXPECT_EQ(text.Add("a EN"), "a ");
  EXPECT_EQ(text.Release(), "EN");
  EXPECT_EQ(text.Release(), "");
}

TEST(AnswerText, NeverSendsHalfACharacter) {
  EXPECT_EQ(Read(AnswerText(), {"\xE2", "\x82", "\xAC"}), "€");
  AnswerText text;
  EXPECT_EQ(text.Add("a\xE2\x82"), "a");
  EXPECT_EQ(text.Release(), "") << "the next answer may complete it";
  EXPECT_EQ(text.Finish(), "\uFFFD");
}

TEST(AnswerText, CompletesTheCharacterThatTheLogEndsWith) {
  AnswerText text;
  text.Follow("a\xE2\x82");
  EXPECT_EQ(text.Add("\xAC"
                     "b"),
            "€b");
}

}  // namespace
}  // namespace ebb
