// Any bytes as a chat template and messages. What is rendered must hold the same control tokens in the same order
// whatever the messages say.
//
// Fields end at 0xFF. The first is the template; of each further one the first byte is the role (s, u, a, else unknown)
// and the rest the content.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"
#include "policies/check.h"
#include "tests/support/sample_vocabulary.h"

namespace ebb {
namespace {

// A vocabulary in which every marker of every format is a control token.
Vocabulary AllMarkers(std::string_view chat_template) {
  Vocabulary vocabulary = SampleBpe("gpt-2", {{"<", "|"}, {"|", ">"}, {"e", "n"}, {"en", "d"}});
  for (const char* marker :
       {"<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<s>", "</s>", "[INST]",
        "[/INST]", "<<SYS>>", "<</SYS>>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "<|assistant|>"}) {
    vocabulary.tokens.emplace_back(marker);
    vocabulary.types.push_back(static_cast<int32_t>(TokenType::kControl));
  }
  vocabulary.chat_template = chat_template;
  return vocabulary;
}

std::string Role(char first) {
  switch (first) {
    case 's':
      return "system";
    case 'u':
      return "user";
    case 'a':
      return "assistant";
    default:
      return std::string(1, first);
  }
}

std::vector<int32_t> Controls(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages, Previous previous,
                              const ChatFormat& format) {
  const auto segments = RenderChat(format, messages, previous, Next::kAnswer);
  EBB_CHECK(segments.ok());
  std::vector<int32_t> ids = tokenizer.Encode(*segments, Start::kText);
  std::erase_if(ids, [&](int32_t id) { return !tokenizer.is_control(id); });
  return ids;
}

void Run(std::string_view input) {
  std::vector<std::string_view> fields;
  while (!input.empty()) {
    const size_t end = std::min(input.find('\xFF'), input.size());
    fields.push_back(input.substr(0, end));
    input.remove_prefix(std::min(end + 1, input.size()));
  }
  if (fields.empty()) return;
  std::vector<ChatMessage> messages;
  for (const std::string_view field : std::span(fields).subspan(1)) {
    if (!field.empty()) messages.push_back({.role = Role(field[0]), .content = std::string(field.substr(1))});
  }
  const auto tokenizer = Tokenizer::Make(AllMarkers(fields[0]));
  EBB_CHECK(tokenizer.ok());
  const auto encoded = EncodeChat(**tokenizer, messages, {}, Next::kAnswer);
  const auto format = RecogniseChatFormat(fields[0]);
  if (!encoded.ok()) return;
  EBB_CHECK(format.ok());

  std::vector<ChatMessage> harmless = messages;
  for (ChatMessage& message : harmless) message.content = "x";
  for (const Previous previous : {Previous::kNothing, Previous::kOpenAnswer, Previous::kEndedTurn}) {
    EBB_CHECK(Controls(**tokenizer, messages, previous, **format) ==
              Controls(**tokenizer, harmless, previous, **format));
  }
}

}  // namespace
}  // namespace ebb

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ebb::Run(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
