#include "engine/text/utf8_stream.h"

#include <gmock/gmock.h>

#include <string>

#include "engine/text/utf8.h"
#include "policies/hash_random.h"

namespace ebb {
namespace {

TEST(FirstUtf8, FollowsTheTableOfUnicode) {
  struct Case {
    std::string name;
    std::string text;
    Utf8Kind kind;
    int32_t size;
  };
  const std::vector<Case> cases = {
      {"ASCII", "a", Utf8Kind::kCharacter, 1},
      {"NUL", std::string(1, '\0'), Utf8Kind::kCharacter, 1},
      {"two bytes", "\xC3\xA9x", Utf8Kind::kCharacter, 2},
      {"three bytes", "\xE2\x82\xAC", Utf8Kind::kCharacter, 3},
      {"four bytes", "\xF0\x9F\x98\x80", Utf8Kind::kCharacter, 4},
      {"last code point", "\xF4\x8F\xBF\xBF", Utf8Kind::kCharacter, 4},
      {"past the last code point", "\xF4\x90\x80\x80", Utf8Kind::kInvalid, 1},
      {"continuation alone", "\x80", Utf8Kind::kInvalid, 1},
      {"overlong slash", "\xC0\xAF", Utf8Kind::kInvalid, 1},
      {"overlong of three bytes", "\xE0\x9F\xBF", Utf8Kind::kInvalid, 1},
      {"overlong of four bytes", "\xF0\x8F\xBF\xBF", Utf8Kind::kInvalid, 1},
      {"surrogate", "\xED\xA0\x80", Utf8Kind::kInvalid, 1},
      {"before the surrogates", "\xED\x9F\xBF", Utf8Kind::kCharacter, 3},
      {"broken after two", "\xE2\x82x", Utf8Kind::kInvalid, 2},
      {"broken after three", "\xF0\x9F\x98x", Utf8Kind::kInvalid, 3},
      {"cut after one", "\xC3", Utf8Kind::kCut, 1},
      {"cut after three", "\xF0\x9F\x98", Utf8Kind::kCut, 3},
      {"no such byte", "\xFF", Utf8Kind::kInvalid, 1},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Utf8Unit unit = FirstUtf8(c.text);
    EXPECT_EQ(unit.kind, c.kind);
    EXPECT_EQ(unit.size, c.size);
  }
}

TEST(FirstUtf8, ReadsBackWhatAppendUtf8Writes) {
  for (char32_t code = 0; code <= 0x10FFFF; code += code < 0x3000 ? 1 : 0x101) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(code, text);
    const Utf8Unit unit = FirstUtf8(text);
    ASSERT_EQ(unit.kind, Utf8Kind::kCharacter) << static_cast<uint32_t>(code);
    ASSERT_EQ(unit.code, code);
    ASSERT_EQ(static_cast<size_t>(unit.size), text.size());
  }
}

TEST(Utf8Stream, HoldsACharacterBackUntilItsLastByte) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Add("caf\xC3"), "caf");
  EXPECT_EQ(stream.held(), 1U);
  EXPECT_EQ(stream.Add("\xA9 \xF0\x9F"), "\xC3\xA9 ");
  EXPECT_EQ(stream.Add("\x98"), "");
  EXPECT_EQ(stream.Add("\x80"), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.Flush(), "");
}

TEST(Utf8Stream, ReplacesOnlyWhatIsCertainlyInvalid) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Add("\x80"), kReplacementCharacter);
  EXPECT_EQ(stream.Add("\xE2\x82"), "");
  EXPECT_EQ(stream.Add("x"), std::string(kReplacementCharacter) + "x");
  EXPECT_EQ(stream.Add("\xE2\x82"), "");
  EXPECT_EQ(stream.Flush(), kReplacementCharacter);
  EXPECT_EQ(stream.Flush(), "");
}

// However bytes are cut, the deltas are valid UTF-8 and together the sanitised whole.
TEST(Utf8Stream, DeltasAreTheSanitisedWholeInPieces) {
  constexpr std::string_view kInteresting = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xED\xA0\xF4\x90\xC0\xFF";
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    std::string bytes;
    for (int32_t n = random.Uniform(0, 40); n > 0; --n) {
      bytes += random.Uniform(0, 3) == 0
                   ? static_cast<char>(random.Uniform(0, 255))
                   : kInteresting[random.Uniform(0, static_cast<int32_t>(kInteresting.size()) - 1)];
    }
    Utf8Stream stream;
    std::string together;
    for (std::string_view rest = bytes; !rest.empty();) {
      const size_t size = random.Uniform(0, std::min<int32_t>(5, static_cast<int32_t>(rest.size())));
      const std::string delta = stream.Add(rest.substr(0, size));
      ASSERT_EQ(ValidUtf8Size(delta), delta.size());
      ASSERT_LE(stream.held(), 3U);
      together += delta;
      rest.remove_prefix(size);
    }
    together += stream.Flush();
    ASSERT_EQ(together, SanitisedUtf8(bytes));
  }
}

}  // namespace
}  // namespace ebb
