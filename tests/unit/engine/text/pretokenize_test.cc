#include "engine/text/pretokenize.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "engine/text/utf8.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;

using Words = std::vector<std::string>;

TEST(Pretokenizer, CutsWhereEachRuleSays) {
  struct Case {
    std::string text;
    Words gpt2, llama3, qwen2;
  };
  const std::vector<Case> cases = {
      {"Don't 'LL", {"Don", "'t", " '", "LL"}, {"Don", "'t", " '", "LL"}, {"Don", "'t", " '", "LL"}},
      {"I'LL", {"I", "'", "LL"}, {"I", "'LL"}, {"I", "'LL"}},
      {"a 12345", {"a", " 12345"}, {"a", " ", "123", "45"}, {"a", " ", "1", "2", "3", "4", "5"}},
      {"x(y)", {"x", "(", "y", ")"}, {"x", "(y", ")"}, {"x", "(y", ")"}},
      {"a   b", {"a", "  ", " b"}, {"a", "  ", " b"}, {"a", "  ", " b"}},
      {"a !!\n\nb", {"a", " !!", "\n", "\n", "b"}, {"a", " !!\n\n", "b"}, {"a", " !!\n\n", "b"}},
      {" \n \n b", {" \n \n", " b"}, {" \n \n", " b"}, {" \n \n", " b"}},
      {"a\xC2\x85\xC2\x85", {"a", "\xC2\x85\xC2\x85"}, {"a", "\xC2\x85\xC2\x85"}, {"a", "\xC2\x85\xC2\x85"}},
      {"\xE1\xA0\x8Ex", {"\xE1\xA0\x8E", "x"}, {"\xE1\xA0\x8Ex"}, {"\xE1\xA0\x8Ex"}},  // U+180E is no space
      {"\xC3\xA9\xD0\xBF\xE4\xB8\xAD",
       {"\xC3\xA9\xD0\xBF\xE4\xB8\xAD"},
       {"\xC3\xA9\xD0\xBF\xE4\xB8\xAD"},
       {"\xC3\xA9\xD0\xBF\xE4\xB8\xAD"}},
  };
  const auto split = [](const char* rule, const std::string& text) {
    const auto pretokenizer = Pretokenizer::Make(rule);
    EXPECT_THAT(pretokenizer, IsOk());
    const auto [words, memory] = pretokenizer->Split(text, Before::kNothing);
    return Words(words.begin(), words.end());
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_THAT(split("gpt-2", c.text), ElementsAreArray(c.gpt2));
    EXPECT_THAT(split("", c.text), ElementsAreArray(c.gpt2));
    EXPECT_THAT(split("llama-bpe", c.text), ElementsAreArray(c.llama3));
    EXPECT_THAT(split("qwen2", c.text), ElementsAreArray(c.qwen2));
  }
}

// A rule that did not match at some character would make one word of all that follows it.
TEST(Pretokenizer, MatchesAtEveryPlaceOfEveryText) {
  for (const char* rule : {"gpt-2", "llama3", "qwen2"}) {
    const auto pretokenizer = Pretokenizer::Make(rule);
    ASSERT_THAT(pretokenizer, IsOk());
    for (char32_t code = 0; code <= 0x10FFFF; code += code < 0x3100 ? 1 : 0x95) {
      if (code >= 0xD800 && code <= 0xDFFF) continue;
      std::string text;
      AppendUtf8(code, text);
      text += "1 a";
      const std::vector<std::string_view> words = pretokenizer->Split(text, Before::kNothing).words;
      ASSERT_GE(words.size(), 2U) << rule << " " << static_cast<uint32_t>(code);
      std::string together;
      for (const std::string_view word : words) together += word;
      ASSERT_EQ(together, text);
      ASSERT_EQ(words.back(), " a");
    }
  }
}

}  // namespace
}  // namespace ebb
