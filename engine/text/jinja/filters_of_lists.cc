#include "engine/text/jinja/filters_of_lists.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/text_edit.h"
#include "policies/status.h"

namespace ebb::jinja {
namespace {

absl::StatusOr<Value> ToList(Interpreter& run, const Value& value, const Arguments& /*more*/) {
  EBB_ASSIGN(List items, run.Items(value));
  return run.Make(std::move(items));
}

absl::StatusOr<Value> First(Interpreter& run, const Value& value, const Arguments& /*more*/) {
  EBB_ASSIGN(const List items, run.Items(value));
  return items.empty() ? Value() : items.front();
}

absl::StatusOr<Value> Last(Interpreter& run, const Value& value, const Arguments& /*more*/) {
  EBB_ASSIGN(const List items, run.Items(value));
  return items.empty() ? Value() : items.back();
}

// What lies at a.b of a value.
absl::StatusOr<Value> AttributeOf(Interpreter& run, const Value& value, const Text& path) {
  Value found = value;
  for (const Text& name : Split(path, ".", -1, Sides::kLeft)) {
    if (found.undefined()) return Value();
    EBB_ASSIGN(found, run.Attribute(found, name.bytes()));
  }
  return found;
}

absl::StatusOr<Value> Join(Interpreter& run, const Value& value, const Arguments& more) {
  EBB_ASSIGN(const List items, run.Items(value));
  EBB_ASSIGN(const Text* separator, TextArgument(more, 0, "d"));
  EBB_ASSIGN(const Text* attribute, TextArgument(more, 1, "attribute"));
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (attribute != nullptr) {
      EBB_ASSIGN(item, AttributeOf(run, item, *attribute));
    }
    if (i > 0 && separator != nullptr) {
      EBB_TRY(run.Spend(static_cast<int64_t>(separator->size()) / 8));
      out.Append(*separator);
    }
    EBB_ASSIGN(const Text text, run.WrittenOf(item));
    out.Append(text);
  }
  return run.Make(std::move(out));
}

absl::StatusOr<Value> Entries(Interpreter& run, const Value& value, const Arguments& /*more*/) {
  if (value.undefined()) return Value(List());
  if (value.dict() == nullptr) return Wrong(absl::StrCat("items needs a dict, not ", std::string(value.Kind())));
  List entries;
  for (const auto& [key, item] : value.dict()->entries()) {
    EBB_ASSIGN(entries.emplace_back(), run.Make(List{key, item}));
  }
  return run.Make(std::move(entries));
}

// Those that choose or map find nothing in what is false, such as the tools of a chat without any.
absl::StatusOr<List> ItemsIfAny(Interpreter& run, const Value& value) {
  if (!value.Truth()) return List();
  return run.Items(value);
}

absl::StatusOr<Value> Map(Interpreter& run, const Value& value, const Arguments& more) {
  EBB_ASSIGN(List items, ItemsIfAny(run, value));
  EBB_ASSIGN(const Text* attribute, TextArgument(more, SIZE_MAX, "attribute"));
  const Value* otherwise = more.Find(SIZE_MAX, "default");
  EBB_ASSIGN(const Text* filter, TextArgument(more, 0, "filter"));
  if (attribute == nullptr && filter == nullptr) return Wrong("map needs the name of a filter, or attribute=");
  Arguments rest;
  if (attribute == nullptr) {
    // One in another, each with a copy of what is left, would be as deep as a template likes.
    if (filter->bytes() == "map") return Wrong("map: a map within a map is not known");
    EBB_TRY(run.Spend(static_cast<int64_t>(more.values.size())));
    if (!more.values.empty()) rest.values.assign(more.values.begin() + 1, more.values.end());
  }
  for (Value& item : items) {
    if (attribute != nullptr) {
      EBB_ASSIGN(item, AttributeOf(run, item, *attribute));
      if (item.undefined() && otherwise != nullptr) item = *otherwise;
    } else {
      EBB_ASSIGN(item, ApplyFilter(run, filter->bytes(), item, rest));
    }
  }
  return run.Make(std::move(items));
}

enum class Of { kItem, kAttribute };

// select, reject, selectattr and rejectattr: those whose test comes out as `wanted`; no test is truth.
template <Of kOf, bool kWanted>
absl::StatusOr<Value> Select(Interpreter& run, const Value& value, const Arguments& more) {
  EBB_ASSIGN(const List items, ItemsIfAny(run, value));
  constexpr size_t kSkipped = kOf == Of::kAttribute ? 1 : 0;
  EBB_ASSIGN(const Text* attribute, TextArgument(more, 0, "attribute"));
  if (kOf == Of::kAttribute && attribute == nullptr) return Wrong("selectattr and rejectattr need an attribute");
  EBB_ASSIGN(const Text* test, TextArgument(more, kSkipped, "test"));
  Arguments rest;
  if (more.values.size() > kSkipped + 1) rest.values.assign(more.values.begin() + kSkipped + 1, more.values.end());
  List kept;
  for (const Value& item : items) {
    Value tested = item;
    if (kOf == Of::kAttribute) {
      EBB_ASSIGN(tested, AttributeOf(run, item, *attribute));
    }
    bool passed = tested.Truth();
    if (test != nullptr) {
      EBB_ASSIGN(passed, ApplyTest(run, test->bytes(), tested, rest));
    }
    if (passed == kWanted) kept.push_back(item);
  }
  return run.Make(std::move(kept));
}

absl::StatusOr<Value> Reverse(Interpreter& run, const Value& value, const Arguments& /*more*/) {
  EBB_ASSIGN(List items, run.Items(value));
  std::ranges::reverse(items);
  if (value.text() == nullptr) return run.Make(std::move(items));
  Text out;
  for (const Value& item : items) out.Append(*item.text());
  return run.Make(std::move(out));
}

// What a value is ordered by: an attribute of it, in lower case unless case matters.
absl::StatusOr<Value> SortKey(Interpreter& run, const Value& value, const Text* attribute, bool case_sensitive) {
  Value key = value;
  if (attribute != nullptr) {
    EBB_ASSIGN(key, AttributeOf(run, value, *attribute));
  }
  if (key.text() != nullptr && !case_sensitive) return run.Make(Cased(*key.text(), Case::kLower));
  return key;
}

using Keyed = std::vector<std::pair<Value, Value>>;  // key, value

absl::Status SortByKey(Interpreter& run, Keyed& keyed, bool reverse) {
  absl::Status failed;
  // An order of which a comparison fails is none, and std::sort needs one: keys that cannot be compared are found
  // first.
  for (size_t i = 1; i < keyed.size(); ++i) EBB_TRY(run.Order(keyed[0].first, keyed[i].first).status());
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    const auto order = reverse ? run.Order(b.first, a.first) : run.Order(a.first, b.first);
    if (!order.ok() && failed.ok()) failed = order.status();
    return order.ok() && *order < 0;
  });
  return failed;
}

