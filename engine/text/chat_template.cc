#include "engine/text/chat_template.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/model/gguf.h"
#include "engine/text/jinja/json.h"
#include "engine/text/jinja/template.h"
#include "engine/text/utf8.h"
#include "policies/status.h"

namespace ebb {
namespace {

using jinja::Dict;
using jinja::List;
using jinja::Origin;
using jinja::Value;
constexpr size_t kSaidMax = 500;  // bytes of what a template says that are passed on

using Variables = std::vector<std::pair<std::string, Value>>;

// A role that a template writes into a marker ("<|" + role + "|>") makes the marker, so only known ones are trusted.
constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant", "tool"};

absl::StatusOr<Value> JsonObject(const std::string& field, const std::string& json) {
  const absl::StatusOr<Value> value = jinja::FromJson(json);
  if (!value.ok()) return RefuseField("BAD_CHAT_JSON", field, std::string(value.status().message()));
  if (value->dict() == nullptr) return RefuseField("BAD_CHAT_JSON", field, "it is not a JSON object");
  return *value;
}

absl::StatusOr<List> JsonObjects(const std::string& field, const std::vector<std::string>& all) {
  List list;
  for (size_t i = 0; i < all.size(); ++i) {
    EBB_ASSIGN(list.emplace_back(), JsonObject(absl::StrFormat("%s[%d]", field, i), all[i]));
  }
  return list;
}

absl::StatusOr<Value> MessageValue(const ChatMessage& message, size_t index) {
  const std::string path = absl::StrFormat("messages[%d]", index);
  const auto* role = std::ranges::find(kRoles, message.role);
  if (role == kRoles.end()) {
    return RefuseField(
        "UNKNOWN_ROLE", path + ".role",
        absl::StrFormat("'%s' is none of %s", Printable(message.role), "system, developer, user, assistant, tool"));
  }
  Dict dict;
  dict.Set("role", Value::Trusted(*role));
  const bool none = message.no_content && !message.tool_calls.empty();
  dict.Set("content", none ? Value(jinja::None{}) : Value::Said(message.content));
  if (!message.tool_calls.empty()) {
    EBB_ASSIGN(List calls, JsonObjects(path + ".tool_calls", message.tool_calls));
    dict.Set("tool_calls", Value(std::move(calls)));
  }
  if (!message.name.empty()) dict.Set("name", Value::Said(message.name));
  if (!message.tool_call_id.empty()) dict.Set("tool_call_id", Value::Said(message.tool_call_id));
  return Value(std::move(dict));
}

// A turn and an answer, whose content is found again in what the template writes.
void AddHistory(List& messages) {
  Dict user;
  user.Set("role", Value::Trusted("user"));
  user.Set("content", Value::Said("x"));
  Dict answer;
  answer.Set("role", Value::Trusted("assistant"));
  answer.Set("content", Value(jinja::Text("x", Origin::kMarked)));
  messages.emplace_back(std::move(user));
  messages.emplace_back(std::move(answer));
}

// Further variables first, so that none takes the place of the template's own.
absl::StatusOr<Variables> MakeVariables(const Tokenizer& tokenizer, List messages, const ChatOptions& options) {
  Variables variables;
  if (!options.arguments.empty()) {
    EBB_ASSIGN(const Value more, JsonObject("arguments", options.arguments));
    for (const auto& [key, value] : more.dict()->entries()) variables.emplace_back(key.text()->bytes(), value);
  }
  EBB_ASSIGN(List tools, JsonObjects("tools", options.tools));
  variables.emplace_back("messages", Value(std::move(messages)));
  variables.emplace_back("tools", tools.empty() ? Value(jinja::None{}) : Value(std::move(tools)));
  variables.emplace_back("documents", Value(jinja::None{}));
  variables.emplace_back("add_generation_prompt", Value(options.next == Next::kAnswer));
  if (tokenizer.bos()) variables.emplace_back("bos_token", Value::Trusted(tokenizer.TokenText(*tokenizer.bos())));
  if (tokenizer.eos()) variables.emplace_back("eos_token", Value::Trusted(tokenizer.TokenText(*tokenizer.eos())));
  return variables;
}

absl::Status TemplateFailed(const absl::Status& status) {
  return Refuse(absl::StatusCode::kFailedPrecondition,
                absl::StrFormat("the model's chat template (tokenizer.chat_template), %s", status.message()),
                {.reason = "CHAT_TEMPLATE_FAILED"});
}

absl::StatusOr<jinja::Text> Render(const jinja::Template& made, const Variables& variables, absl::Time now) {
  absl::StatusOr<jinja::Text> text = made.Render(variables, {.now = now});
  if (text.ok()) return text;
  if (text.status().code() != absl::StatusCode::kInvalidArgument) return TemplateFailed(text.status());
  return RefuseField("CHAT_TEMPLATE_REFUSED", "messages",
                     absl::StrFormat("the model's chat template does not take them: %s",
                                     SanitisedUtf8(std::string(text.status().message().substr(0, kSaidMax)))));
}

std::vector<Segment> ToSegments(const jinja::Text& text, size_t begin) {
  std::vector<Segment> segments;
  for (size_t at = begin; at < text.size(); ++at) {
    const Special special = text.origin(at) == Origin::kTemplate ? Special::kParse : Special::kPlain;
    if (segments.empty() || segments.back().special != special) segments.push_back({.special = special});
    segments.back().text += text.bytes()[at];
  }
  return segments;
}

// Where the marked answer ends.
std::optional<size_t> EndOfMark(const jinja::Text& text) {
  for (size_t at = text.size(); at > 0; --at) {
    if (text.origin(at - 1) == Origin::kMarked) return at;
  }
  return std::nullopt;
}

// How many tokens of `closing`, which ends an answer, the log ends with; at least those that end it, if `log` ends with
// any stop token.
size_t AlreadyClosed(const Tokenizer& tokenizer, std::span<const int32_t> closing, std::span<const int32_t> log) {
  const auto stop = std::ranges::find_if(closing, [&](int32_t id) { return tokenizer.IsStop(id); });
  if (stop == closing.end()) return 0;
  const size_t least = stop - closing.begin() + 1;
  for (size_t size = std::min(closing.size(), log.size()); size >= least; --size) {
    if (std::ranges::equal(closing.first(size), log.last(size))) return size;
  }
  return tokenizer.IsStop(log.back()) ? least : 0;
}

}  // namespace

absl::StatusOr<std::vector<Segment>> RenderChat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                                History history, const ChatOptions& options) {
  if (tokenizer.chat_template().empty()) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  "the model's file has no chat template (tokenizer.chat_template): render the chat yourself and send "
                  "it as trusted text",
                  {.reason = "NO_CHAT_TEMPLATE"});
  }
  const absl::StatusOr<jinja::Template> made = jinja::Template::Parse(tokenizer.chat_template());
  if (!made.ok()) return TemplateFailed(made.status());
  List list;
  if (history == History::kSome) AddHistory(list);
  for (size_t i = 0; i < messages.size(); ++i) {
    EBB_ASSIGN(list.emplace_back(), MessageValue(messages[i], i));
  }
  EBB_ASSIGN(const Variables variables, MakeVariables(tokenizer, std::move(list), options));
  EBB_ASSIGN(const jinja::Text text, Render(*made, variables, options.now));
  if (history == History::kNone) return ToSegments(text, 0);
  const std::optional<size_t> begin = EndOfMark(text);
  if (!begin) {
    return TemplateFailed(
        absl::FailedPreconditionError("writes no earlier answers, so that it cannot go on a session"));
  }
  return ToSegments(text, *begin);
}

