#include "engine/text/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/text/utf8.h"
#include "policies/status.h"

namespace ebb::jinja {
namespace {

constexpr std::string_view kSpaces = " \t\n\r\v\f";

bool IsNameStart(char c) { return absl::ascii_isalpha(static_cast<uint8_t>(c)) || c == '_'; }
bool IsNamePart(char c) { return absl::ascii_isalnum(static_cast<uint8_t>(c)) || c == '_'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// \r\n and \r are newlines, and the last one of the source does not count.
std::string Normalised(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    text += source[i] == '\r' ? '\n' : source[i];
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(Normalised(source)) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < text_.size()) EBB_TRY(Next());
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view Rest() const { return std::string_view(text_).substr(at_); }

  void Add(TokenKind kind, std::string_view text) {
    tokens_.push_back({.kind = kind, .text = std::string(text), .line = line_});
  }

  void Advance(size_t bytes) {
    line_ += static_cast<int32_t>(std::ranges::count(Rest().substr(0, bytes), '\n'));
    at_ += bytes;
  }

  void SkipSpaces() { Advance(std::min(Rest().find_first_not_of(kSpaces), Rest().size())); }

  // Data up to the next tag, and that tag.
  absl::Status Next() {
    const std::string_view rest = Rest();
    size_t tag = 0;
    while (tag < rest.size() && !IsTag(rest, tag)) ++tag;
    AddData(rest.substr(0, tag), tag < rest.size() ? rest.substr(tag) : std::string_view());
    Advance(tag);
    if (Rest().empty()) return absl::OkStatus();
    const char kind = text_[at_ + 1];
    Advance(2);
    if (!Rest().empty() && (Rest()[0] == '-' || Rest()[0] == '+')) Advance(1);
    if (kind == '#') return Comment();
    if (kind == '%' && IsRaw()) return Raw();
    return Tag(kind == '{' ? '}' : kind);
  }

  static bool IsTag(std::string_view text, size_t at) {
    return text[at] == '{' && at + 1 < text.size() &&
           (text[at + 1] == '{' || text[at + 1] == '%' || text[at + 1] == '#');
  }

  // What white space before the tag is left of `data`.
  void AddData(std::string_view data, std::string_view tag) {
    if (tag.size() > 2 && tag[2] == '-') {
      data = data.substr(0, data.find_last_not_of(kSpaces) + 1);  // npos + 1 is 0
    } else if (!tag.empty() && tag[1] != '{' && !(tag.size() > 2 && tag[2] == '+')) {
      const size_t line = data.rfind('\n') + 1;
      const bool starts_line = line > 0 || line_starts_;
      if (starts_line && data.find_first_not_of(kSpaces, line) == std::string_view::npos) data = data.substr(0, line);
    }
    if (!data.empty()) Add(TokenKind::kData, data);
  }

  // Whether a tag's end takes the end of its line along.
  enum class LineEnd { kTaken, kStays };

  // Past `end` ("%}"), its sign and the white space that these take along. True if it stands here.
  bool SkipEnd(std::string_view end, LineEnd line_end = LineEnd::kTaken) {
    const std::string_view rest = Rest();
    const char sign = rest.empty() ? '\0' : rest[0];
    const bool signed_end = (sign == '-' || (sign == '+' && end != "}}")) && rest.substr(1).starts_with(end);
    if (!signed_end && !rest.starts_with(end)) return false;
    Advance(end.size() + (signed_end ? 1 : 0));
    const size_t before = at_;
    if (signed_end && sign == '-') {
      SkipSpaces();
    } else if (!signed_end && line_end == LineEnd::kTaken && end != "}}" && Rest().starts_with('\n')) {
      Advance(1);
    }
    line_starts_ = at_ > before && text_[at_ - 1] == '\n';
    return true;
  }

  absl::Status Comment() {
    const int32_t line = line_;
    while (!Rest().empty()) {
      if (SkipEnd("#}")) return absl::OkStatus();
      Advance(1);
    }
    return Fault(line, "the comment {# has no end #}");
  }

  bool IsRaw() {
    std::string_view rest = Rest();
    rest.remove_prefix(std::min(rest.find_first_not_of(kSpaces), rest.size()));
    return rest.starts_with("raw") && (rest.size() == 3 || !IsNamePart(rest[3]));
  }

  // {% raw %} anything {% endraw %}
  absl::Status Raw() {
    const int32_t line = line_;
    SkipSpaces();
    Advance(3);
    SkipSpaces();
    if (!SkipEnd("%}", LineEnd::kStays)) return Fault(line, "expected %} after raw");
    for (size_t at = 0; (at = Rest().find("{%", at)) != std::string_view::npos; ++at) {
      const std::string_view tag = Rest().substr(at);
      size_t name = 2;
      if (name < tag.size() && (tag[name] == '-' || tag[name] == '+')) ++name;
      name = std::min(tag.find_first_not_of(kSpaces, name), tag.size());
      if (!tag.substr(name).starts_with("endraw")) continue;
      AddData(Rest().substr(0, at), tag);
      Advance(at + name + 6);
      SkipSpaces();
      return SkipEnd("%}") ? absl::OkStatus() : Fault(line_, "expected %} after endraw");
    }
    return Fault(line, "raw has no endraw");
  }

  // The inside of {{ }} or {% %}; `end` is the first character of its end.
  absl::Status Tag(char end) {
    const bool block = end == '%';
    const int32_t line = line_;
    Add(block ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, "");
    int32_t open = 0;  // brackets
    while (true) {
      SkipSpaces();
      if (Rest().empty()) return Fault(line, block ? "the tag {% has no end %}" : "the tag {{ has no end }}");
      if (open == 0 && SkipEnd(block ? "%}" : "}}")) {
        Add(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, "");
        return absl::OkStatus();
      }
      const char c = Rest()[0];
      if (c == '(' || c == '[' || c == '{') ++open;
      if (c == ')' || c == ']' || c == '}') --open;
      if (open < 0) return Fault(line_, absl::StrFormat("'%c' closes nothing", c));
      EBB_TRY(Expression(c));
    }
  }

  absl::Status Expression(char c) {
    const std::string_view rest = Rest();
    if (IsNameStart(c)) {
      const size_t size = std::ranges::find_if_not(rest, IsNamePart) - rest.begin();
      Add(TokenKind::kName, rest.substr(0, size));
      Advance(size);
      return absl::OkStatus();
    }
    if (IsDigit(c)) return Number();
    if (c == '\'' || c == '"') return String(c);
    for (const std::string_view known : {"**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<",
                                         ">",  "=",  "(",  ")",  "[",  "]",  "{", "}", ",", ".", ":", "|"}) {
      if (!rest.starts_with(known)) continue;
      Add(TokenKind::kOperator, known);
      Advance(known.size());
      return absl::OkStatus();
    }
    return Fault(line_,
                 absl::StrFormat("unexpected character '%s'", SanitisedUtf8(rest.substr(0, FirstUtf8(rest).size))));
  }

  absl::Status Number() {
    const std::string_view rest = Rest();
    const auto digits = [&](size_t at) {
      while (at < rest.size() && (IsDigit(rest[at]) || rest[at] == '_')) ++at;
      return at;
    };
    size_t size = digits(0);
    TokenKind kind = TokenKind::kInteger;
    if (size + 1 < rest.size() && rest[size] == '.' && IsDigit(rest[size + 1])) {
      size = digits(size + 1);
      kind = TokenKind::kFloat;
    }
    if (size < rest.size() && (rest[size] == 'e' || rest[size] == 'E')) {
      const size_t sign = size + 1 < rest.size() && (rest[size + 1] == '-' || rest[size + 1] == '+') ? 1 : 0;
      if (size + 1 + sign < rest.size() && IsDigit(rest[size + 1 + sign])) {
        size = digits(size + 1 + sign);
        kind = TokenKind::kFloat;
      }
    }
    std::string text(rest.substr(0, size));
    std::erase(text, '_');
    Add(kind, text);
    Advance(size);
    return absl::OkStatus();
  }

  absl::Status String(char quote) {
    const int32_t line = line_;
    Advance(1);
    std::string value;
    while (!Rest().empty() && Rest()[0] != quote) {
      if (Rest()[0] == '\\' && Rest().size() > 1) {
        EBB_TRY(Escape(value));
      } else {
        value += Rest()[0];
        Advance(1);
      }
    }
    if (Rest().empty()) return Fault(line, "a string has no end");
    Advance(1);
    Add(TokenKind::kString, value);
    return absl::OkStatus();
  }

  // As Python reads them; what is no escape keeps its backslash.
  absl::Status Escape(std::string& value) {
    static constexpr std::pair<char, char> kEscapes[] = {{'n', '\n'},  {'t', '\t'}, {'r', '\r'}, {'b', '\b'},
                                                         {'f', '\f'},  {'v', '\v'}, {'a', '\a'}, {'0', '\0'},
                                                         {'\'', '\''}, {'"', '"'},  {'\\', '\\'}};
    const char c = Rest()[1];
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      const std::string_view hex = Rest().substr(2, digits);
      uint32_t code = 0;
      const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
      const bool scalar = code < 0xD800 || (code > 0xDFFF && code <= 0x10FFFF);
      if (hex.size() != digits || error != std::errc() || end != hex.data() + hex.size() || !scalar) {
        return Fault(line_, absl::StrFormat("\\%c needs %d hexadecimal digits of a character", c, digits));
      }
      AppendUtf8(code, value);
      Advance(2 + digits);
      return absl::OkStatus();
    }
    const auto* known = std::ranges::find(kEscapes, c, &std::pair<char, char>::first);
    if (c == '\n') {
      // A line that goes on: nothing.
    } else if (known != std::end(kEscapes)) {
      value += known->second;
    } else {
      value += '\\';
      value += c;
    }
    Advance(2);
    return absl::OkStatus();
  }

  const std::string text_;
  size_t at_ = 0;
  int32_t line_ = 1;
  bool line_starts_ = true;  // the last tag took the end of its line along, or there was none yet
  std::vector<Token> tokens_ = {};
};

}  // namespace

absl::Status Fault(int32_t line, std::string_view what) {
  return absl::FailedPreconditionError(absl::StrFormat("line %d: %s", line, what));
}

absl::StatusOr<std::vector<Token>> Lex(std::string_view source) { return Lexer(source).Run(); }

}  // namespace ebb::jinja
