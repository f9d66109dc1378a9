// What an expression of a template can be: Python's values, as far as templates use them. Lists and dicts never change
// once made, so that values may be shared; a namespace and a loop are the two things that do.

#ifndef EBB_ENGINE_TEXT_JINJA_VALUE_H_
#define EBB_ENGINE_TEXT_JINJA_VALUE_H_

#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/text/jinja/text.h"

namespace ebb::jinja {

class Dict;
class Value;
struct Namespace;
struct Loop;
struct Macro;
using List = std::vector<Value>;

struct Undefined {};
struct None {};
struct Function {
  int32_t index = 0;  // in the table of functions.cc
};

inline constexpr int64_t kWeightMax = int64_t{1} << 50;  // more is as much

class Value {
 public:
  Value() = default;  // undefined
  Value(None none) : data_(none) {}
  // No pointer is meant by it.
  template <std::same_as<bool> Boolean>
  Value(Boolean boolean) : data_(boolean) {}
  Value(int64_t integer) : data_(integer) {}
  Value(double number) : data_(number) {}
  Value(Text text) : data_(std::make_shared<const Text>(std::move(text))) {}
  Value(List list);
  Value(Dict dict);
  Value(Namespace* space) : data_(space) {}
  Value(const Macro* macro) : data_(macro) {}
  Value(Function function) : data_(function) {}
  Value(std::shared_ptr<const Loop> loop) : data_(std::move(loop)) {}

  // A string that the template vouches for.
  static Value Trusted(std::string_view text) { return {Text(text, Origin::kTemplate)}; }
  // One that it does not.
  static Value Said(std::string_view text) { return {Text(text, Origin::kCaller)}; }

  bool undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool none() const { return std::holds_alternative<None>(data_); }
  bool callable() const {
    return std::holds_alternative<Function>(data_) || std::holds_alternative<const Macro*>(data_);
  }
  // Null where the value is of another kind.
  const Text* text() const { return Shared<Text>(); }
  const List* list() const { return Shared<List>(); }
  const Dict* dict() const { return Shared<Dict>(); }
  const Loop* loop() const { return Shared<Loop>(); }
  Namespace* space() const { return Plain<Namespace*>(nullptr); }
  const Macro* macro() const { return Plain<const Macro*>(nullptr); }
  std::optional<bool> boolean() const { return Maybe<bool>(); }
  std::optional<Function> function() const { return Maybe<Function>(); }
  // Also of a bool, which is 0 or 1.
  std::optional<int64_t> integer() const;
  std::optional<double> number() const;
  bool is_float() const { return std::holds_alternative<double>(data_); }

  bool Truth() const;
  // How many containers lie in one another: 0 for what holds nothing.
  int32_t depth() const;
  // What it costs to go through all of it, however often a part is shared: one for each value and for 8 bytes of text.
  int64_t weight() const;
  // "a string", "a list": for messages.
  std::string_view Kind() const;

 private:
  template <typename T>
  const T* Shared() const {
    const auto* held = std::get_if<std::shared_ptr<const T>>(&data_);
    return held == nullptr ? nullptr : held->get();
  }
  template <typename T>
  T Plain(T other) const {
    const T* held = std::get_if<T>(&data_);
    return held == nullptr ? other : *held;
  }
  template <typename T>
  std::optional<T> Maybe() const {
    const T* held = std::get_if<T>(&data_);
    return held == nullptr ? std::nullopt : std::optional<T>(*held);
  }

  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, std::shared_ptr<const Loop>, Namespace*, const Macro*, Function>
      data_ = {};
};

// In the order of insertion. Keys are strings, numbers, booleans or none.
class Dict {
 public:
  // Replaces the value of an equal key. False where `key` cannot be one.
  bool Set(Value key, Value value);
  void Set(std::string_view key, Value value) { Set(Value::Trusted(key), std::move(value)); }

  // Null where there is no such key.
  const Value* Find(const Value& key) const;
  const Value* Find(std::string_view key) const;

  const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  int32_t depth() const { return depth_; }
  int64_t weight() const { return weight_; }

 private:
  std::vector<std::pair<Value, Value>> entries_ = {};
  absl::flat_hash_map<std::string, size_t> index_ = {};
  int32_t depth_ = 1;
  int64_t weight_ = 1;
};

// Variables that a template may set from within a loop.
struct Namespace {
  std::map<std::string, Value, std::less<>> values = {};
};

// The variable `loop`.
struct Loop {
  Value items = {};           // a list
  mutable int64_t index = 0;  // from 0
};

// As Python compares: 1 == 1.0 == true, strings by their bytes, containers by what they hold.
bool Equal(const Value& a, const Value& b);

// What `{{ value }}` writes. Text keeps its origin; all that is made from a value is the caller's.
Text Written(const Value& value);

// As Python shows a value inside a list: strings in quotes.
std::string Shown(const Value& value);

// Appends what Python and JSON alike write in a quoted text for `c`: a backslash and the quote, a backslash, or the
// letter of a newline, return or tab. False: none of these, and nothing is appended.
bool AppendEscaped(char c, char quote, std::string& out);

// As Python writes a float, the shortest that reads back: 1.0, 1e+16.
std::string FloatText(double number);

}  // namespace ebb::jinja

#endif  // EBB_ENGINE_TEXT_JINJA_VALUE_H_