absl::StatusOr<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                                std::span<const int32_t> log, const ChatOptions& options) {
  if (messages.empty()) return RefuseField("NO_MESSAGES", "messages", "at least one message is needed");
  const bool begun = log.size() == 1 && log.front() == tokenizer.bos();
  if (log.empty() || begun) {
    EBB_ASSIGN(const std::vector<Segment> segments, RenderChat(tokenizer, messages, History::kNone, options));
    std::vector<int32_t> ids = tokenizer.Encode(segments, Start::kText);
    const bool has_begin = !ids.empty() && ids.front() == tokenizer.bos();
    if (has_begin && begun) ids.erase(ids.begin());
    if (!has_begin && !begun && tokenizer.adds_bos()) ids.insert(ids.begin(), *tokenizer.bos());
    return ids;
  }
  EBB_ASSIGN(const std::vector<Segment> segments, RenderChat(tokenizer, messages, History::kSome, options));
  std::vector<int32_t> ids = tokenizer.Encode(segments, Start::kContinuation);
  EBB_ASSIGN(const std::vector<Segment> end,
             RenderChat(tokenizer, {}, History::kSome, {.next = Next::kMessages, .now = options.now}));
  std::vector<int32_t> closing = tokenizer.Encode(end, Start::kContinuation);
  closing.resize(std::ranges::mismatch(closing, ids).in1 - closing.begin());
  const size_t closed = AlreadyClosed(tokenizer, closing, log);
  ids.erase(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(closed));
  return ids;
}

}  // namespace ebb
