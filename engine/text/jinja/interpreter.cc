#include "engine/text/jinja/interpreter.h"

#include <algorithm>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/lexer.h"
#include "policies/status.h"

namespace ebb::jinja {
namespace {

constexpr int32_t kCallDepthMax = 300;  // of the thread's stack, macros included

// Says where, unless somebody further in did, and unless the template itself has something to say.
absl::Status AtLine(int32_t line, const absl::Status& status) {
  if (status.code() != absl::StatusCode::kFailedPrecondition || absl::StartsWith(status.message(), "line ")) {
    return status;
  }
  return Fault(line, std::string(status.message()));
}

}  // namespace

const Value* Arguments::Find(size_t position, std::string_view name) const {
  if (position < values.size()) return &values[position];
  const auto found = std::ranges::find(named, name, &std::pair<std::string, Value>::first);
  return found == named.end() ? nullptr : &found->second;
}

// One more level of the stack, while it lives.
class Interpreter::Depth {
 public:
  explicit Depth(Interpreter& run) : run_(run) { ++run_.depth_; }
  ~Depth() { --run_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

  absl::Status Check() const {
    if (run_.depth_ <= kCallDepthMax) return absl::OkStatus();
    return Wrong(absl::StrCat("calls lie in one another deeper than ", kCallDepthMax));
  }

 private:
  Interpreter& run_;
};

absl::StatusOr<Text> Interpreter::Render(const Block& block,
                                         const std::vector<std::pair<std::string, Value>>& variables) {
  Scope& scope = Enter(nullptr);
  for (const auto& [name, value] : variables) scope.values[name] = value;
  Text out;
  EBB_TRY(Run(block, scope, out).status());
  return out;
}

absl::Status Interpreter::Spend(int64_t work) {
  work_ += std::min(work, kWeightMax);
  if (work_ <= limits_.work) return absl::OkStatus();
  return Wrong(absl::StrCat("it takes more than ", limits_.work, " steps"));
}

Scope& Interpreter::Enter(Scope* outer) { return scopes_.emplace_back(Scope{.outer = outer}); }

void Interpreter::Leave(size_t macros) {
  if (macros_.size() == macros) scopes_.pop_back();
}

Value Interpreter::Look(std::string_view name, const Scope& scope) const {
  for (const Scope* at = &scope; at != nullptr; at = at->outer) {
    const auto found = at->values.find(name);
    if (found != at->values.end()) return found->second;
  }
  if (const auto function = FindFunction(name)) return {*function};
  return {};
}

absl::Status Interpreter::Write(const Value& value, Text& out) {
  EBB_ASSIGN(const Text text, WrittenOf(value));
  if (out.size() + text.size() > limits_.output_bytes) {
    return Wrong(absl::StrCat("it writes more than ", limits_.output_bytes, " bytes"));
  }
  out.Append(text);
  return absl::OkStatus();
}

absl::StatusOr<Text> Interpreter::RunBody(const Block& block, Scope& scope) {
  Text out;
  EBB_TRY(Run(block, scope, out).status());
  EBB_TRY(Spend(static_cast<int64_t>(out.size()) / 8));
  return out;
}

absl::StatusOr<Interpreter::Flow> Interpreter::Run(const Block& block, Scope& scope, Text& out) {
  const Depth depth(*this);
  EBB_TRY(depth.Check());
  for (const auto& stmt : block) {
    EBB_TRY(Spend(1));
    const absl::StatusOr<Flow> flow = RunOne(*stmt, scope, out);
    if (!flow.ok()) return AtLine(stmt->line, flow.status());
    if (*flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunOne(const Stmt& stmt, Scope& scope, Text& out) {
  switch (stmt.kind) {
    case StmtKind::kData:
      EBB_TRY(Write(stmt.text, out));
      return Flow::kNext;
    case StmtKind::kWrite: {
      EBB_ASSIGN(const Value value, Evaluate(*stmt.expr, scope));
      EBB_TRY(Write(value, out));
      return Flow::kNext;
    }
    case StmtKind::kIf:
      for (const Branch& branch : stmt.branches) {
        if (branch.condition != nullptr) {
          EBB_ASSIGN(const Value value, Evaluate(*branch.condition, scope));
          if (!value.Truth()) continue;
        }
        return Run(branch.body, scope, out);
      }
      return Flow::kNext;
    case StmtKind::kFor:
      return RunFor(stmt, scope, out);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
    case StmtKind::kSet:
      EBB_TRY(RunSet(stmt, scope));
      return Flow::kNext;
    case StmtKind::kMacro:
      scope.values[stmt.name] = Value(&macros_.emplace_back(Macro{.stmt = &stmt, .scope = &scope}));
      return Flow::kNext;
    case StmtKind::kCallBlock:
      EBB_TRY(RunCallBlock(stmt, scope, out));
      return Flow::kNext;
    case StmtKind::kFilter: {
      EBB_ASSIGN(Text body, RunBody(stmt.body, scope));
      EBB_ASSIGN(const Value value, ApplyFilters(*stmt.filter, Value(std::move(body)), scope));
      EBB_TRY(Write(value, out));
      return Flow::kNext;
    }
    case StmtKind::kBlock: {
      const size_t macros = macros_.size();
      Scope& inner = Enter(&scope);
      for (size_t i = 0; i < stmt.values.size(); ++i) {
        EBB_ASSIGN(inner.values[stmt.targets[i].name], Evaluate(*stmt.values[i], scope));
      }
      EBB_ASSIGN(const Flow flow, Run(stmt.body, inner, out));
      Leave(macros);
      return flow;
    }
  }
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunFor(const Stmt& stmt, Scope& scope, Text& out) {
  EBB_ASSIGN(const Value iterated, Evaluate(*stmt.expr, scope));
  EBB_ASSIGN(List items, Items(iterated));
  if (stmt.condition != nullptr) {
    List kept;
    for (Value& item : items) {
      const size_t macros = macros_.size();
      Scope& inner = Enter(&scope);
      EBB_TRY(Assign(stmt.targets, item, inner));
      EBB_ASSIGN(const Value wanted, Evaluate(*stmt.condition, inner));
      Leave(macros);
      if (wanted.Truth()) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (items.empty()) return Run(stmt.otherwise, scope, out);
  EBB_ASSIGN(Value all, Make(std::move(items)));
  const auto loop = std::make_shared<const Loop>(Loop{.items = all});
  for (; loop->index < static_cast<int64_t>(all.list()->size()); ++loop->index) {
    EBB_TRY(Spend(1));
    const size_t macros = macros_.size();
    Scope& inner = Enter(&scope);
    EBB_TRY(Assign(stmt.targets, (*all.list())[loop->index], inner));
    inner.values["loop"] = Value(loop);
    EBB_ASSIGN(const Flow flow, Run(stmt.body, inner, out));
    Leave(macros);
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

absl::Status Interpreter::Assign(const std::vector<Target>& targets, const Value& value, Scope& scope) {
  if (targets.size() == 1) {
    scope.values[targets[0].name] = value;
    return absl::OkStatus();
  }
  EBB_ASSIGN(const List parts, Items(value));
  if (parts.size() != targets.size()) {
    return Wrong(absl::StrCat(parts.size(), " values for ", targets.size(), " names"));
  }
  for (size_t i = 0; i < parts.size(); ++i) scope.values[targets[i].name] = parts[i];
  return absl::OkStatus();
}

absl::Status Interpreter::RunSet(const Stmt& stmt, Scope& scope) {
  Value value;
  if (stmt.expr != nullptr) {
    EBB_ASSIGN(value, Evaluate(*stmt.expr, scope));
  } else {
    EBB_ASSIGN(Text body, RunBody(stmt.body, scope));
    value = Value(std::move(body));
    if (stmt.filter != nullptr) {
      EBB_ASSIGN(value, ApplyFilters(*stmt.filter, value, scope));
    }
  }
  const Target& target = stmt.targets[0];
  if (target.member.empty()) return Assign(stmt.targets, value, scope);
  const Value space = Look(target.name, scope);
  if (space.space() == nullptr) {
    return Wrong(absl::StrCat("cannot set ", target.name, ".", target.member, ": ", target.name, " is ",
                              std::string(space.Kind()), ", not a namespace"));
  }
  space.space()->values[target.member] = std::move(value);
  return absl::OkStatus();
}

absl::Status Interpreter::RunCallBlock(const Stmt& stmt, Scope& scope, Text& out) {
  EBB_ASSIGN(const Value callee, Evaluate(*stmt.expr->items[0], scope));
  if (callee.macro() == nullptr) return Wrong("'call' needs a macro");
  EBB_ASSIGN(const Arguments arguments, EvaluateArguments(*stmt.expr, scope));
  const Value caller(&macros_.emplace_back(Macro{.stmt = &stmt, .scope = &scope}));
  EBB_ASSIGN(const Value written, CallMacro(*callee.macro(), arguments, &caller));
  return Write(written, out);
}

absl::StatusOr<Value> Interpreter::CallMacro(const Macro& macro, const Arguments& arguments, const Value* caller) {
  const Stmt& stmt = *macro.stmt;
  const size_t macros = macros_.size();
  Scope& scope = Enter(macro.scope);
  if (arguments.values.size() > stmt.parameters.size()) {
    return Wrong(absl::StrCat("macro '", stmt.name, "' takes ", stmt.parameters.size(), " arguments, not ",
                              arguments.values.size()));
  }
  for (const auto& [name, value] : arguments.named) {
    if (std::ranges::find(stmt.parameters, name, &Parameter::name) == stmt.parameters.end()) {
      return Wrong(absl::StrCat("macro '", stmt.name, "' has no parameter '", name, "'"));
    }
  }
  for (size_t i = 0; i < stmt.parameters.size(); ++i) {
    const Parameter& parameter = stmt.parameters[i];
    const Value* given = arguments.Find(i, parameter.name);
    Value value = given == nullptr ? Value() : *given;
    if (given == nullptr && parameter.otherwise != nullptr) {
      EBB_ASSIGN(value, Evaluate(*parameter.otherwise, scope));
    }
    scope.values[parameter.name] = std::move(value);
  }
  if (caller != nullptr) scope.values["caller"] = *caller;
  EBB_ASSIGN(Text out, RunBody(stmt.body, scope));
  Leave(macros);
  return Value(std::move(out));
}

absl::StatusOr<Value> Interpreter::ApplyFilters(const Expr& chain, const Value& value, Scope& scope) {
  Value operand = value;
  if (chain.items[0] != nullptr) {
    EBB_ASSIGN(operand, ApplyFilters(*chain.items[0], value, scope));
  }
  if (chain.kind != ExprKind::kFilter) return Wrong("expected only filters after '|'");
  EBB_ASSIGN(const Arguments arguments, EvaluateArguments(chain, scope));
  return ApplyFilter(*this, chain.name, operand, arguments);
}

absl::StatusOr<Arguments> Interpreter::EvaluateArguments(const Expr& expr, Scope& scope) {
  Arguments arguments;
  for (const Argument& argument : expr.arguments) {
    EBB_ASSIGN(Value value, Evaluate(*argument.value, scope));
    if (argument.spread) {
      EBB_ASSIGN(const List items, Items(value));
      arguments.values.insert(arguments.values.end(), items.begin(), items.end());
    } else if (argument.name.empty()) {
      arguments.values.push_back(std::move(value));
    } else {
      arguments.named.emplace_back(argument.name, std::move(value));
    }
  }
  return arguments;
}

absl::StatusOr<Value> Interpreter::Evaluate(const Expr& expr, Scope& scope) {
  const Depth depth(*this);
  EBB_TRY(depth.Check());
  EBB_TRY(Spend(1));
  absl::StatusOr<Value> value = EvaluateKind(expr, scope);
  if (!value.ok()) return AtLine(expr.line, value.status());
  return value;
}

absl::StatusOr<Value> Interpreter::EvaluateKind(const Expr& expr, Scope& scope) {
  const auto item = [&](size_t i) { return Evaluate(*expr.items[i], scope); };
  switch (expr.kind) {
    case ExprKind::kLiteral:
      return expr.value;
    case ExprKind::kName:
      return Look(expr.name, scope);
    case ExprKind::kList: {
      List list;
      for (size_t i = 0; i < expr.items.size(); ++i) {
        EBB_ASSIGN(list.emplace_back(), item(i));
      }
      return Make(std::move(list));
    }
    case ExprKind::kDict: {
      Dict dict;
      for (size_t i = 0; i < expr.items.size(); i += 2) {
        EBB_ASSIGN(Value key, item(i));
        EBB_ASSIGN(Value value, item(i + 1));
        if (!dict.Set(std::move(key), std::move(value))) return Wrong("a dict's key must be a string or a number");
      }
      return Make(std::move(dict));
    }
    case ExprKind::kUnary: {
      EBB_ASSIGN(const Value value, item(0));
      return Unary(expr.name, value);
    }
    case ExprKind::kBinary: {
      EBB_ASSIGN(const Value a, item(0));
      EBB_ASSIGN(const Value b, item(1));
      return Binary(expr.name, a, b);
    }
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value value;
      for (size_t i = 0; i < expr.items.size(); ++i) {
        EBB_ASSIGN(value, item(i));
        if (value.Truth() == (expr.kind == ExprKind::kOr)) break;
      }
      return value;
    }
    case ExprKind::kCompare:
      return EvaluateCompare(expr, scope);
    case ExprKind::kConditional: {
      EBB_ASSIGN(const Value condition, item(1));
      if (condition.Truth()) return item(0);
      return expr.items[2] == nullptr ? Value() : item(2);
    }
    case ExprKind::kAttribute: {
      EBB_ASSIGN(const Value value, item(0));
      return Attribute(value, expr.name);
    }
    case ExprKind::kIndex: {
      EBB_ASSIGN(const Value value, item(0));
      EBB_ASSIGN(const Value key, item(1));
      return Item(value, key);
    }
    case ExprKind::kSlice:
      return EvaluateSlice(expr, scope);
    case ExprKind::kCall:
      return EvaluateCall(expr, scope);
    case ExprKind::kFilter: {
      if (expr.items[0] == nullptr) return Wrong("a filter without a value");
      EBB_ASSIGN(const Value value, item(0));
      EBB_ASSIGN(const Arguments arguments, EvaluateArguments(expr, scope));
      return ApplyFilter(*this, expr.name, value, arguments);
    }
    case ExprKind::kTest: {
      EBB_ASSIGN(const Value value, item(0));
      EBB_ASSIGN(const Arguments arguments, EvaluateArguments(expr, scope));
      EBB_ASSIGN(const bool passed, ApplyTest(*this, expr.name, value, arguments));
      return Value(passed);
    }
  }
  return Value();
}

absl::StatusOr<Value> Interpreter::EvaluateCompare(const Expr& expr, Scope& scope) {
  EBB_ASSIGN(Value left, Evaluate(*expr.items[0], scope));
  for (size_t i = 0; i < expr.names.size(); ++i) {
    EBB_ASSIGN(Value right, Evaluate(*expr.items[i + 1], scope));
    const std::string& name = expr.names[i];
    bool holds = false;
    if (name == "==" || name == "!=") {
      EBB_ASSIGN(const bool same, Same(left, right));
      holds = same == (name == "==");
    } else if (name == "in" || name == "not in") {
      EBB_ASSIGN(const bool in, Contains(right, left));
      holds = in == (name == "in");
    } else {
      EBB_ASSIGN(const int order, Order(left, right));
      holds = name == "<" ? order < 0 : name == "<=" ? order <= 0 : name == ">" ? order > 0 : order >= 0;
    }
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

absl::StatusOr<Value> Interpreter::EvaluateCall(const Expr& expr, Scope& scope) {
  const Expr& called = *expr.items[0];
  Value callee;
  if (called.kind == ExprKind::kAttribute) {
    EBB_ASSIGN(const Value self, Evaluate(*called.items[0], scope));
    if (self.space() != nullptr) {
      EBB_ASSIGN(callee, Attribute(self, called.name));
    } else {
      EBB_ASSIGN(const Arguments arguments, EvaluateArguments(expr, scope));
      return CallMethod(*this, self, called.name, arguments);
    }
  } else {
    EBB_ASSIGN(callee, Evaluate(called, scope));
  }
  EBB_ASSIGN(const Arguments arguments, EvaluateArguments(expr, scope));
  if (callee.macro() != nullptr) return CallMacro(*callee.macro(), arguments, nullptr);
  if (const auto function = callee.function()) return CallFunction(*this, *function, arguments);
  const std::string name = called.name.empty() ? "what is called" : "'" + called.name + "'";
  return Wrong(absl::StrCat(name, " is ", std::string(callee.Kind()), ", which cannot be called"));
}

}  // namespace ebb::jinja
