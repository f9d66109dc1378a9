// Filters: what stands behind `|`. Those of lists are in filters_of_lists.cc.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/filters_of_lists.h"
#include "engine/text/jinja/json.h"
#include "engine/text/jinja/text_edit.h"
#include "policies/status.h"

namespace ebb::jinja {
namespace {

// Jinja writes what it is given before a filter of strings works on it.
absl::StatusOr<Value> Trim(Interpreter& run, const Value& value, const Arguments& more) {
  EBB_ASSIGN(const Text text, run.WrittenOf(value));
  EBB_ASSIGN(const Text* set, TextArgument(more, 0, "chars"));
  return run.Make(Trimmed(text, set == nullptr ? kWhiteSpace : set->bytes(), Sides::kBoth));
}

template <Case kCase>
absl::StatusOr<Value> ToCase(Interpreter& run, const Value& value, const Arguments& /*more*/) {
  EBB_ASSIGN(const Text text, run.WrittenOf(value));
  return run.Make(Cased(text, kCase));
}

absl::StatusOr<Value> Replace(Interpreter& run, const Value& value, const Arguments& more) {
  EBB_ASSIGN(const Text text, run.WrittenOf(value));
  EBB_ASSIGN(const Text* from, TextArgument(more, 0, "old"));
  EBB_ASSIGN(const Text* to, TextArgument(more, 1, "new"));
  EBB_ASSIGN(const int64_t most, WholeArgument(more, 2, "count", -1));
  if (from == nullptr || to == nullptr) return Wrong("replace needs two strings");
  const auto times = static_cast<int64_t>(from->empty() ? text.size() + 1 : text.size() / from->size());
  EBB_TRY(run.Spend(times * (1 + static_cast<int64_t>(to->size()) / 8)));
  return run.Make(Replaced(text, from->bytes(), *to, most));
}

absl::StatusOr<Value> Indent(Interpreter& run, const Value& value, const Arguments& more) {
  EBB_ASSIGN(const Text text, run.WrittenOf(value));
  const Value* width = more.Find(0, "width");
  Text space(std::string(4, ' '), Origin::kTemplate);
  if (width != nullptr && width->text() != nullptr) {
    space = *width->text();
  } else if (width != nullptr) {
    EBB_ASSIGN(const int64_t count, WholeArgument(more, 0, "width", 4));
    if (count < 0 || count > 1000) return Wrong("indent takes a width of 0 to 1000");
    space = Text(std::string(static_cast<size_t>(count), ' '), Origin::kTemplate);
  }
  const Value* first = more.Find(1, "first");
  const Value* blank = more.Find(2, "blank");
  std::vector<Text> lines = Split(text, "\n", -1, Sides::kLeft);
  EBB_TRY(run.Spend(static_cast<int64_t>(lines.size()) * (1 + static_cast<int64_t>(space.size()) / 8)));
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.Append("\n", Origin::kTemplate);
    const bool wanted =
        i == 0 ? first != nullptr && first->Truth() : !lines[i].empty() || (blank != nullptr && blank->Truth());
    if (wanted) out.Append(space);
    out.Append(lines[i]);
  }
  return run.Make(std::move(out));
}

absl::StatusOr<Value> ToJsonText(Interpreter& run, const Value& value, const Arguments& more) {
  JsonStyle style;
  EBB_ASSIGN(const int64_t indent, WholeArgument(more, 3, "indent", -1));
  if (indent > 100) return Wrong("tojson takes an indent of 0 to 100");
  style.indent = static_cast<int32_t>(std::max<int64_t>(indent, -1));
  if (style.indent >= 0) style.item_separator = ',';
  if (const Value* positional = more.Find(0, "ensure_ascii"); positional != nullptr) {
    // Jinja's own filter has the indent first; the one of chat templates has it by name.
    if (positional->boolean()) style.ascii = positional->Truth();
  }
  const Value* separators = more.Find(4, "separators");
  if (separators != nullptr && separators->list() != nullptr && separators->list()->size() == 2) {
    style.item_separator = Written((*separators->list())[0]).bytes();
    style.key_separator = Written((*separators->list())[1]).bytes();
  }
  const Value* sort = more.Find(5, "sort_keys");
  style.sort_keys = sort != nullptr && sort->Truth();
  const auto width = static_cast<int64_t>(style.item_separator.size() + style.key_separator.size());
  EBB_TRY(run.Spend(value.weight() * (1 + (width + std::max(style.indent, 0) * value.depth()) / 8)));
  EBB_ASSIGN(const std::string json, ToJson(value, style));
  return run.Make(Text(json, Origin::kCaller));
}

absl::StatusOr<Value> Default(Interpreter& /*run*/, const Value& value, const Arguments& more) {
  const Value* otherwise = more.Find(0, "default_value");
  const Value* also_false = more.Find(1, "boolean");
  const bool wanted = value.undefined() || (also_false != nullptr && also_false->Truth() && !value.Truth());
  if (!wanted) return value;
  return otherwise == nullptr ? Value::Trusted("") : *otherwise;
}

absl::StatusOr<Value> ToText(Interpreter& run, const Value& value, const Arguments& /*more*/) {
  if (value.text() != nullptr) return value;
  EBB_ASSIGN(Text text, run.WrittenOf(value));
  return run.Make(std::move(text));
}

absl::StatusOr<Value> ToInteger(Interpreter& /*run*/, const Value& value, const Arguments& more) {
  EBB_ASSIGN(const int64_t otherwise, WholeArgument(more, 0, "default", 0));
  if (value.integer()) return Value(*value.integer());
  double number = 0;
  if (value.is_float()) {
    number = *value.number();
  } else if (value.text() == nullptr || !absl::SimpleAtod(value.text()->bytes(), &number)) {
    return Value(otherwise);
  }
  if (!(std::fabs(number) < 9e18)) return Value(otherwise);
  return Value(static_cast<int64_t>(number));
}

absl::StatusOr<Value> ToFloat(Interpreter& /*run*/, const Value& value, const Arguments& /*more*/) {
  double number = 0;
  if (value.number()) return Value(*value.number());
  if (value.text() != nullptr && absl::SimpleAtod(value.text()->bytes(), &number)) return Value(number);
  return Value(0.0);
}

absl::StatusOr<Value> Absolute(Interpreter& /*run*/, const Value& value, const Arguments& /*more*/) {
  if (value.is_float()) return Value(std::fabs(*value.number()));
  if (!value.integer() || *value.integer() == INT64_MIN) return Wrong("abs needs a number");
  return Value(std::abs(*value.integer()));
}

absl::StatusOr<Value> Round(Interpreter& /*run*/, const Value& value, const Arguments& more) {
  EBB_ASSIGN(const int64_t digits, WholeArgument(more, 0, "precision", 0));
  EBB_ASSIGN(const Text* method, TextArgument(more, 1, "method"));
  if (!value.number() || digits < 0 || digits > 15) return Wrong("round needs a number, and 0 to 15 digits");
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double scaled = *value.number() * scale;
  const std::string how = method == nullptr ? "common" : method->bytes();
  const double rounded = how == "ceil"    ? std::ceil(scaled)
                         : how == "floor" ? std::floor(scaled)
                                          : std::nearbyint(scaled);
  return Value(rounded / scale);
}

absl::StatusOr<Value> Length(Interpreter& run, const Value& value, const Arguments& /*more*/) {
  if (value.text() != nullptr) {
    EBB_TRY(run.Spend(value.weight()));
    return Value(static_cast<int64_t>(CharacterBounds(value.text()->bytes()).size()) - 1);
  }
  if (value.list() != nullptr) return Value(static_cast<int64_t>(value.list()->size()));
  if (value.dict() != nullptr) return Value(static_cast<int64_t>(value.dict()->size()));
  if (value.undefined()) return Value(int64_t{0});
  return Wrong(absl::StrCat(std::string(value.Kind()), " has no length"));
}

absl::StatusOr<Value> Same(Interpreter& /*run*/, const Value& value, const Arguments& /*more*/) { return value; }

absl::StatusOr<Value> Escape(Interpreter& run, const Value& value, const Arguments& /*more*/) {
  EBB_ASSIGN(Text text, run.WrittenOf(value));
  for (const auto& [from, to] : {std::pair<std::string_view, std::string_view>{"&", "&amp;"},
                                 {"<", "&lt;"},
                                 {">", "&gt;"},
                                 {"\"", "&#34;"},
                                 {"'", "&#39;"}}) {
    text = Replaced(text, from, Text(to, Origin::kTemplate), -1);
  }
  return run.Make(std::move(text));
}

// %s, %d and %% of printf.
absl::StatusOr<Value> Format(Interpreter& run, const Value& value, const Arguments& more) {
  EBB_ASSIGN(const Text pattern, run.WrittenOf(value));
  const std::string& bytes = pattern.bytes();
  Text out;
  size_t next = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != '%') {
      out.Append(pattern.Sub(i, 1));
      continue;
    }
    const std::string_view directive = std::string_view(bytes).substr(i++, 2);
    if (directive == "%%") {
      out.Append(pattern.Sub(i, 1));
      continue;
    }
    if (directive != "%s" && directive != "%d") {
      return Wrong(absl::StrCat("format: '", std::string(directive), "' is not known; known: %s, %d, %%"));
    }
    const Value* given = more.Find(next++, "");
    if (given == nullptr) return Wrong("format: too few values");
    EBB_ASSIGN(const Text text, run.WrittenOf(*given));
    out.Append(text);
  }
  return run.Make(std::move(out));
}