absl::StatusOr<Value> Sort(Interpreter& run, const Value& value, const Arguments& more) {
  EBB_ASSIGN(const List items, run.Items(value));
  const Value* reverse = more.Find(0, "reverse");
  const Value* case_sensitive = more.Find(1, "case_sensitive");
  EBB_ASSIGN(const Text* attribute, TextArgument(more, 2, "attribute"));
  Keyed keyed;
  for (const Value& item : items) {
    EBB_ASSIGN(Value key, SortKey(run, item, attribute, case_sensitive != nullptr && case_sensitive->Truth()));
    keyed.emplace_back(std::move(key), item);
  }
  EBB_TRY(SortByKey(run, keyed, reverse != nullptr && reverse->Truth()));
  List sorted;
  for (auto& [key, item] : keyed) sorted.push_back(std::move(item));
  return run.Make(std::move(sorted));
}

absl::StatusOr<Value> DictSort(Interpreter& run, const Value& value, const Arguments& more) {
  if (value.dict() == nullptr) return Wrong("dictsort needs a dict");
  const Value* case_sensitive = more.Find(0, "case_sensitive");
  EBB_ASSIGN(const Text* by, TextArgument(more, 1, "by"));
  const Value* reverse = more.Find(2, "reverse");
  Keyed keyed;
  for (const auto& [key, item] : value.dict()->entries()) {
    const Value& ordered = by != nullptr && by->bytes() == "value" ? item : key;
    EBB_ASSIGN(Value made, SortKey(run, ordered, nullptr, case_sensitive != nullptr && case_sensitive->Truth()));
    EBB_ASSIGN(Value entry, run.Make(List{key, item}));
    keyed.emplace_back(std::move(made), std::move(entry));
  }
  EBB_TRY(SortByKey(run, keyed, reverse != nullptr && reverse->Truth()));
  List sorted;
  for (auto& [key, entry] : keyed) sorted.push_back(std::move(entry));
  return run.Make(std::move(sorted));
}

