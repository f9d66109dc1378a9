// Expressions of a template, with Jinja's precedence.

#ifndef EBB_ENGINE_TEXT_JINJA_PARSE_EXPRESSION_H_
#define EBB_ENGINE_TEXT_JINJA_PARSE_EXPRESSION_H_

#include "absl/status/statusor.h"
#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/cursor.h"

namespace ebb::jinja {

// How deep expressions and statements may lie in one another: their evaluation uses the thread's stack.
inline constexpr int32_t kNestingMax = 120;

// A whole expression, `a if b else c` included. Faults name the line.
absl::StatusOr<ExprPtr> ParseExpression(Cursor& cursor, int32_t nesting);

// The same without commas and without the `if` of a loop: what stands behind `in`.
absl::StatusOr<ExprPtr> ParseIterated(Cursor& cursor, int32_t nesting);

// An expression, or several with commas between, which are a list.
absl::StatusOr<ExprPtr> ParseTuple(Cursor& cursor, int32_t nesting);

// `name(arguments) | name ...` of a filter block: the innermost filter has no operand.
absl::StatusOr<ExprPtr> ParseFilterChain(Cursor& cursor, int32_t nesting);

}  // namespace ebb::jinja

#endif  // EBB_ENGINE_TEXT_JINJA_PARSE_EXPRESSION_H_
