// Chat templates: the part of Jinja (Ronacher 2008, jinja.palletsprojects.com) that published ones are written in, with
// the settings they are written for: the newline after a block and indentation before one are removed.
//
//   EBB_ASSIGN(const jinja::Template made, jinja::Template::Parse("{% for m in messages %}...{% endfor %}"));
//   EBB_ASSIGN(const jinja::Text text, made.Render(variables, {.now = absl::Now()}));
//
// It reads no files, calls nothing outside and cannot change what it is given. Whose every byte of the output is, the
// template's or a caller's, is known (text.h). Limits are in interpreter.h.
//
// Thread safety: immutable after Parse; any thread may render.

#ifndef EBB_ENGINE_TEXT_JINJA_TEMPLATE_H_
#define EBB_ENGINE_TEXT_JINJA_TEMPLATE_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/value.h"

namespace ebb::jinja {

inline constexpr size_t kTemplateBytesMax = size_t{1} << 20;

struct RenderOptions {
  absl::Time now = absl::UnixEpoch();  // what strftime_now says
  Limits limits = {};
};

class Template {
 public:
  // FAILED_PRECONDITION, "line N: what": it cannot be parsed, or is longer than kTemplateBytesMax.
  static absl::StatusOr<Template> Parse(std::string_view source);

  // FAILED_PRECONDITION, "line N: what": it went wrong, or met a limit. INVALID_ARGUMENT: it called raise_exception,
  // with this message.
  absl::StatusOr<Text> Render(const std::vector<std::pair<std::string, Value>>& variables,
                              const RenderOptions& options) const;

 private:
  explicit Template(Block block) : block_(std::move(block)) {}

  Block block_;
};

}  // namespace ebb::jinja

#endif  // EBB_ENGINE_TEXT_JINJA_TEMPLATE_H_
