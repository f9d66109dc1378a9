// Methods of strings, dicts and lists, as Python has them.

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/text_edit.h"
#include "engine/text/utf8.h"
#include "policies/status.h"

namespace ebb::jinja {
namespace {

absl::StatusOr<Value> Strings(Interpreter& run, std::vector<Text> parts) {
  List list;
  for (Text& part : parts) list.emplace_back(std::move(part));
  return run.Make(std::move(list));
}

absl::StatusOr<Value> Strip(Interpreter& run, const Text& text, const Arguments& more, Sides sides) {
  EBB_ASSIGN(const Text* set, TextArgument(more, 0, "chars"));
  return run.Make(Trimmed(text, set == nullptr ? kWhiteSpace : set->bytes(), sides));
}

absl::StatusOr<Value> SplitText(Interpreter& run, const Text& text, const Arguments& more, Sides from) {
  EBB_ASSIGN(const Text* separator, TextArgument(more, 0, "sep"));
  EBB_ASSIGN(const int64_t most, WholeArgument(more, 1, "maxsplit", -1));
  if (separator != nullptr && separator->empty()) return Wrong("the separator of split is empty");
  return Strings(run, Split(text, separator == nullptr ? "" : separator->bytes(), most, from));
}

absl::StatusOr<Value> Begins(const Text& text, const Arguments& more, bool at_end) {
  const Value* given = more.Find(0, "prefix");
  if (given == nullptr) return Wrong("startswith and endswith need a string");
  const List wanted = given->list() == nullptr ? List{*given} : *given->list();
  for (const Value& value : wanted) {
    if (value.text() == nullptr) return Wrong("startswith and endswith need a string");
    const std::string& part = value.text()->bytes();
    if (at_end ? text.bytes().ends_with(part) : text.bytes().starts_with(part)) return Value(true);
  }
  return Value(false);
}

absl::StatusOr<Value> Position(const Text& text, const Arguments& more, bool last) {
  EBB_ASSIGN(const Text* part, TextArgument(more, 0, "sub"));
  if (part == nullptr) return Wrong("find needs a string");
  const size_t found = last ? text.bytes().rfind(part->bytes()) : text.bytes().find(part->bytes());
  if (found == std::string::npos) return Value(int64_t{-1});
  return Value(static_cast<int64_t>(CharacterBounds(std::string_view(text.bytes()).substr(0, found)).size()) - 1);
}

// {}, {0} and {name}.
absl::StatusOr<Value> FillBraces(Interpreter& run, const Text& pattern, const Arguments& more) {
  const std::string_view bytes = pattern.bytes();
  Text out;
  size_t next = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char c = bytes[i];
    if (c != '{' && c != '}') {
      out.Append(pattern.Sub(i, 1));
      continue;
    }
    if (bytes.substr(i + 1).starts_with(c)) {
      out.Append(pattern.Sub(i++, 1));
      continue;
    }
    const size_t end = c == '{' ? bytes.find('}', i) : std::string_view::npos;
    if (end == std::string_view::npos) return Wrong(absl::StrCat("format: a single '", std::string(1, c), "'"));
    const std::string name(bytes.substr(i + 1, end - i - 1));
    size_t position = more.values.size();  // none: by name
    if (name.empty()) {
      position = next++;
    } else if (!absl::SimpleAtoi(name, &position)) {
      position = more.values.size();
    }
    const Value* given = more.Find(position, name);
    if (given == nullptr) return Wrong(absl::StrCat("format: there is no value for '{", name, "}'"));
    EBB_ASSIGN(const Text text, run.WrittenOf(*given));
    out.Append(text);
    i = end;
  }
  return run.Make(std::move(out));
}

template <bool (*kHolds)(unsigned char)>
absl::StatusOr<Value> AllBytes(Interpreter& /*run*/, const Text& text, const Arguments& /*more*/) {
  return Value(!text.empty() &&
               std::ranges::all_of(text.bytes(), [](char c) { return kHolds(static_cast<uint8_t>(c)); }));
}

using OfText = absl::StatusOr<Value> (*)(Interpreter&, const Text&, const Arguments&);
struct Method {
  std::string_view name = {};
  OfText call = nullptr;
};

constexpr Method kOfText[] = {
    {"strip", [](Interpreter& r, const Text& t, const Arguments& m) { return Strip(r, t, m, Sides::kBoth); }},
    {"lstrip", [](Interpreter& r, const Text& t, const Arguments& m) { return Strip(r, t, m, Sides::kLeft); }},
    {"rstrip", [](Interpreter& r, const Text& t, const Arguments& m) { return Strip(r, t, m, Sides::kRight); }},
    {"split", [](Interpreter& r, const Text& t, const Arguments& m) { return SplitText(r, t, m, Sides::kLeft); }},
    {"rsplit", [](Interpreter& r, const Text& t, const Arguments& m) { return SplitText(r, t, m, Sides::kRight); }},
    {"splitlines", [](Interpreter& r, const Text& t, const Arguments&) { return Strings(r, SplitLines(t)); }},
    {"startswith", [](Interpreter&, const Text& t, const Arguments& m) { return Begins(t, m, false); }},
    {"endswith", [](Interpreter&, const Text& t, const Arguments& m) { return Begins(t, m, true); }},
    {"upper", [](Interpreter& r, const Text& t, const Arguments&) { return r.Make(Cased(t, Case::kUpper)); }},
    {"lower", [](Interpreter& r, const Text& t, const Arguments&) { return r.Make(Cased(t, Case::kLower)); }},
    {"title", [](Interpreter& r, const Text& t, const Arguments&) { return r.Make(Cased(t, Case::kTitle)); }},
    {"capitalize",
     [](Interpreter& r, const Text& t, const Arguments&) { return r.Make(Cased(t, Case::kCapitalized)); }},
    {"replace", [](Interpreter& r, const Text& t, const Arguments& m) { return ApplyFilter(r, "replace", t, m); }},
    {"join",
     [](Interpreter& r, const Text& t, const Arguments& m) -> absl::StatusOr<Value> {
       if (m.values.size() != 1) return Wrong("join needs a list");
       Arguments separator;
       separator.values = {Value(t)};
       return ApplyFilter(r, "join", m.values[0], separator);
     }},
    {"format", FillBraces},
    {"find", [](Interpreter&, const Text& t, const Arguments& m) { return Position(t, m, false); }},
    {"rfind", [](Interpreter&, const Text& t, const Arguments& m) { return Position(t, m, true); }},
    {"count",
     [](Interpreter&, const Text& t, const Arguments& m) -> absl::StatusOr<Value> {
       EBB_ASSIGN(const Text* part, TextArgument(m, 0, "sub"));
       if (part == nullptr || part->empty()) return Wrong("count needs a string that is not empty");
       return Value(static_cast<int64_t>(Split(t, part->bytes(), -1, Sides::kLeft).size()) - 1);
     }},
    {"removeprefix",
     [](Interpreter& r, const Text& t, const Arguments& m) -> absl::StatusOr<Value> {
       EBB_ASSIGN(const Text* part, TextArgument(m, 0, "prefix"));
       const bool has = part != nullptr && t.bytes().starts_with(part->bytes());
       return r.Make(t.Sub(has ? part->size() : 0));
     }},
    {"removesuffix",
     [](Interpreter& r, const Text& t, const Arguments& m) -> absl::StatusOr<Value> {
       EBB_ASSIGN(const Text* part, TextArgument(m, 0, "suffix"));
       const bool has = part != nullptr && t.bytes().ends_with(part->bytes());
       return r.Make(t.Sub(0, t.size() - (has ? part->size() : 0)));
     }},
    {"isdigit", AllBytes<absl::ascii_isdigit>},
    {"isalpha", AllBytes<absl::ascii_isalpha>},
    {"isalnum", AllBytes<absl::ascii_isalnum>},
    {"isspace", AllBytes<absl::ascii_isspace>},
};

absl::Status Unknown(const Value& value, std::string_view name) {
  return Wrong(absl::StrCat(std::string(value.Kind()), " has no method '", std::string(name), "'"));
}

absl::StatusOr<Value> OfDict(Interpreter& run, const Value& value, std::string_view name, const Arguments& more) {
  const Dict& dict = *value.dict();
  if (name == "get") {
    const Value* key = more.Find(0, "key");
    if (key == nullptr) return Wrong("get needs a key");
    if (const Value* found = dict.Find(*key)) return *found;
    const Value* otherwise = more.Find(1, "default");
    return otherwise == nullptr ? Value(None{}) : *otherwise;
  }
  if (name == "keys" || name == "values" || name == "items" || name == "copy") {
    if (name == "items") return ApplyFilter(run, "items", value, {});
    if (name == "copy") return value;
    List list;
    for (const auto& [key, item] : dict.entries()) list.push_back(name == "keys" ? key : item);
    return run.Make(std::move(list));
  }
  const Value* held = dict.Find(name);
  if (held != nullptr && held->function()) return CallFunction(run, *held->function(), more);
  return Unknown(value, name);
}

absl::StatusOr<Value> OfList(Interpreter& run, const Value& value, std::string_view name, const Arguments& more) {
  if (name == "copy") return value;
  if (name != "index" && name != "count") return Unknown(value, name);
  if (more.values.size() != 1) return Wrong("index and count need one argument");
  int64_t count = 0;
  for (size_t i = 0; i < value.list()->size(); ++i) {
    EBB_ASSIGN(const bool same, run.Same((*value.list())[i], more.values[0]));
    if (same && name == "index") return Value(static_cast<int64_t>(i));
    count += same ? 1 : 0;
  }
  if (name == "index") return Wrong("index: it is not in the list");
  return Value(count);
}

}  // namespace

absl::StatusOr<Value> CallMethod(Interpreter& run, const Value& value, std::string_view name, const Arguments& more) {
  EBB_TRY(run.Spend(value.text() != nullptr ? value.weight() : 1));
  if (const Text* text = value.text()) {
    const auto* row = std::ranges::find(kOfText, name, &Method::name);
    return row == std::end(kOfText) ? Unknown(value, name) : row->call(run, *text, more);
  }
  if (value.dict() != nullptr) return OfDict(run, value, name, more);
  if (value.list() != nullptr) return OfList(run, value, name, more);
  if (const Loop* loop = value.loop(); loop != nullptr && name == "cycle" && !more.values.empty()) {
    return more.values[static_cast<size_t>(loop->index) % more.values.size()];
  }
  return Unknown(value, name);
}

}  // namespace ebb::jinja
