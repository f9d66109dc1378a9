// Texts and the tokens that public engines make of them: golden/tokenizer (README there, "Tokenizers"), and the prompts
// of the built-in model.

#include "engine/text/tokenizer.h"

#include <gmock/gmock.h>

#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/model/gguf.h"
#include "tests/support/golden_folder.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;
using Ids = std::vector<int32_t>;

// The whole golden data where it is found, else the copy that the source tree carries.
std::string TokenizerFolder() {
  const std::string folder = GoldenFolderOrPart() + "/tokenizer";
  std::cout << "golden tokenizers from " << folder << "\n";
  return folder;
}

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  return nlohmann::json::parse(file);
}

std::unique_ptr<const Tokenizer> OpenTokenizer(const std::string& path) {
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  EXPECT_THAT(file, IsOk());
  if (!file.ok()) return nullptr;
  auto tokenizer = Tokenizer::FromGguf(*file);
  EXPECT_THAT(tokenizer, IsOk());
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

void ExpectGoldenCuts(const std::string& name) {
  const std::string folder = TokenizerFolder();
  const auto tokenizer = OpenTokenizer(folder + "/" + name + ".gguf");
  ASSERT_NE(tokenizer, nullptr);
  const nlohmann::json golden = ReadJson(folder + "/" + name + ".json");
  ASSERT_FALSE(golden.at("cases").empty());
  for (const nlohmann::json& c : golden.at("cases")) {
    const auto text = c.at("text").get<std::string>();
    SCOPED_TRACE(text);
    EXPECT_THAT(tokenizer->Encode(text, Special::kPlain, Start::kText), ElementsAreArray(c.at("plain").get<Ids>()));
    EXPECT_THAT(tokenizer->Encode(text, Special::kParse, Start::kSequence),
                ElementsAreArray(c.at("special").get<Ids>()));
  }
}

TEST(GoldenTokenizer, SpmCutsEveryTextAsThePublicEngine) { ExpectGoldenCuts("spm"); }
TEST(GoldenTokenizer, Gpt2CutsEveryTextAsThePublicEngine) { ExpectGoldenCuts("gpt-2"); }
TEST(GoldenTokenizer, Llama3CutsEveryTextAsThePublicEngine) { ExpectGoldenCuts("llama-bpe"); }
TEST(GoldenTokenizer, Qwen2CutsEveryTextAsThePublicEngine) { ExpectGoldenCuts("qwen2"); }

TEST(BuiltInModelTokenizer, CutsTheGoldenPromptsAndReadsTheAnswers) {
  const auto tokenizer = OpenTokenizer("models/ebb-tiny-q8_0.gguf");
  ASSERT_NE(tokenizer, nullptr);
  const nlohmann::json golden = ReadJson("models/ebb-tiny.golden.json");
  ASSERT_FALSE(golden.at("cases").empty());
  for (const nlohmann::json& c : golden.at("cases")) {
    SCOPED_TRACE(c.at("name"));
    const auto prompt = c.at("prompt").get<std::string>();
    const auto ids = c.at("ids").get<Ids>();
    EXPECT_THAT(tokenizer->Encode(prompt, Special::kParse, Start::kText), ElementsAreArray(ids));
    EXPECT_EQ(tokenizer->Decode(ids, Special::kParse), prompt);
    EXPECT_EQ(tokenizer->Decode(c.at("greedy_ids").get<Ids>(), Special::kParse),
              c.at("greedy_text").get<std::string>());
  }
}

}  // namespace
}  // namespace ebb
