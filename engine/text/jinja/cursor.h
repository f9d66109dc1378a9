// The tokens of a template, one after another: what both halves of the parser read.

#ifndef EBB_ENGINE_TEXT_JINJA_CURSOR_H_
#define EBB_ENGINE_TEXT_JINJA_CURSOR_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/lexer.h"

namespace ebb::jinja {

class Cursor {
 public:
  // REQUIRES: the last token is kEnd.
  explicit Cursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  int32_t line() const { return now().line; }

  Token Take() {
    Token taken = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return taken;
  }

  bool Is(TokenKind kind) const { return now().kind == kind; }
  bool IsOperator(std::string_view text) const { return Is(TokenKind::kOperator) && now().text == text; }
  bool IsName(std::string_view text) const { return Is(TokenKind::kName) && now().text == text; }

  bool TakeOperator(std::string_view text) { return IsOperator(text) && (Take(), true); }
  bool TakeName(std::string_view text) { return IsName(text) && (Take(), true); }

  absl::Status Expected(std::string_view what) const {
    return Fault(line(), absl::StrCat("expected ", absl::string_view(what.data(), what.size()), ", found ", Found()));
  }
  absl::Status TakeOnly(std::string_view operator_text) {
    if (TakeOperator(operator_text)) return absl::OkStatus();
    return Expected(absl::StrCat("'", absl::string_view(operator_text.data(), operator_text.size()), "'"));
  }

 private:
  std::string Found() const {
    switch (now().kind) {
      case TokenKind::kEnd:
        return "the end of the template";
      case TokenKind::kData:
        return "text";
      case TokenKind::kVariableEnd:
        return "}}";
      case TokenKind::kBlockEnd:
        return "%}";
      default:
        return absl::StrCat("'", now().text.substr(0, 40), "'");
    }
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace ebb::jinja

#endif  // EBB_ENGINE_TEXT_JINJA_CURSOR_H_
