// Tests: what stands behind `is`.

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/text_edit.h"
#include "policies/status.h"

namespace ebb::jinja {
namespace {

// A test of a value alone, or with another.
using Alone = bool (*)(const Value&);
using With = absl::StatusOr<bool> (*)(Interpreter&, const Value&, const Value&);

struct Row {
  std::string_view name = {};
  Alone alone = nullptr;
  With with = nullptr;
};

bool IsMapping(const Value& value) { return value.dict() != nullptr; }
bool IsIterable(const Value& value) {
  return value.list() != nullptr || value.dict() != nullptr || value.text() != nullptr || value.undefined();
}
bool IsCase(const Value& value, Case wanted) {
  return value.text() != nullptr && !value.text()->empty() &&
         Cased(*value.text(), wanted).bytes() == value.text()->bytes();
}

template <bool (*kHolds)(int)>
absl::StatusOr<bool> Ordered(Interpreter& run, const Value& a, const Value& b) {
  EBB_ASSIGN(const int order, run.Order(a, b));
  return kHolds(order);
}
bool Below(int order) { return order < 0; }
bool AtMost(int order) { return order <= 0; }
bool Above(int order) { return order > 0; }
bool AtLeast(int order) { return order >= 0; }

absl::StatusOr<bool> Same(Interpreter& run, const Value& a, const Value& b) { return run.Same(a, b); }
absl::StatusOr<bool> Differs(Interpreter& run, const Value& a, const Value& b) {
  EBB_ASSIGN(const bool same, run.Same(a, b));
  return !same;
}
absl::StatusOr<bool> In(Interpreter& run, const Value& a, const Value& b) { return run.Contains(b, a); }
absl::StatusOr<bool> DivisibleBy(Interpreter& /*run*/, const Value& a, const Value& b) {
  if (!a.integer() || !b.integer() || *b.integer() == 0) return Wrong("divisibleby needs whole numbers, and no 0");
  return *b.integer() == -1 || *a.integer() % *b.integer() == 0;
}

constexpr Row kTests[] = {
    {.name = "defined", .alone = [](const Value& v) { return !v.undefined(); }},
    {.name = "undefined", .alone = [](const Value& v) { return v.undefined(); }},
    {.name = "none", .alone = [](const Value& v) { return v.none(); }},
    {.name = "boolean", .alone = [](const Value& v) { return v.boolean().has_value(); }},
    {.name = "true", .alone = [](const Value& v) { return v.boolean() == true; }},
    {.name = "false", .alone = [](const Value& v) { return v.boolean() == false; }},
    {.name = "integer", .alone = [](const Value& v) { return v.integer() && !v.boolean(); }},
    {.name = "float", .alone = [](const Value& v) { return v.is_float(); }},
    {.name = "number", .alone = [](const Value& v) { return v.number().has_value(); }},
    {.name = "string", .alone = [](const Value& v) { return v.text() != nullptr; }},
    {.name = "mapping", .alone = IsMapping},
    {.name = "sequence", .alone = IsIterable},
    {.name = "iterable", .alone = IsIterable},
    {.name = "callable", .alone = [](const Value& v) { return v.callable(); }},
    {.name = "odd", .alone = [](const Value& v) { return v.integer().value_or(0) % 2 != 0; }},
    {.name = "even", .alone = [](const Value& v) { return v.integer() && *v.integer() % 2 == 0; }},
    {.name = "upper", .alone = [](const Value& v) { return IsCase(v, Case::kUpper); }},
    {.name = "lower", .alone = [](const Value& v) { return IsCase(v, Case::kLower); }},
    {.name = "eq", .with = Same},
    {.name = "equalto", .with = Same},
    {.name = "==", .with = Same},
    {.name = "sameas", .with = Same},
    {.name = "ne", .with = Differs},
    {.name = "!=", .with = Differs},
    {.name = "lt", .with = Ordered<Below>},
    {.name = "<", .with = Ordered<Below>},
    {.name = "lessthan", .with = Ordered<Below>},
    {.name = "le", .with = Ordered<AtMost>},
    {.name = "<=", .with = Ordered<AtMost>},
    {.name = "gt", .with = Ordered<Above>},
    {.name = ">", .with = Ordered<Above>},
    {.name = "greaterthan", .with = Ordered<Above>},
    {.name = "ge", .with = Ordered<AtLeast>},
    {.name = ">=", .with = Ordered<AtLeast>},
    {.name = "in", .with = In},
    {.name = "divisibleby", .with = DivisibleBy},
};

}  // namespace

absl::StatusOr<bool> ApplyTest(Interpreter& run, std::string_view name, const Value& value, const Arguments& more) {
  const auto* row = std::ranges::find(kTests, name, &Row::name);
  if (row == std::end(kTests)) {
    return Wrong(absl::StrCat("there is no test '", std::string(name), "'; known: ",
                              absl::StrJoin(kTests, ", ", [](std::string* out, const Row& r) { *out += r.name; })));
  }
  if (row->alone != nullptr) return row->alone(value);
  if (more.values.size() != 1) return Wrong(absl::StrCat("the test '", std::string(name), "' needs one argument"));
  EBB_TRY(run.Spend(1));
  return row->with(run, value, more.values[0]);
}

}  // namespace ebb::jinja
