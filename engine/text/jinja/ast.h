// A parsed template: statements that write, and the expressions in them.

#ifndef EBB_ENGINE_TEXT_JINJA_AST_H_
#define EBB_ENGINE_TEXT_JINJA_AST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/jinja/value.h"

namespace ebb::jinja {

enum class ExprKind {
  kLiteral,      // value
  kName,         // name
  kList,         // items
  kDict,         // items: key, value, key, value ...
  kUnary,        // name: -, + or not; items[0]
  kBinary,       // name: the operator; items[0], items[1]
  kAnd,          // items
  kOr,           // items
  kCompare,      // items[0] names[0] items[1] names[1] items[2] ...
  kConditional,  // items: value, condition, otherwise (may be null)
  kAttribute,    // items[0].name
  kIndex,        // items[0][items[1]]
  kSlice,        // items[0][items[1]:items[2]:items[3]]; the last three may be null
  kCall,         // items[0](arguments)
  kFilter,       // items[0] | name(arguments); items[0] is null in a filter block
  kTest,         // items[0] is name(arguments)
};

struct Expr;
using ExprPtr = std::unique_ptr<const Expr>;

struct Argument {
  std::string name = {};  // empty: by position
  bool spread = false;    // *value: each item by position
  ExprPtr value = {};
};

struct Expr {
  ExprKind kind = ExprKind::kLiteral;
  int32_t line = 1;
  int32_t depth = 1;
  std::string name = {};
  Value value = {};
  std::vector<ExprPtr> items = {};
  std::vector<std::string> names = {};
  std::vector<Argument> arguments = {};
};

enum class StmtKind {
  kData,       // text
  kWrite,      // {{ expr }}
  kIf,         // branches; one without a condition is else
  kFor,        // targets in expr, if condition; body; otherwise
  kBreak,      //
  kContinue,   //
  kSet,        // targets = expr; or, with no expr, the body's text, through filter if there is one
  kMacro,      // name(parameters) body
  kCallBlock,  // expr is a call, whose caller(parameters) is body
  kFilter,     // filter of the body's text
  kBlock,      // targets = expr each (with), body in a scope of its own
};

struct Stmt;
using Block = std::vector<std::unique_ptr<const Stmt>>;

// A variable, or a member of a namespace.
struct Target {
  std::string name = {};
  std::string member = {};
};

struct Branch {
  ExprPtr condition = {};
  Block body = {};
};

struct Parameter {
  std::string name = {};
  ExprPtr otherwise = {};  // its default; may be null
};

struct Stmt {
  StmtKind kind = StmtKind::kData;
  int32_t line = 1;
  Value text = {};
  ExprPtr expr = {};
  ExprPtr condition = {};
  ExprPtr filter = {};
  std::string name = {};
  std::vector<Target> targets = {};
  std::vector<ExprPtr> values = {};
  std::vector<Branch> branches = {};
  std::vector<Parameter> parameters = {};
  Block body = {};
  Block otherwise = {};
};

}  // namespace ebb::jinja

#endif  // EBB_ENGINE_TEXT_JINJA_AST_H_
