#include "engine/text/jinja/template.h"

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/lexer.h"
#include "engine/text/jinja/parser.h"
#include "policies/status.h"

namespace ebb::jinja {

absl::StatusOr<Template> Template::Parse(std::string_view source) {
  if (source.size() > kTemplateBytesMax) {
    return Fault(1, absl::StrCat("the template has ", source.size(), " bytes; at most ", kTemplateBytesMax));
  }
  EBB_ASSIGN(Block block, jinja::Parse(source));
  return Template(std::move(block));
}

absl::StatusOr<Text> Template::Render(const std::vector<std::pair<std::string, Value>>& variables,
                                      const RenderOptions& options) const {
  return Interpreter(options.limits, options.now).Render(block_, variables);
}

}  // namespace ebb::jinja
