// A template cut into tokens, with Jinja's handling of white space around tags as chat templates are rendered with it:
// the newline after a block is removed (trim_blocks), as is indentation before one (lstrip_blocks).

#ifndef EBB_ENGINE_TEXT_JINJA_LEXER_H_
#define EBB_ENGINE_TEXT_JINJA_LEXER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ebb::jinja {

enum class TokenKind {
  kData,           // text between tags
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kName,
  kString,  // without quotes, escapes resolved
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text = {};
  int32_t line = 1;
};

// "line N: what", FAILED_PRECONDITION: what a template must not say, or Ebb does not know.
absl::Status Fault(int32_t line, std::string_view what);

// The last token is kEnd. Faults name the line.
absl::StatusOr<std::vector<Token>> Lex(std::string_view source);

}  // namespace ebb::jinja

#endif  // EBB_ENGINE_TEXT_JINJA_LEXER_H_
