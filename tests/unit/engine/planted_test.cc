#include "engine/lab/planted.h"

#include <gmock/gmock.h>

#include <string>

#include "engine/model/gguf.h"

namespace ebb::lab {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

class PlantedTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto file = GgufFile::Open("models/ebb-tiny-q8_0.gguf");
    ASSERT_TRUE(file.ok()) << file.status();
    tokenizer_ = Tokenizer::FromGguf(*file).value().release();
    for (int i = 0; i < 400; ++i) *text_ += "He went to the house. It was late, and nobody was there. ";
  }
  static std::string Of(const Prompt& prompt) { return tokenizer_->Decode(prompt.tokens); }

  static inline const Tokenizer* tokenizer_ = nullptr;
  static inline std::string* const text_ = new std::string();
};

TEST_F(PlantedTest, AsksForAKeyThatStandsInTheText) {
  const auto prompts = PlantPasskeys(*tokenizer_, *text_, {.length = 300, .prompts = 4});
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  ASSERT_EQ(prompts->size(), 4u);
  for (const Prompt& prompt : *prompts) {
    EXPECT_EQ(prompt.tokens.size(), 300u);
    const std::string text = Of(prompt);
    const std::string key = tokenizer_->Decode(prompt.answer).substr(1);
    EXPECT_EQ(key.size(), 5u);
    const std::string name =
        text.substr(text.rfind("passkey of ") + 11, text.rfind(" is") - text.rfind("passkey of ") - 11);
    EXPECT_THAT(text, HasSubstr("The passkey of " + name + " is " + key + "."));
    EXPECT_THAT(text, EndsWith("What is the passkey of " + name + "? The passkey of " + name + " is"));
  }
  EXPECT_NE(Of((*prompts)[0]), Of((*prompts)[1]));
}

// The same texts, names and keys, so that depths differ by the depth alone.
TEST_F(PlantedTest, OnlyTheAskedFactMovesWithTheDepth) {
  double last = -1;
  for (const double depth : {0.0, 0.5, 1.0}) {
    const auto prompts = PlantPasskeys(*tokenizer_, *text_, {.length = 300, .depth = depth, .prompts = 1});
    ASSERT_TRUE(prompts.ok()) << prompts.status();
    const std::string text = Of(prompts->front());
    const std::string key = tokenizer_->Decode(prompts->front().answer).substr(1);
    const double at = static_cast<double>(text.find(key + ".")) / static_cast<double>(text.size());
    EXPECT_GT(at, last);
    EXPECT_NEAR(at, depth, 0.2) << text;
    last = at;
  }
}

TEST_F(PlantedTest, RefusesWhatDoesNotFit) {
  const auto short_prompt = PlantPasskeys(*tokenizer_, *text_, {.length = 40, .prompts = 1});
  EXPECT_THAT(std::string(short_prompt.status().message()), HasSubstr("--length: 40 tokens; facts and question"));
  const auto short_text = PlantPasskeys(*tokenizer_, "It was late. He went.", {.length = 300, .prompts = 1});
  EXPECT_THAT(std::string(short_text.status().message()), HasSubstr("1 prompts of 300 need 300"));
  const auto no_end = PlantPasskeys(*tokenizer_, std::string(3000, 'a'), {.length = 300, .prompts = 1});
  EXPECT_EQ(no_end.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ebb::lab
