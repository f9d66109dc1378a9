#include "engine/lab/calibration_texts.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/sample_vocabulary.h"
#include "tests/support/status_matchers.h"

namespace ebb::lab {
namespace {

using testing::HasSubstr;

// A token a byte, and no chat template.
std::unique_ptr<const Tokenizer> Bytes() { return Tokenizer::Make(SampleBpe("gpt-2", {})).value(); }

std::string LongText() {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "It rained on day " + std::to_string(i) + ". Nobody came! ";
  return text;
}

std::vector<std::string> Documents(uint64_t seed) {
  const auto tokenizer = Bytes();
  const auto made = MakeCalibrationTexts(*tokenizer, LongText(), {.of_each = 3, .window = 1024, .seed = seed});
  EXPECT_THAT(made, IsOk());
  std::vector<std::string> texts;
  for (const std::vector<int32_t>& ids : *made) texts.push_back(tokenizer->Decode(ids));
  return texts;
}

size_t CountOf(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(CalibrationTexts, TellAskAndAnswer) {
  const std::vector<std::string> texts = Documents(1);
  ASSERT_EQ(texts.size(), 9U);
  for (size_t i = 0; i < texts.size(); ++i) {
    SCOPED_TRACE(texts[i]);
    const size_t times = i % 3;  // asked
    EXPECT_EQ(CountOf(texts[i], "What is the passkey of "), times);
    EXPECT_EQ(CountOf(texts[i], "The passkey of "), times == 0 ? 0 : 4 + times);
    if (times == 0) continue;
    // The last sentence answers the last question, with what was told before.
    const std::string answer = texts[i].substr(texts[i].rfind("The passkey of "));
    EXPECT_EQ(CountOf(texts[i], answer), 1 + times);
    const std::string name = answer.substr(15, answer.find(" is ") - 15);
    EXPECT_THAT(texts[i], HasSubstr("What is the passkey of " + name + "?"));
  }
  EXPECT_EQ(texts[0].size(), 1024U);
}

TEST(CalibrationTexts, FollowFromTheSeed) {
  EXPECT_EQ(Documents(1), Documents(1));
  EXPECT_NE(Documents(1), Documents(2));
}

TEST(CalibrationTexts, ATextShorterThanAWindowIsRefused) {
  const auto made = MakeCalibrationTexts(*Bytes(), "Too short.", {.window = 256});
  ASSERT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("10 tokens; at least 256"));
}

}  // namespace
}  // namespace ebb::lab
