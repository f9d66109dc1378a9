// Statements of a template.

#ifndef EBB_ENGINE_TEXT_JINJA_PARSER_H_
#define EBB_ENGINE_TEXT_JINJA_PARSER_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/jinja/ast.h"

namespace ebb::jinja {

// FAILED_PRECONDITION, "line N: what": not Jinja, or of Jinja what templates of a chat have no use for (extends, block,
// include, import, recursive loops).
absl::StatusOr<Block> Parse(std::string_view source);

}  // namespace ebb::jinja

#endif  // EBB_ENGINE_TEXT_JINJA_PARSER_H_