constexpr Filter kFilters[] = {
    {"abs", Absolute},
    {"capitalize", ToCase<Case::kCapitalized>},
    {"count", Length},
    {"d", Default},
    {"default", Default},
    {"e", Escape},
    {"escape", Escape},
    {"float", ToFloat},
    {"format", Format},
    {"indent", Indent},
    {"int", ToInteger},
    {"length", Length},
    {"lower", ToCase<Case::kLower>},
    {"replace", Replace},
    {"round", Round},
    {"safe", Same},
    {"string", ToText},
    {"strip", Trim},
    {"title", ToCase<Case::kHeadline>},
    {"tojson", ToJsonText},
    {"trim", Trim},
    {"upper", ToCase<Case::kUpper>},
};

const Filter* Find(std::span<const Filter> filters, std::string_view name) {
  const auto row = std::ranges::find(filters, name, &Filter::name);
  return row == filters.end() ? nullptr : &*row;
}

}  // namespace

absl::StatusOr<Value> ApplyFilter(Interpreter& run, std::string_view name, const Value& value, const Arguments& more) {
  EBB_TRY(run.Spend(1));
  const Filter* filter = Find(kFilters, name);
  if (filter == nullptr) filter = Find(FiltersOfLists(), name);
  if (filter != nullptr) return filter->apply(run, value, more);
  const auto names = [](std::string* out, const Filter& row) { *out += row.name; };
  return Wrong(absl::StrCat("there is no filter '", std::string(name), "'; known: ",
                            absl::StrJoin(kFilters, ", ", names), ", ", absl::StrJoin(FiltersOfLists(), ", ", names)));
}

}  // namespace ebb::jinja
