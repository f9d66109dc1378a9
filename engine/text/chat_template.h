// Chat messages to a prompt, by the program in Jinja that the model's file carries (`tokenizer.chat_template`,
// engine/text/jinja).
//
// What the template's maker wrote is trusted and becomes special tokens; what the messages say is not, and stays text,
// also where it spells a special token. In formats whose marker is ordinary text in the vocabulary itself (Llama 2's
// [INST]) content can imitate it; nothing but another format can help there.
//
// A session may already hold turns. Then the template is given a turn and an answer to stand for them, and only what it
// writes after that answer is appended: an answer that is still open is closed first.

#ifndef EBB_ENGINE_TEXT_CHAT_TEMPLATE_H_
#define EBB_ENGINE_TEXT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/text/tokenizer.h"

namespace ebb {

struct ChatMessage {
  std::string role = {};  // system, developer, user, assistant or tool
  std::string content = {};
  bool no_content = false;  // beside tool_calls: none, which some templates tell from empty
  // What an assistant called, each a JSON object in the form that the template reads, often
  // {"type": "function", "function": {"name": ..., "arguments": {...}}}; and for a tool's answer, whose it is.
  std::vector<std::string> tool_calls = {};
  std::string name = {};
  std::string tool_call_id = {};
};

enum class Next { kMessages, kAnswer };  // after the messages: nothing, or the opening of an answer

struct ChatOptions {
  Next next = Next::kAnswer;
  std::vector<std::string> tools = {};  // what may be called, each a JSON object
  std::string arguments = {};           // a JSON object: further variables, such as enable_thinking; may be empty
  absl::Time now = absl::UnixEpoch();   // for templates that write the date
};

// Turns that a session already has, of which no message is known.
enum class History { kNone, kSome };

// The prompt in segments for Tokenizer::Encode, as the template writes it: with the begin token where it writes one.
// With History::kSome what follows an answer that ends in the middle. FAILED_PRECONDITION NO_CHAT_TEMPLATE,
// CHAT_TEMPLATE_FAILED (with the line). INVALID_ARGUMENT with the field path: NO_MESSAGES (messages); UNKNOWN_ROLE
// (messages[i].role); BAD_CHAT_JSON (tools[i], arguments, messages[i].tool_calls[j]); CHAT_TEMPLATE_REFUSED (messages),
// with what the template says.
absl::StatusOr<std::vector<Segment>> RenderChat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                                History history, const ChatOptions& options);

// All of it: the tokens to append to a session whose log ends with `log` (the whole of it, or its last two tokens at
// least). A sequence begins with the begin token once, whether the template writes it or not. Errors as above. In
// formats whose user turn ends without a token of its own, such as [INST], a log that ends with one counts as an open
// answer, which is what it is.
absl::StatusOr<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                                std::span<const int32_t> log, const ChatOptions& options);

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_CHAT_TEMPLATE_H_
