// Published chat templates, rendered as an interpreter that is not ours renders them (tests/golden/templates).

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/civil_time.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"
#include "tests/support/sample_vocabulary.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

// $EBB_TEMPLATES: another folder that make.mjs has written.
std::string Folder() {
  const char* other = std::getenv("EBB_TEMPLATES");
  return other != nullptr ? other : "tests/golden/templates";
}

std::string ReadFile(const std::string& name) {
  std::ifstream file(Folder() + "/" + name, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

// A vocabulary in which whatever any of the formats calls a special token is one.
std::unique_ptr<const Tokenizer> TokenizerOf(const std::string& name, const Json& about) {
  Vocabulary vocabulary = SampleBpe("gpt-2", {});
  vocabulary.bos.reset();
  vocabulary.eos.reset();
  std::vector<std::string> specials = {"<|im_start|>",
                                       "<|im_end|>",
                                       "<|start_header_id|>",
                                       "<|end_header_id|>",
                                       "<|eot_id|>",
                                       "<s>",
                                       "</s>",
                                       "[INST]",
                                       "[/INST]",
                                       "<start_of_turn>",
                                       "<end_of_turn>",
                                       "<|system|>",
                                       "<|assistant|>",
                                       "<｜User｜>",
                                       "<｜Assistant｜>",
                                       "<bos>",
                                       "<eos>",
                                       "<|endoftext|>",
                                       "<|begin_of_text|>",
                                       "<｜begin▁of▁sentence｜>",
                                       "<｜end▁of▁sentence｜>"};
  for (const char* key : {"bos", "eos"}) {
    const std::string special = about.value(key, "");
    if (!special.empty() && std::ranges::find(specials, special) == specials.end()) specials.push_back(special);
  }
  for (const std::string& special : specials) {
    const auto id = static_cast<int32_t>(vocabulary.tokens.size());
    if (about.value("bos", "") == special) vocabulary.bos = id;
    if (about.value("eos", "") == special) vocabulary.eos = id;
    vocabulary.tokens.push_back(special);
    vocabulary.types.push_back(static_cast<int32_t>(TokenType::kControl));
  }
  vocabulary.chat_template = ReadFile(name + ".jinja");
  auto made = Tokenizer::Make(std::move(vocabulary));
  EXPECT_THAT(made, IsOk());
  return *std::move(made);
}

std::vector<ChatMessage> MessagesOf(const Json& json) {
  std::vector<ChatMessage> messages;
  for (const Json& one : json) {
    ChatMessage& message = messages.emplace_back(ChatMessage{.role = one.at("role")});
    message.no_content = one.at("content").is_null();
    if (!message.no_content) message.content = one.at("content");
    if (one.contains("tool_calls")) {
      for (const Json& call : one.at("tool_calls")) message.tool_calls.push_back(call.dump());
    }
    message.name = one.value("name", "");
    message.tool_call_id = one.value("tool_call_id", "");
  }
  return messages;
}

ChatOptions OptionsOf(const Json& c) {
  ChatOptions options = {.next = c.at("add_generation_prompt").get<bool>() ? Next::kAnswer : Next::kMessages,
                         .arguments = c.at("arguments").dump(),
                         .now = absl::FromCivil(absl::CivilHour(2026, 11, 19, 12), absl::LocalTimeZone())};
  for (const Json& tool : c.at("tools")) options.tools.push_back(tool.dump());
  return options;
}

std::vector<int32_t> Controls(const Tokenizer& tokenizer, const std::vector<Segment>& segments) {
  std::vector<int32_t> ids = tokenizer.Encode(segments, Start::kText);
  std::erase_if(ids, [&](int32_t id) { return !tokenizer.is_control(id); });
  return ids;
}

TEST(GoldenTemplates, AreRenderedAsByAnInterpreterThatIsNotOurs) {
  const Json about = Json::parse(ReadFile("templates.json"));
  size_t rendered = 0;
  size_t refused = 0;
  for (const Json& c : Json::parse(ReadFile("cases.json"))) {
    SCOPED_TRACE(c.at("template").get<std::string>() + ": " + c.at("chat").get<std::string>());
    const auto tokenizer = TokenizerOf(c.at("template"), about.at(c.at("template").get<std::string>()));
    const std::vector<ChatMessage> messages = MessagesOf(c.at("messages"));
    const auto segments = RenderChat(*tokenizer, messages, History::kNone, OptionsOf(c));
    if (c.contains("error")) {
      EXPECT_THAT(segments, IsRefusal(absl::StatusCode::kInvalidArgument, "CHAT_TEMPLATE_REFUSED", "messages"));
      EXPECT_THAT(std::string(segments.status().message()), HasSubstr(c.at("error").get<std::string>()));
      ++refused;
      continue;
    }
    EXPECT_THAT(segments, IsOk());
    if (!segments.ok()) continue;
    std::string text;
    for (const Segment& segment : *segments) text += segment.text;
    EXPECT_EQ(text, c.at("rendered").get<std::string>());
    ++rendered;

    // The same special tokens whatever the messages spell.
    std::vector<ChatMessage> harmless = messages;
    for (ChatMessage& message : harmless) {
      std::erase_if(message.content, [](char ch) { return std::string("<|>[]").find(ch) != std::string::npos; });
    }
    const auto plain = RenderChat(*tokenizer, harmless, History::kNone, OptionsOf(c));
    ASSERT_THAT(plain, IsOk());
    EXPECT_EQ(Controls(*tokenizer, *segments), Controls(*tokenizer, *plain));
  }
  EXPECT_GT(rendered, 0U);
  if (std::getenv("EBB_TEMPLATES") != nullptr) return;
  EXPECT_GE(rendered, 140U);
  EXPECT_GE(refused, 10U);
}

}  // namespace
}  // namespace ebb
