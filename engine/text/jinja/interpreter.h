// Runs a parsed template. What it may use is bounded: work (steps, and bytes of text made), how deep calls and values
// lie in one another, and output; so no template, whoever wrote it, takes a server's time or memory.
//
// One interpreter renders once, on one thread.

#ifndef EBB_ENGINE_TEXT_JINJA_INTERPRETER_H_
#define EBB_ENGINE_TEXT_JINJA_INTERPRETER_H_

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/value.h"

namespace ebb::jinja {

struct Limits {
  int64_t work = 20'000'000;  // about a second
  size_t output_bytes = size_t{64} << 20;
};

// What a call passes.
struct Arguments {
  std::vector<Value> values = {};
  std::vector<std::pair<std::string, Value>> named = {};

  // The argument at `position` or of this name; null where neither is given.
  const Value* Find(size_t position, std::string_view name) const;
};

struct Scope {
  Scope* outer = nullptr;
  std::map<std::string, Value, std::less<>> values = {};
};

struct Macro {
  const Stmt* stmt = nullptr;
  Scope* scope = nullptr;  // where it was defined
};

class Interpreter {
 public:
  explicit Interpreter(const Limits& limits, absl::Time now) : limits_(limits), now_(now) {}

  // FAILED_PRECONDITION: a fault of the template, or a limit. INVALID_ARGUMENT: it called raise_exception.
  absl::StatusOr<Text> Render(const Block& block, const std::vector<std::pair<std::string, Value>>& variables);

  // The rest is for filters, tests, methods and functions. Faults there need not name a line.

  // FAILED_PRECONDITION once the template has done too much.
  absl::Status Spend(int64_t work);
  // Values that were made, paid for.
  absl::StatusOr<Value> Make(Text text);
  absl::StatusOr<Value> Make(List list);
  absl::StatusOr<Value> Make(Dict dict);
  Namespace* MakeNamespace() { return &namespaces_.emplace_back(); }

  // value.name and value[key]; undefined where there is none. A fault for what is undefined itself.
  absl::StatusOr<Value> Attribute(const Value& value, std::string_view name);
  absl::StatusOr<Value> Item(const Value& value, const Value& key);
  // What a loop goes through: items, keys, characters; nothing of what is undefined.
  absl::StatusOr<List> Items(const Value& value);
  absl::StatusOr<bool> Same(const Value& a, const Value& b);
  // -1, 0 or 1: numbers and strings.
  absl::StatusOr<int> Order(const Value& a, const Value& b);
  absl::StatusOr<bool> Contains(const Value& container, const Value& item);
  absl::StatusOr<Text> WrittenOf(const Value& value);

  absl::Time now() const { return now_; }

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class Depth;

  absl::StatusOr<Flow> Run(const Block& block, Scope& scope, Text& out);
  absl::StatusOr<Flow> RunOne(const Stmt& stmt, Scope& scope, Text& out);
  absl::StatusOr<Flow> RunFor(const Stmt& stmt, Scope& scope, Text& out);
  absl::Status RunSet(const Stmt& stmt, Scope& scope);
  absl::Status RunCallBlock(const Stmt& stmt, Scope& scope, Text& out);
  absl::StatusOr<Text> RunBody(const Block& block, Scope& scope);
  absl::Status Assign(const std::vector<Target>& targets, const Value& value, Scope& scope);
  absl::Status Write(const Value& value, Text& out);

  absl::StatusOr<Value> Evaluate(const Expr& expr, Scope& scope);
  absl::StatusOr<Value> EvaluateKind(const Expr& expr, Scope& scope);
  absl::StatusOr<Value> EvaluateCompare(const Expr& expr, Scope& scope);
  absl::StatusOr<Value> EvaluateSlice(const Expr& expr, Scope& scope);
  absl::StatusOr<Value> EvaluateCall(const Expr& expr, Scope& scope);
  absl::StatusOr<Arguments> EvaluateArguments(const Expr& expr, Scope& scope);
  absl::StatusOr<Value> ApplyFilters(const Expr& chain, const Value& value, Scope& scope);
  absl::StatusOr<Value> Unary(const std::string& name, const Value& value);
  absl::StatusOr<Value> Binary(const std::string& name, const Value& a, const Value& b);
  absl::StatusOr<Value> CallMacro(const Macro& macro, const Arguments& arguments, const Value* caller);
  Value Look(std::string_view name, const Scope& scope) const;

  // A scope lives until its block ends, or as long as the interpreter where a macro may still refer to it.
  Scope& Enter(Scope* outer);
  void Leave(size_t macros);

  const Limits limits_;
  const absl::Time now_;
  int64_t work_ = 0;
  int32_t depth_ = 0;
  std::deque<Scope> scopes_ = {};
  std::deque<Macro> macros_ = {};
  std::deque<Namespace> namespaces_ = {};
};

}  // namespace ebb::jinja

#endif  // EBB_ENGINE_TEXT_JINJA_INTERPRETER_H_
