// Operators and look-ups of the interpreter: what Python does to values.

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/text_edit.h"
#include "policies/status.h"

namespace ebb::jinja {
namespace {

constexpr int32_t kValueDepthMax = 100;

std::string Named(std::string_view text) { return std::string(text); }

absl::StatusOr<int64_t> Floored(int64_t a, int64_t b) {
  if (b == 0) return Wrong("division by zero");
  if (b == -1) return a == std::numeric_limits<int64_t>::min() ? std::numeric_limits<int64_t>::max() : -a;
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

absl::StatusOr<Value> Whole(const std::string& name, int64_t a, int64_t b) {
  int64_t result = 0;
  bool too_large = false;
  if (name == "+") {
    too_large = __builtin_add_overflow(a, b, &result);
  } else if (name == "-") {
    too_large = __builtin_sub_overflow(a, b, &result);
  } else if (name == "*") {
    too_large = __builtin_mul_overflow(a, b, &result);
  } else if (name == "//") {
    EBB_ASSIGN(result, Floored(a, b));
  } else {  // %
    EBB_ASSIGN(const int64_t quotient, Floored(a, b));
    result = b == -1 ? 0 : a - quotient * b;
  }
  if (too_large) return Wrong("a number is too large");
  return Value(result);
}

absl::StatusOr<Value> Number(const std::string& name, double a, double b) {
  if ((name == "/" || name == "//" || name == "%") && b == 0) return Wrong("division by zero");
  if (name == "+") return Value(a + b);
  if (name == "-") return Value(a - b);
  if (name == "*") return Value(a * b);
  if (name == "/") return Value(a / b);
  if (name == "//") return Value(std::floor(a / b));
  return Value(a - std::floor(a / b) * b);
}

absl::StatusOr<Value> Power(const Value& a, const Value& b) {
  const double power = std::pow(*a.number(), *b.number());
  if (!a.integer() || !b.integer() || *b.integer() < 0) return Value(power);
  if (std::fabs(power) > 9e15) return Wrong("a number is too large");
  return Value(static_cast<int64_t>(power));
}

// A place in a sequence of this size: from the end where it is negative.
int64_t Clamped(const Value* given, int64_t otherwise, int64_t size, int64_t low, int64_t high) {
  if (given == nullptr || given->none() || given->undefined()) return otherwise;
  int64_t at = given->integer().value_or(0);
  if (at < 0) at += size;
  return std::clamp(at, low, high);
}

}  // namespace

absl::StatusOr<Value> Interpreter::Make(Text text) {
  EBB_TRY(Spend(1 + static_cast<int64_t>(text.size()) / 8));
  return Value(std::move(text));
}

absl::StatusOr<Value> Interpreter::Make(List list) {
  EBB_TRY(Spend(1 + static_cast<int64_t>(list.size())));
  Value made(std::move(list));
  if (made.depth() > kValueDepthMax) return Wrong(absl::StrCat("values lie deeper than ", kValueDepthMax));
  return made;
}

absl::StatusOr<Value> Interpreter::Make(Dict dict) {
  EBB_TRY(Spend(1 + static_cast<int64_t>(dict.size())));
  if (dict.depth() > kValueDepthMax) return Wrong(absl::StrCat("values lie deeper than ", kValueDepthMax));
  return Value(std::move(dict));
}

absl::StatusOr<Text> Interpreter::WrittenOf(const Value& value) {
  EBB_TRY(Spend(value.weight()));
  return Written(value);
}

absl::StatusOr<bool> Interpreter::Same(const Value& a, const Value& b) {
  EBB_TRY(Spend(std::min(a.weight(), b.weight())));
  return Equal(a, b);
}

absl::StatusOr<int> Interpreter::Order(const Value& a, const Value& b) {
  EBB_TRY(Spend(std::min(a.weight(), b.weight())));
  if (a.integer() && b.integer()) return *a.integer() < *b.integer() ? -1 : *a.integer() > *b.integer() ? 1 : 0;
  if (a.number() && b.number()) return *a.number() < *b.number() ? -1 : *a.number() > *b.number() ? 1 : 0;
  if (a.text() != nullptr && b.text() != nullptr) {
    const int order = a.text()->bytes().compare(b.text()->bytes());
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  return Wrong(absl::StrCat("cannot order ", Named(a.Kind()), " and ", Named(b.Kind())));
}

absl::StatusOr<bool> Interpreter::Contains(const Value& container, const Value& item) {
  if (const Text* text = container.text()) {
    if (item.text() == nullptr) return Wrong(absl::StrCat("'in' a string needs a string, not ", Named(item.Kind())));
    EBB_TRY(Spend(container.weight()));
    return text->bytes().find(item.text()->bytes()) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) return dict->Find(item) != nullptr;
  if (container.undefined()) return false;
  if (const List* list = container.list()) {
    for (const Value& value : *list) {
      EBB_ASSIGN(const bool same, Same(value, item));
      if (same) return true;
    }
    return false;
  }
  return Wrong(absl::StrCat("nothing is 'in' ", Named(container.Kind())));
}

absl::StatusOr<List> Interpreter::Items(const Value& value) {
  EBB_TRY(Spend(1));
  if (const List* list = value.list()) {
    EBB_TRY(Spend(static_cast<int64_t>(list->size())));
    return *list;
  }
  if (value.undefined()) return List();
  List items;
  if (const Dict* dict = value.dict()) {
    EBB_TRY(Spend(static_cast<int64_t>(dict->size())));
    for (const auto& entry : dict->entries()) items.push_back(entry.first);
    return items;
  }
  if (const Text* text = value.text()) {
    EBB_TRY(Spend(static_cast<int64_t>(text->size()) * 8));
    const std::vector<size_t> bounds = CharacterBounds(text->bytes());
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
      items.emplace_back(text->Sub(bounds[i], bounds[i + 1] - bounds[i]));
    }
    return items;
  }
  return Wrong(absl::StrCat(Named(value.Kind()), " has no items to go through"));
}

absl::StatusOr<Value> Interpreter::Attribute(const Value& value, std::string_view name) {
  if (const Dict* dict = value.dict()) {
    const Value* found = dict->Find(name);
    return found == nullptr ? Value() : *found;
  }
  if (const Namespace* space = value.space()) {
    const auto found = space->values.find(name);
    return found == space->values.end() ? Value() : found->second;
  }
  if (const Loop* loop = value.loop()) {
    const List& items = *loop->items.list();
    const auto size = static_cast<int64_t>(items.size());
    const int64_t index = std::min(loop->index, size - 1);
    if (name == "index") return Value(index + 1);
    if (name == "index0") return Value(index);
    if (name == "revindex") return Value(size - index);
    if (name == "revindex0") return Value(size - index - 1);
    if (name == "first") return Value(index == 0);
    if (name == "last") return Value(index + 1 == size);
    if (name == "length") return Value(size);
    if (name == "depth") return Value(int64_t{1});  // of recursion, which there is none of
    if (name == "depth0") return Value(int64_t{0});
    if (name == "previtem") return index == 0 ? Value() : items[index - 1];
    if (name == "nextitem") return index + 1 == size ? Value() : items[index + 1];
    return Value();
  }
  if (value.undefined()) return Wrong(absl::StrCat("what is undefined has no '", std::string(name), "'"));
  return Value();
}

absl::StatusOr<Value> Interpreter::Item(const Value& value, const Value& key) {
  if (const Dict* dict = value.dict()) {
    const Value* found = dict->Find(key);
    return found == nullptr ? Value() : *found;
  }
  if (key.text() != nullptr) return Attribute(value, key.text()->bytes());
  const auto index = key.integer();
  if (value.undefined()) return Wrong("what is undefined has no items");
  if (!index) return Value();
  if (const List* list = value.list()) {
    const auto size = static_cast<int64_t>(list->size());
    const int64_t at = *index < 0 ? *index + size : *index;
    return at < 0 || at >= size ? Value() : (*list)[at];
  }
  if (const Text* text = value.text()) {
    EBB_TRY(Spend(value.weight()));
    const std::vector<size_t> bounds = CharacterBounds(text->bytes());
    const auto size = static_cast<int64_t>(bounds.size()) - 1;
    const int64_t at = *index < 0 ? *index + size : *index;
    return at < 0 || at >= size ? Value() : Value(text->Sub(bounds[at], bounds[at + 1] - bounds[at]));
  }
  return Value();
}

absl::StatusOr<Value> Interpreter::EvaluateSlice(const Expr& expr, Scope& scope) {
  EBB_ASSIGN(const Value value, Evaluate(*expr.items[0], scope));
  Value bounds[3];
  const Value* given[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    if (expr.items[i + 1] == nullptr) continue;
    EBB_ASSIGN(bounds[i], Evaluate(*expr.items[i + 1], scope));
    if (!bounds[i].integer() && !bounds[i].none()) return Wrong("a slice needs whole numbers");
    given[i] = &bounds[i];
  }
  const int64_t step = given[2] == nullptr || given[2]->none() ? 1 : *given[2]->integer();
  if (step == 0) return Wrong("the step of a slice must not be 0");
  if (value.undefined()) return List();
  if (value.list() == nullptr && value.text() == nullptr) {
    return Wrong(absl::StrCat(Named(value.Kind()), " cannot be sliced"));
  }
  EBB_TRY(Spend(value.text() != nullptr ? value.weight() : 1));
  const std::vector<size_t> characters =
      value.text() != nullptr ? CharacterBounds(value.text()->bytes()) : std::vector<size_t>();
  const int64_t size = value.text() != nullptr ? static_cast<int64_t>(characters.size()) - 1
                                               : static_cast<int64_t>(value.list()->size());
  const bool forward = step > 0;
  const int64_t low = forward ? 0 : -1;
  const int64_t high = forward ? size : size - 1;
  const int64_t begin = Clamped(given[0], forward ? 0 : size - 1, size, low, high);
  const int64_t end = Clamped(given[1], forward ? size : -1, size, low, high);
  // A step further than the end is as good as any.
  const int64_t stride = std::clamp(step, -size - 1, size + 1);
  List items;
  Text text;
  if (stride == 1 && value.text() != nullptr) {
    return Make(begin < end ? value.text()->Sub(characters[begin], characters[end] - characters[begin]) : Text());
  }
  for (int64_t i = begin; forward ? i < end : i > end; i += stride) {
    if (value.list() != nullptr) {
      items.push_back((*value.list())[i]);
    } else {
      text.Append(value.text()->Sub(characters[i], characters[i + 1] - characters[i]));
    }
  }
  if (value.list() != nullptr) return Make(std::move(items));
  return Make(std::move(text));
}

absl::StatusOr<Value> Interpreter::Unary(const std::string& name, const Value& value) {
  if (name == "not") return Value(!value.Truth());
  if (!value.number()) return Wrong(absl::StrCat("'", name, "' needs a number, not ", Named(value.Kind())));
  if (name == "+") return value;
  if (value.integer()) return Whole("-", 0, *value.integer());
  return Value(-*value.number());
}

absl::StatusOr<Value> Interpreter::Binary(const std::string& name, const Value& a, const Value& b) {
  if (name == "~") {
    EBB_ASSIGN(Text joined, WrittenOf(a));
    EBB_ASSIGN(const Text second, WrittenOf(b));
    joined.Append(second);
    return Make(std::move(joined));
  }
  if (a.number() && b.number()) {
    if (name == "**") return Power(a, b);
    if (a.integer() && b.integer() && name != "/") return Whole(name, *a.integer(), *b.integer());
    return Number(name, *a.number(), *b.number());
  }
  if (name == "+" && a.text() != nullptr && b.text() != nullptr) {
    Text joined = *a.text();
    joined.Append(*b.text());
    return Make(std::move(joined));
  }
  if (name == "+" && a.list() != nullptr && b.list() != nullptr) {
    List joined = *a.list();
    joined.insert(joined.end(), b.list()->begin(), b.list()->end());
    return Make(std::move(joined));
  }
  const Value& repeated = a.integer() ? b : a;
  const auto times = a.integer() ? a.integer() : b.integer();
  if (name == "*" && times && (repeated.text() != nullptr || repeated.list() != nullptr)) {
    const int64_t count = std::clamp<int64_t>(*times, 0, int64_t{1} << 30);
    const int64_t size = repeated.text() != nullptr ? repeated.weight() : static_cast<int64_t>(repeated.list()->size());
    EBB_TRY(Spend(count * std::min(size, int64_t{1} << 30)));
    Text text;
    List list;
    for (int64_t i = 0; i < count; ++i) {
      if (repeated.text() != nullptr) text.Append(*repeated.text());
      if (repeated.list() != nullptr) list.insert(list.end(), repeated.list()->begin(), repeated.list()->end());
    }
    if (repeated.list() != nullptr) return Make(std::move(list));
    return Make(std::move(text));
  }
  if (name == "%" && a.text() != nullptr) {  // 'a %s' % b
    Arguments arguments;
    arguments.values = b.list() != nullptr ? *b.list() : List{b};
    return ApplyFilter(*this, "format", a, arguments);
  }
  return Wrong(absl::StrCat("'", name, "' does not join ", Named(a.Kind()), " and ", Named(b.Kind())));
}

}  // namespace ebb::jinja
