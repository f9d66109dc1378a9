#include "engine/text/chat_template.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/model/gguf.h"
#include "policies/status.h"

namespace ebb {
namespace {

// The first row that fits a template wins.
const std::vector<ChatFormat>& Formats() {
  static const std::vector<ChatFormat> formats = {
      {.name = "chatml",
       .marks = {"<|im_start|>", "<|im_end|>"},
       .never = "<|im_sep|>",  // Phi-4, whose turns open differently
       .system = {.separator = "\n", .open = "<|im_start|>system\n", .close = "<|im_end|>"},
       .user = {.separator = "\n", .open = "<|im_start|>user\n", .close = "<|im_end|>"},
       .assistant = {.separator = "\n", .open = "<|im_start|>assistant\n", .close = "<|im_end|>"},
       .answer = "<|im_start|>assistant\n"},
      {.name = "llama-3",
       .marks = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
       .system = {.open = "<|start_header_id|>system<|end_header_id|>\n\n", .close = "<|eot_id|>", .trim = true},
       .user = {.open = "<|start_header_id|>user<|end_header_id|>\n\n", .close = "<|eot_id|>", .trim = true},
       .assistant = {.open = "<|start_header_id|>assistant<|end_header_id|>\n\n", .close = "<|eot_id|>", .trim = true},
       .answer = "<|start_header_id|>assistant<|end_header_id|>\n\n"},
      {.name = "llama-2",
       .marks = {"[INST]", "<<SYS>>"},
       .system = {.open = "<<SYS>>\n", .close = "\n<</SYS>>\n\n"},
       .system_in_user_turn = true,
       .user = {.separator = "<s>", .open = "[INST] ", .close = " [/INST]", .trim = true},
       .assistant = {.open = " ", .close = " </s>", .trim = true}},
      {.name = "mistral-v7",
       .marks = {"[SYSTEM_PROMPT]", "[INST] "},
       .system = {.open = "[SYSTEM_PROMPT] ", .close = "[/SYSTEM_PROMPT]"},
       .user = {.open = "[INST] ", .close = "[/INST]"},
       .assistant = {.open = " ", .close = "</s>", .trim = true}},
      {.name = "mistral-v7-tekken",
       .marks = {"[SYSTEM_PROMPT]", "[INST]"},
       .system = {.open = "[SYSTEM_PROMPT]", .close = "[/SYSTEM_PROMPT]"},
       .user = {.open = "[INST]", .close = "[/INST]"},
       .assistant = {.close = "</s>"}},
      {.name = "mistral-v1",
       .marks = {"[INST] ", " [/INST]"},
       .system = {.close = "\n\n"},
       .system_in_user_turn = true,
       .user = {.open = "[INST] ", .close = " [/INST]"},
       .assistant = {.open = " ", .close = "</s>", .trim = true}},
      {.name = "mistral-v3",
       .marks = {"[INST] ", "[/INST]"},
       .system = {.close = "\n\n"},
       .system_in_user_turn = true,
       .user = {.open = "[INST] ", .close = "[/INST]"},
       .assistant = {.open = " ", .close = "</s>", .trim = true}},
      {.name = "mistral-tekken",
       .marks = {"[INST]", "[/INST]"},
       .system = {.close = "\n\n"},
       .system_in_user_turn = true,
       .user = {.open = "[INST]", .close = "[/INST]"},
       .assistant = {.close = "</s>"}},
      {.name = "ebb",
       .marks = {"<|user|>", "<|assistant|>", "<|end|>"},
       .never = "\\n",  // Phi-3 has the same markers, each on a line of its own
       .system = {.open = "<|user|>", .close = "<|end|>"},
       .user = {.open = "<|user|>", .close = "<|end|>"},
       .assistant = {.open = "<|assistant|>", .close = "<|end|>"},
       .answer = "<|assistant|>"},
  };
  return formats;
}

bool Fits(const ChatFormat& format, std::string_view chat_template) {
  const auto has = [&](std::string_view mark) { return chat_template.find(mark) != std::string_view::npos; };
  return std::ranges::all_of(format.marks, has) && (format.never.empty() || !has(format.never));
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n\v\f\r";
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

const ChatTurn* FindTurn(const ChatFormat& format, std::string_view role) {
  if (role == "system") return &format.system;
  if (role == "user") return &format.user;
  if (role == "assistant") return &format.assistant;
  return nullptr;
}

// Puts segments together, neighbours of one kind into one.
class Prompt {
 public:
  void Marker(std::string_view text) { Append(text, Special::kParse); }
  void Content(std::string_view text, const ChatTurn& turn) {
    Append(turn.trim ? Trimmed(text) : text, Special::kPlain);
  }
  std::vector<Segment> Take() { return std::move(segments_); }

 private:
  void Append(std::string_view text, Special special) {
    if (text.empty()) return;
    if (segments_.empty() || segments_.back().special != special) segments_.push_back({.special = special});
    segments_.back().text += text;
  }

  std::vector<Segment> segments_ = {};
};

std::string RolePath(size_t message) { return absl::StrFormat("messages[%d].role", message); }

absl::Status CheckMessages(const ChatFormat& format, std::span<const ChatMessage> messages) {
  if (messages.empty()) return RefuseField("NO_MESSAGES", "messages", "at least one message is needed");
  for (size_t i = 0; i < messages.size(); ++i) {
    if (FindTurn(format, messages[i].role) == nullptr) {
      return RefuseField("UNKNOWN_ROLE", RolePath(i),
                         absl::StrFormat("'%s' is none of system, user, assistant", Printable(messages[i].role)));
    }
    if (!format.system_in_user_turn || messages[i].role != "system") continue;
    if (i + 1 == messages.size() || messages[i + 1].role != "user") {
      return RefuseField(
          "SYSTEM_WITHOUT_USER", RolePath(i),
          absl::StrFormat("in this model's chat format (%s) a system message is part of the user message "
                          "after it; the next message must be one",
                          format.name));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<const ChatFormat*> RecogniseChatFormat(std::string_view chat_template) {
  for (const ChatFormat& format : Formats()) {
    if (Fits(format, chat_template)) return &format;
  }
  const std::string known =
      absl::StrJoin(Formats(), ", ", [](std::string* out, const ChatFormat& format) { *out += format.name; });
  const std::string what = chat_template.empty()
                               ? "the model's file has no chat template (tokenizer.chat_template)"
                               : absl::StrFormat("the model's chat template is in no format known here; it begins: %s",
                                                 Printable(chat_template));
  return Refuse(absl::StatusCode::kFailedPrecondition, absl::StrFormat("%s. Known formats: %s", what, known),
                {.reason = "UNKNOWN_CHAT_TEMPLATE"});
}

absl::StatusOr<std::vector<Segment>> RenderChat(const ChatFormat& format, std::span<const ChatMessage> messages,
                                                Previous previous, Next next) {
  EBB_TRY(CheckMessages(format, messages));
  Prompt prompt;
  if (previous == Previous::kOpenAnswer) prompt.Marker(format.assistant.close);
  bool first = previous == Previous::kNothing;
  const ChatMessage* system = nullptr;  // waits for the user's turn that it belongs in
  for (const ChatMessage& message : messages) {
    if (format.system_in_user_turn && message.role == "system") {
      system = &message;
      continue;
    }
    const ChatTurn& turn = *FindTurn(format, message.role);
    if (!first) prompt.Marker(turn.separator);
    first = false;
    prompt.Marker(turn.open);
    if (system != nullptr) {
      prompt.Marker(format.system.open);
      prompt.Content(system->content, format.system);
      prompt.Marker(format.system.close);
      system = nullptr;
    }
    prompt.Content(message.content, turn);
    prompt.Marker(turn.close);
  }
  if (next == Next::kAnswer) {
    prompt.Marker(format.assistant.separator);
    prompt.Marker(format.answer);
  }
  return prompt.Take();
}

absl::StatusOr<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                                std::span<const int32_t> log, Next next) {
  EBB_ASSIGN(const ChatFormat* format, RecogniseChatFormat(tokenizer.chat_template()));
  Previous previous = Previous::kNothing;
  Start start = Start::kSequence;
  const bool only_begun = log.size() == 1 && log.front() == tokenizer.bos();
  if (only_begun) {
    start = Start::kText;
  } else if (!log.empty()) {
    const bool ended = tokenizer.IsStop(log.back());
    previous = ended ? Previous::kEndedTurn : Previous::kOpenAnswer;
    start = ended ? Start::kText : Start::kContinuation;
  }
  EBB_ASSIGN(const std::vector<Segment> segments, RenderChat(*format, messages, previous, next));
  return tokenizer.Encode(segments, start);
}

}  // namespace ebb
