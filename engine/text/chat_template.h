// Chat messages to a prompt, in the format that the model's file asks for.
//
// A file carries its format as a program in Jinja. Ebb does not run programs from model files: it recognises the common
// formats by their markers and renders them from a table (chat_template.cc).
//
// Markers are trusted and become special tokens; what the messages say is not, and stays text, also where it spells a
// marker. In formats whose marker is ordinary text in the vocabulary itself (Llama 2's [INST]) content can imitate it;
// nothing but another format can help there.
//
// A session may already hold turns. Then only what follows is rendered: an answer that is still open is closed first.

#ifndef EBB_ENGINE_TEXT_CHAT_TEMPLATE_H_
#define EBB_ENGINE_TEXT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer.h"

namespace ebb {

struct ChatMessage {
  std::string role = {};  // system, user or assistant
  std::string content = {};
};

// One kind of turn: separator, open, content, close.
struct ChatTurn {
  std::string_view separator = {};  // before the turn, unless it is the first of the session
  std::string_view open = {};
  std::string_view close = {};
  bool trim = false;  // white space around the content is left out
};

struct ChatFormat {
  std::string_view name = {};
  std::vector<std::string_view> marks = {};  // a template that has all of these ...
  std::string_view never = {};               // ... and not this, if it is not empty, has this format
  ChatTurn system = {};
  bool system_in_user_turn = false;  // then system.open and close stand before the user's content, inside the turn
  ChatTurn user = {};
  ChatTurn assistant = {};
  std::string_view answer = {};  // opens an answer for the model to write
};

// FAILED_PRECONDITION, reason UNKNOWN_CHAT_TEMPLATE, shows how the template begins and names the known formats.
absl::StatusOr<const ChatFormat*> RecogniseChatFormat(std::string_view chat_template);

// What the session's log ends with.
enum class Previous {
  kNothing,     // it is empty, or but a begin token
  kOpenAnswer,  // an answer without its end: it was cut off, or its end token was not kept
  kEndedTurn,   // a turn with its end token
};

enum class Next { kMessages, kAnswer };  // after the messages: nothing, or the opening of an answer

// The prompt in segments for Tokenizer::Encode. INVALID_ARGUMENT with the field path: NO_MESSAGES (messages);
// UNKNOWN_ROLE (messages[i].role); SYSTEM_WITHOUT_USER (messages[i].role): this format needs a user message right after
// it.
absl::StatusOr<std::vector<Segment>> RenderChat(const ChatFormat& format, std::span<const ChatMessage> messages,
                                                Previous previous, Next next);

// All of it: the tokens to append to a session whose log is `log`, in the format of the tokenizer's template. Errors as
// above. In the [INST] formats a user turn ends without a token of its own: a log that ends with one counts as an open
// answer, which is what it is.
absl::StatusOr<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                                std::span<const int32_t> log, Next next);

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_CHAT_TEMPLATE_H_
