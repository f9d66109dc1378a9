// Functions that templates call by name.

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/text/jinja/builtins.h"
#include "policies/status.h"

namespace ebb::jinja {
namespace {

using Call = absl::StatusOr<Value> (*)(Interpreter&, const Arguments&);

absl::StatusOr<Value> RaiseException(Interpreter& run, const Arguments& arguments) {
  const Value* message = arguments.Find(0, "message");
  EBB_ASSIGN(const Text text, run.WrittenOf(message == nullptr ? Value() : *message));
  return absl::InvalidArgumentError(text.bytes());
}

absl::StatusOr<Value> MakeRange(Interpreter& run, const Arguments& arguments) {
  const size_t given = arguments.values.size();
  EBB_ASSIGN(const int64_t first, WholeArgument(arguments, 0, "start", 0));
  EBB_ASSIGN(const int64_t second, WholeArgument(arguments, 1, "stop", 0));
  EBB_ASSIGN(const int64_t step, WholeArgument(arguments, 2, "step", 1));
  if (given == 0 || step == 0) return Wrong("range needs a number, and a step other than 0");
  const int64_t begin = given == 1 ? 0 : first;
  const int64_t end = given == 1 ? first : second;
  constexpr int64_t kMost = 100'000;
  List list;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(list.size()) == kMost)
      return Wrong(absl::StrCat("range has more than ", kMost, " numbers"));
    list.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return run.Make(std::move(list));
}

absl::StatusOr<Value> NewNamespace(Interpreter& run, const Arguments& arguments) {
  Namespace* space = run.MakeNamespace();
  if (!arguments.values.empty() && arguments.values[0].dict() != nullptr) {
    for (const auto& [key, value] : arguments.values[0].dict()->entries()) {
      if (key.text() != nullptr) space->values[key.text()->bytes()] = value;
    }
  }
  for (const auto& [name, value] : arguments.named) space->values[name] = value;
  return Value(space);
}

absl::StatusOr<Value> NewDict(Interpreter& run, const Arguments& arguments) {
  Dict dict;
  if (!arguments.values.empty() && arguments.values[0].dict() != nullptr) dict = *arguments.values[0].dict();
  for (const auto& [name, value] : arguments.named) dict.Set(name, value);
  return run.Make(std::move(dict));
}

// The directives of Python's that say something about a date or a time of day.
absl::StatusOr<Value> StrftimeNow(Interpreter& run, const Arguments& arguments) {
  EBB_ASSIGN(const Text* format, TextArgument(arguments, 0, "format"));
  if (format == nullptr) return Wrong("strftime_now needs a format");
  const std::string& bytes = format->bytes();
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != '%') continue;
    ++i;
    if (i < bytes.size() && bytes[i] == '-') ++i;
    if (i == bytes.size() || std::string_view("aAbBcdDeFHIjmMpSTuUwWxXyYZ%").find(bytes[i]) == std::string_view::npos) {
      return Wrong(absl::StrCat("strftime_now does not know this format: ", bytes.substr(0, 100)));
    }
  }
  return run.Make(Text(absl::FormatTime(bytes, run.now(), absl::LocalTimeZone()), Origin::kTemplate));
}

struct Row {
  std::string_view name = {};
  Call call = nullptr;
};

constexpr Row kFunctions[] = {
    {.name = "dict", .call = NewDict},
    {.name = "namespace", .call = NewNamespace},
    {.name = "raise_exception", .call = RaiseException},
    {.name = "range", .call = MakeRange},
    {.name = "strftime_now", .call = StrftimeNow},
};

}  // namespace

absl::Status Wrong(std::string_view what) { return absl::FailedPreconditionError(std::string(what)); }

std::optional<Function> FindFunction(std::string_view name) {
  const auto* row = std::ranges::find(kFunctions, name, &Row::name);
  if (row == std::end(kFunctions)) return std::nullopt;
  return Function{static_cast<int32_t>(row - kFunctions)};
}

absl::StatusOr<Value> CallFunction(Interpreter& run, Function function, const Arguments& arguments) {
  return kFunctions[function.index].call(run, arguments);
}

absl::StatusOr<int64_t> WholeArgument(const Arguments& arguments, size_t position, std::string_view name,
                                      int64_t otherwise) {
  const Value* given = arguments.Find(position, name);
  if (given == nullptr || given->none()) return otherwise;
  if (given->integer()) return *given->integer();
  return Wrong(absl::StrCat(std::string(name), " must be a whole number, not ", std::string(given->Kind())));
}

absl::StatusOr<const Text*> TextArgument(const Arguments& arguments, size_t position, std::string_view name) {
  const Value* given = arguments.Find(position, name);
  if (given == nullptr || given->none()) return nullptr;
  if (given->text() != nullptr) return given->text();
  return Wrong(absl::StrCat(std::string(name), " must be a string, not ", std::string(given->Kind())));
}

}  // namespace ebb::jinja
