// What templates find ready: filters (x | name), tests (x is name), methods (x.name()) and functions (name()). One
// table and one file each.

#ifndef EBB_ENGINE_TEXT_JINJA_BUILTINS_H_
#define EBB_ENGINE_TEXT_JINJA_BUILTINS_H_

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/text/jinja/interpreter.h"

namespace ebb::jinja {

// FAILED_PRECONDITION; what calls a builtin adds the line.
absl::Status Wrong(std::string_view what);

absl::StatusOr<Value> ApplyFilter(Interpreter& run, std::string_view name, const Value& value, const Arguments& more);
absl::StatusOr<bool> ApplyTest(Interpreter& run, std::string_view name, const Value& value, const Arguments& more);
absl::StatusOr<Value> CallMethod(Interpreter& run, const Value& value, std::string_view name, const Arguments& more);

std::optional<Function> FindFunction(std::string_view name);
absl::StatusOr<Value> CallFunction(Interpreter& run, Function function, const Arguments& arguments);

// The whole number that an argument is; `otherwise` where it is not given.
absl::StatusOr<int64_t> WholeArgument(const Arguments& arguments, size_t position, std::string_view name,
                                      int64_t otherwise);
// The text that an argument is; null where it is not given or none.
absl::StatusOr<const Text*> TextArgument(const Arguments& arguments, size_t position, std::string_view name);

}  // namespace ebb::jinja

#endif  // EBB_ENGINE_TEXT_JINJA_BUILTINS_H_
