#include "engine/text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ebb::jinja {
namespace {

// What every list is that a value holds, so that depth() and weight() need no walk.
struct MeasuredList : List {
  explicit MeasuredList(List list) : List(std::move(list)) {
    for (const Value& value : *this) {
      depth = std::max(depth, value.depth() + 1);
      weight = std::min(kWeightMax, weight + value.weight());
    }
  }
  int32_t depth = 1;
  int64_t weight = 1;
};

constexpr int64_t kBytesPerWeight = 8;

// One text per key, and different ones for keys that differ. Empty: no key.
std::string KeyText(const Value& key) {
  if (const Text* text = key.text()) return absl::StrCat("s", text->bytes());
  if (key.none()) return "none";
  if (const auto number = key.number()) return absl::StrCat("n", FloatText(*number));
  return {};
}

void Quote(std::string_view text, std::string& out) {
  const bool only_single = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = only_single ? '"' : '\'';
  out += quote;
  for (const char c : text) {
    if (AppendEscaped(c, quote, out)) continue;
    if (static_cast<uint8_t>(c) < 0x20 || c == 0x7F) {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<uint8_t>(c));
    } else {
      out += c;
    }
  }
  out += quote;
}

void Show(const Value& value, std::string& out) {
  if (const Text* text = value.text()) return Quote(text->bytes(), out);
  if (const List* list = value.list()) {
    out += '[';
    for (size_t i = 0; i < list->size(); ++i) {
      if (i > 0) out += ", ";
      Show((*list)[i], out);
    }
    out += ']';
    return;
  }
  if (const Dict* dict = value.dict()) {
    out += '{';
    for (size_t i = 0; i < dict->size(); ++i) {
      if (i > 0) out += ", ";
      Show(dict->entries()[i].first, out);
      out += ": ";
      Show(dict->entries()[i].second, out);
    }
    out += '}';
    return;
  }
  if (value.undefined()) {
    out += "Undefined";
  } else if (value.none()) {
    out += "None";
  } else if (const auto boolean = value.boolean()) {
    out += *boolean ? "True" : "False";
  } else if (value.is_float()) {
    out += FloatText(*value.number());
  } else if (const auto integer = value.integer()) {
    absl::StrAppend(&out, *integer);
  } else {
    absl::StrAppend(&out, "<", std::string(value.Kind()), ">");
  }
}

}  // namespace

Value::Value(List list) : data_(std::shared_ptr<const List>(std::make_shared<const MeasuredList>(std::move(list)))) {}

Value::Value(Dict dict) : data_(std::make_shared<const Dict>(std::move(dict))) {}

std::optional<int64_t> Value::integer() const {
  if (const auto flag = boolean()) return *flag ? 1 : 0;
  return Maybe<int64_t>();
}

std::optional<double> Value::number() const {
  if (const auto whole = integer()) return static_cast<double>(*whole);
  return Maybe<double>();
}

bool Value::Truth() const {
  if (undefined() || none()) return false;
  if (const auto value = number()) return *value != 0;
  if (const Text* held = text()) return !held->empty();
  if (const List* held = list()) return !held->empty();
  if (const Dict* held = dict()) return held->size() > 0;
  return true;
}

int32_t Value::depth() const {
  if (const List* held = list()) return static_cast<const MeasuredList*>(held)->depth;
  if (const Dict* held = dict()) return held->depth();
  if (const Loop* held = loop()) return held->items.depth() + 1;
  return 0;
}

int64_t Value::weight() const {
  if (const Text* held = text()) return 1 + static_cast<int64_t>(held->size()) / kBytesPerWeight;
  if (const List* held = list()) return static_cast<const MeasuredList*>(held)->weight;
  if (const Dict* held = dict()) return held->weight();
  return 1;
}

std::string_view Value::Kind() const {
  static constexpr std::string_view kKinds[] = {"undefined", "none",        "a boolean", "a number",
                                                "a number",  "a string",    "a list",    "a dict",
                                                "a loop",    "a namespace", "a macro",   "a function"};
  return kKinds[data_.index()];
}

bool Dict::Set(Value key, Value value) {
  std::string text = KeyText(key);
  if (text.empty()) return false;
  depth_ = std::max(depth_, value.depth() + 1);
  weight_ = std::min(kWeightMax, weight_ + key.weight() + value.weight());
  const auto [found, is_new] = index_.try_emplace(std::move(text), entries_.size());
  if (is_new) {
    entries_.emplace_back(std::move(key), std::move(value));
  } else {
    entries_[found->second].second = std::move(value);
  }
  return true;
}

const Value* Dict::Find(const Value& key) const {
  const auto found = index_.find(KeyText(key));
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

const Value* Dict::Find(std::string_view key) const {
  const auto found = index_.find(absl::StrCat("s", absl::string_view(key.data(), key.size())));
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

bool Equal(const Value& a, const Value& b) {
  if (a.integer() && b.integer()) return *a.integer() == *b.integer();
  if (a.number() && b.number()) return *a.number() == *b.number();
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->bytes() == b.text()->bytes();
  if (a.list() != nullptr && b.list() != nullptr) {
    return std::ranges::equal(*a.list(), *b.list(), [](const Value& x, const Value& y) { return Equal(x, y); });
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    if (a.dict()->size() != b.dict()->size()) return false;
    return std::ranges::all_of(a.dict()->entries(), [&](const auto& entry) {
      const Value* other = b.dict()->Find(entry.first);
      return other != nullptr && Equal(entry.second, *other);
    });
  }
  if (a.undefined() || b.undefined()) return a.undefined() && b.undefined();
  if (a.none() || b.none()) return a.none() && b.none();
  if (a.space() != nullptr || a.macro() != nullptr) return a.space() == b.space() && a.macro() == b.macro();
  if (a.function() && b.function()) return a.function()->index == b.function()->index;
  return false;
}

Text Written(const Value& value) {
  if (const Text* text = value.text()) return *text;
  if (value.undefined()) return {};
  return {Shown(value), Origin::kCaller};
}

std::string Shown(const Value& value) {
  std::string out;
  Show(value, out);
  return out;
}

bool AppendEscaped(char c, char quote, std::string& out) {
  const char letter = c == '\n' ? 'n' : c == '\r' ? 'r' : c == '\t' ? 't' : c;
  if (letter == c && c != quote && c != '\\') return false;
  out += '\\';
  out += letter;
  return true;
}

std::string FloatText(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  if (number == 0) return std::signbit(number) ? "-0.0" : "0.0";
  char buffer[64];
  const double size = std::fabs(number);
  const bool plain = size >= 1e-4 && size < 1e16;
  const auto [end, error] = std::to_chars(std::begin(buffer), std::end(buffer), number,
                                          plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

}  // namespace ebb::jinja