template <int kSign>
absl::StatusOr<Value> Extreme(Interpreter& run, const Value& value, const Arguments& more) {
  EBB_ASSIGN(const List items, run.Items(value));
  EBB_ASSIGN(const Text* attribute, TextArgument(more, 1, "attribute"));
  Value best;
  Value best_key;
  for (size_t i = 0; i < items.size(); ++i) {
    EBB_ASSIGN(Value key, SortKey(run, items[i], attribute, false));
    int order = -1;
    if (i > 0) {
      EBB_ASSIGN(order, run.Order(key, best_key));
      order *= kSign;
    }
    if (order < 0) {
      best = items[i];
      best_key = std::move(key);
    }
  }
  return best;
}

absl::StatusOr<Value> Sum(Interpreter& run, const Value& value, const Arguments& more) {
  EBB_ASSIGN(const List items, run.Items(value));
  EBB_ASSIGN(const Text* attribute, TextArgument(more, 0, "attribute"));
  int64_t whole = 0;
  double number = 0;
  bool is_float = false;
  for (const Value& item : items) {
    Value added = item;
    if (attribute != nullptr) {
      EBB_ASSIGN(added, AttributeOf(run, item, *attribute));
    }
    if (!added.number()) return Wrong(absl::StrCat("sum needs numbers, not ", std::string(added.Kind())));
    is_float = is_float || added.is_float();
    number += *added.number();
    if (!is_float && __builtin_add_overflow(whole, *added.integer(), &whole)) return Wrong("a number is too large");
  }
  return is_float ? Value(number) : Value(whole);
}

absl::StatusOr<Value> Unique(Interpreter& run, const Value& value, const Arguments& more) {
  EBB_ASSIGN(const List items, run.Items(value));
  EBB_ASSIGN(const Text* attribute, TextArgument(more, 1, "attribute"));
  List keys;
  List kept;
  for (const Value& item : items) {
    EBB_ASSIGN(Value key, SortKey(run, item, attribute, false));
    bool seen = false;
    for (size_t i = 0; i < keys.size() && !seen; ++i) {
      EBB_ASSIGN(seen, run.Same(keys[i], key));
    }
    if (seen) continue;
    keys.push_back(std::move(key));
    kept.push_back(item);
  }
  return run.Make(std::move(kept));
}

absl::StatusOr<Value> Attr(Interpreter& run, const Value& value, const Arguments& more) {
  EBB_ASSIGN(const Text* name, TextArgument(more, 0, "name"));
  if (name == nullptr) return Wrong("attr needs a name");
  return run.Attribute(value, name->bytes());
}

constexpr Filter kListFilters[] = {
    {"attr", Attr},
    {"dictsort", DictSort},
    {"first", First},
    {"items", Entries},
    {"join", Join},
    {"last", Last},
    {"list", ToList},
    {"map", Map},
    {"max", Extreme<-1>},
    {"min", Extreme<1>},
    {"reject", Select<Of::kItem, false>},
    {"rejectattr", Select<Of::kAttribute, false>},
    {"reverse", Reverse},
    {"select", Select<Of::kItem, true>},
    {"selectattr", Select<Of::kAttribute, true>},
    {"sort", Sort},
    {"sum", Sum},
    {"unique", Unique},
};

}  // namespace

std::span<const Filter> FiltersOfLists() { return kListFilters; }

}  // namespace ebb::jinja
