#include "engine/text/jinja/parse_expression.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "policies/status.h"

namespace ebb::jinja {
namespace {

using Parsed = absl::StatusOr<ExprPtr>;
using MadeExpression = std::unique_ptr<Expr>;

class ExpressionParser {
 public:
  ExpressionParser(Cursor& cursor, int32_t nesting) : cursor_(cursor), nesting_(nesting) {}

  Parsed Conditional() {
    EBB_TRY(Enter());
    EBB_ASSIGN(ExprPtr value, Or());
    while (cursor_.IsName("if")) {
      MadeExpression made = New(ExprKind::kConditional);
      cursor_.Take();
      EBB_TRY(Add(*made, std::move(value)));
      EBB_TRY(Add(*made, Or()));
      if (cursor_.TakeName("else")) {
        EBB_TRY(Add(*made, Conditional()));
      } else {
        made->items.push_back(nullptr);
      }
      value = std::move(made);
    }
    --nesting_;
    return value;
  }

  Parsed Or() {
    return Chain(ExprKind::kOr, "or", [this] { return And(); });
  }

  Parsed Tuple() {
    const int32_t line = cursor_.line();
    EBB_ASSIGN(ExprPtr first, Conditional());
    if (!cursor_.IsOperator(",")) return first;
    MadeExpression list = New(ExprKind::kList);
    list->line = line;
    EBB_TRY(Add(*list, std::move(first)));
    while (cursor_.TakeOperator(",") && !cursor_.Is(TokenKind::kBlockEnd) && !cursor_.Is(TokenKind::kVariableEnd)) {
      EBB_TRY(Add(*list, Conditional()));
    }
    return list;
  }

  Parsed FilterChain() {
    MadeExpression first = New(ExprKind::kFilter);
    first->items.push_back(nullptr);
    EBB_TRY(NameAndArguments(*first));
    return FiltersAndTests(std::move(first));
  }

 private:
  MadeExpression New(ExprKind kind) const {
    auto made = std::make_unique<Expr>();
    made->kind = kind;
    made->line = cursor_.line();
    return made;
  }

  absl::Status TooDeep() const {
    return Fault(cursor_.line(), absl::StrCat("expressions lie in one another deeper than ", kNestingMax));
  }

  absl::Status Enter() { return ++nesting_ > kNestingMax ? TooDeep() : absl::OkStatus(); }

  absl::Status Add(Expr& parent, Parsed child) const {
    EBB_ASSIGN(ExprPtr made, std::move(child));
    parent.depth = std::max(parent.depth, made->depth + 1);
    parent.items.push_back(std::move(made));
    return parent.depth > kNestingMax ? TooDeep() : absl::OkStatus();
  }

  template <typename Next>
  Parsed Chain(ExprKind kind, std::string_view name, const Next& next) {
    EBB_ASSIGN(ExprPtr first, next());
    if (!cursor_.IsName(name)) return first;
    MadeExpression made = New(kind);
    EBB_TRY(Add(*made, std::move(first)));
    while (cursor_.TakeName(name)) EBB_TRY(Add(*made, next()));
    return made;
  }

  Parsed And() {
    return Chain(ExprKind::kAnd, "and", [this] { return Not(); });
  }

  Parsed Not() {
    if (!cursor_.IsName("not")) return Compare();
    EBB_TRY(Enter());
    MadeExpression made = New(ExprKind::kUnary);
    made->name = cursor_.Take().text;
    EBB_TRY(Add(*made, Not()));
    --nesting_;
    return made;
  }

  Parsed Compare() {
    EBB_ASSIGN(ExprPtr first, Sum());
    MadeExpression made = New(ExprKind::kCompare);
    while (true) {
      std::string name;
      if (cursor_.Is(TokenKind::kOperator)) {
        for (const std::string_view known : {"==", "!=", "<=", ">=", "<", ">"}) {
          if (cursor_.now().text == known) name = known;
        }
      } else if (cursor_.IsName("in")) {
        name = "in";
      } else if (cursor_.IsName("not") && cursor_.next().kind == TokenKind::kName && cursor_.next().text == "in") {
        cursor_.Take();
        name = "not in";
      }
      if (name.empty()) break;
      cursor_.Take();
      if (made->items.empty()) EBB_TRY(Add(*made, std::move(first)));
      made->names.push_back(name);
      EBB_TRY(Add(*made, Sum()));
    }
    if (made->items.empty()) return first;
    return made;
  }

  // Operators of one level, from the left.
  template <typename Next>
  Parsed Binary(std::initializer_list<std::string_view> names, const Next& next) {
    EBB_ASSIGN(ExprPtr left, next());
    while (cursor_.Is(TokenKind::kOperator) && std::ranges::find(names, cursor_.now().text) != names.end()) {
      MadeExpression made = New(ExprKind::kBinary);
      made->name = cursor_.Take().text;
      EBB_TRY(Add(*made, std::move(left)));
      EBB_TRY(Add(*made, next()));
      left = std::move(made);
    }
    return left;
  }

  Parsed Sum() {
    return Binary({"+", "-"}, [this] { return Concatenation(); });
  }
  Parsed Concatenation() {
    return Binary({"~"}, [this] { return Product(); });
  }
  Parsed Product() {
    return Binary({"*", "/", "//", "%"}, [this] { return Power(); });
  }
  Parsed Power() {
    return Binary({"**"}, [this] { return Unary(true); });
  }

  Parsed Unary(bool filtered) {
    EBB_TRY(Enter());
    ExprPtr value;
    if (cursor_.IsOperator("-") || cursor_.IsOperator("+")) {
      MadeExpression made = New(ExprKind::kUnary);
      made->name = cursor_.Take().text;
      EBB_TRY(Add(*made, Unary(false)));
      value = std::move(made);
    } else {
      EBB_ASSIGN(value, Primary());
    }
    EBB_ASSIGN(value, Postfix(std::move(value)));
    if (filtered) {
      EBB_ASSIGN(value, FiltersAndTests(std::move(value)));
    }
    --nesting_;
    return value;
  }

  Parsed Literal(Value value) {
    MadeExpression made = New(ExprKind::kLiteral);
    made->value = std::move(value);
    cursor_.Take();
    return made;
  }

  Parsed Primary() {
    const Token& token = cursor_.now();
    switch (token.kind) {
      case TokenKind::kName:
        return Name();
      case TokenKind::kString: {
        std::string text;
        const int32_t line = cursor_.line();
        while (cursor_.Is(TokenKind::kString)) text += cursor_.Take().text;  // neighbours are one, as in Python
        MadeExpression made = New(ExprKind::kLiteral);
        made->line = line;
        made->value = Value::Trusted(text);
        return made;
      }
      case TokenKind::kInteger: {
        int64_t number = 0;
        const auto [end, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
        if (error != std::errc())
          return Fault(token.line, absl::StrCat("the number ", token.text.substr(0, 40), " is too large"));
        return Literal(Value(number));
      }
      case TokenKind::kFloat: {
        double number = 0;
        const auto [end, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
        if (error != std::errc())
          return Fault(token.line, absl::StrCat("the number ", token.text.substr(0, 40), " is too large"));
        return Literal(Value(number));
      }
      default:
        break;
    }
    if (cursor_.IsOperator("(")) return Parenthesis();
    if (cursor_.IsOperator("[")) return ListLiteral();
    if (cursor_.IsOperator("{")) return DictLiteral();
    return cursor_.Expected("an expression");
  }

  Parsed Name() {
    const std::string& name = cursor_.now().text;
    if (name == "true" || name == "True") return Literal(Value(true));
    if (name == "false" || name == "False") return Literal(Value(false));
    if (name == "none" || name == "None") return Literal(Value(None{}));
    for (const std::string_view reserved : {"and", "or", "in", "is", "if", "else", "elif", "for"}) {
      if (name == reserved) return cursor_.Expected("an expression");
    }
    MadeExpression made = New(ExprKind::kName);
    made->name = cursor_.Take().text;
    return made;
  }

  Parsed Parenthesis() {
    cursor_.Take();
    if (cursor_.IsOperator(")")) {
      MadeExpression empty = New(ExprKind::kList);
      cursor_.Take();
      return empty;
    }
    EBB_ASSIGN(ExprPtr first, Conditional());
    if (cursor_.IsOperator(",")) {
      MadeExpression list = New(ExprKind::kList);
      EBB_TRY(Add(*list, std::move(first)));
      while (cursor_.TakeOperator(",") && !cursor_.IsOperator(")")) EBB_TRY(Add(*list, Conditional()));
      first = std::move(list);
    }
    EBB_TRY(cursor_.TakeOnly(")"));
    return first;
  }

  Parsed ListLiteral() {
    MadeExpression list = New(ExprKind::kList);
    cursor_.Take();
    while (!cursor_.IsOperator("]")) {
      EBB_TRY(Add(*list, Conditional()));
      if (!cursor_.TakeOperator(",")) break;
    }
    EBB_TRY(cursor_.TakeOnly("]"));
    return list;
  }

  Parsed DictLiteral() {
    MadeExpression dict = New(ExprKind::kDict);
    cursor_.Take();
    while (!cursor_.IsOperator("}")) {
      EBB_TRY(Add(*dict, Conditional()));
      EBB_TRY(cursor_.TakeOnly(":"));
      EBB_TRY(Add(*dict, Conditional()));
      if (!cursor_.TakeOperator(",")) break;
    }
    EBB_TRY(cursor_.TakeOnly("}"));
    return dict;
  }

  Parsed Postfix(ExprPtr value) {
    while (true) {
      if (cursor_.IsOperator(".")) {
        MadeExpression made = New(ExprKind::kAttribute);
        cursor_.Take();
        EBB_TRY(Add(*made, std::move(value)));
        if (cursor_.Is(TokenKind::kInteger)) {  // list.0 is list[0]
          made->kind = ExprKind::kIndex;
          EBB_TRY(Add(*made, Primary()));
        } else if (cursor_.Is(TokenKind::kName)) {
          made->name = cursor_.Take().text;
        } else {
          return cursor_.Expected("a name after '.'");
        }
        value = std::move(made);
      } else if (cursor_.IsOperator("[")) {
        EBB_ASSIGN(value, Subscript(std::move(value)));
      } else if (cursor_.IsOperator("(")) {
        MadeExpression made = New(ExprKind::kCall);
        EBB_TRY(Add(*made, std::move(value)));
        EBB_TRY(Arguments(*made));
        value = std::move(made);
      } else {
        return value;
      }
    }
  }

  // [i], or [from:to:step] with any of them left out.
  Parsed Subscript(ExprPtr value) {
    MadeExpression made = New(ExprKind::kIndex);
    cursor_.Take();
    EBB_TRY(Add(*made, std::move(value)));
    if (!cursor_.IsOperator(":")) {
      EBB_TRY(Add(*made, Conditional()));
      if (cursor_.TakeOperator("]")) return made;
    } else {
      made->items.push_back(nullptr);
    }
    made->kind = ExprKind::kSlice;
    while (made->items.size() < 4) {
      const bool given = cursor_.TakeOperator(":") && !cursor_.IsOperator(":") && !cursor_.IsOperator("]");
      if (given) {
        EBB_TRY(Add(*made, Conditional()));
      } else {
        made->items.push_back(nullptr);
      }
    }
    EBB_TRY(cursor_.TakeOnly("]"));
    return made;
  }

  absl::Status Arguments(Expr& call) {
    EBB_TRY(cursor_.TakeOnly("("));
    while (!cursor_.IsOperator(")")) {
      Argument& argument = call.arguments.emplace_back();
      if (cursor_.Is(TokenKind::kName) && cursor_.next().kind == TokenKind::kOperator && cursor_.next().text == "=") {
        argument.name = cursor_.Take().text;
        cursor_.Take();
      } else {
        argument.spread = cursor_.TakeOperator("*");
      }
      EBB_ASSIGN(argument.value, Conditional());
      call.depth = std::max(call.depth, argument.value->depth + 1);
      if (call.depth > kNestingMax) return TooDeep();
      if (!cursor_.TakeOperator(",")) break;
    }
    return cursor_.TakeOnly(")");
  }

  absl::Status NameAndArguments(Expr& made) {
    if (!cursor_.Is(TokenKind::kName)) return cursor_.Expected("a name");
    made.name = cursor_.Take().text;
    return cursor_.IsOperator("(") ? Arguments(made) : absl::OkStatus();
  }

  Parsed FiltersAndTests(ExprPtr value) {
    while (true) {
      if (cursor_.IsOperator("|")) {
        MadeExpression made = New(ExprKind::kFilter);
        cursor_.Take();
        EBB_TRY(Add(*made, std::move(value)));
        EBB_TRY(NameAndArguments(*made));
        value = std::move(made);
      } else if (cursor_.IsName("is")) {
        EBB_ASSIGN(value, Test(std::move(value)));
      } else {
        return value;
      }
    }
  }

  Parsed Test(ExprPtr value) {
    MadeExpression made = New(ExprKind::kTest);
    cursor_.Take();
    const bool negated = cursor_.TakeName("not");
    EBB_TRY(Add(*made, std::move(value)));
    EBB_TRY(NameAndArguments(*made));
    if (made->arguments.empty() && StartsOperand()) {  // x is divisibleby 3
      EBB_ASSIGN(ExprPtr operand, Primary());
      EBB_ASSIGN(operand, Postfix(std::move(operand)));
      made->depth = std::max(made->depth, operand->depth + 1);
      made->arguments.push_back({.value = std::move(operand)});
    }
    if (!negated) return made;
    MadeExpression result = New(ExprKind::kUnary);
    result->name = "not";
    EBB_TRY(Add(*result, std::move(made)));
    return result;
  }

  bool StartsOperand() const {
    const Token& token = cursor_.now();
    if (token.kind == TokenKind::kString || token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) {
      return true;
    }
    if (token.kind == TokenKind::kOperator) return token.text == "[" || token.text == "{";
    if (token.kind != TokenKind::kName) return false;
    for (const std::string_view word : {"and", "or", "else", "if", "is", "in", "not", "recursive"}) {
      if (token.text == word) return false;
    }
    return true;
  }

  Cursor& cursor_;
  int32_t nesting_;
};

}  // namespace

absl::StatusOr<ExprPtr> ParseExpression(Cursor& cursor, int32_t nesting) {
  return ExpressionParser(cursor, nesting).Conditional();
}

absl::StatusOr<ExprPtr> ParseIterated(Cursor& cursor, int32_t nesting) {
  return ExpressionParser(cursor, nesting).Or();
}

absl::StatusOr<ExprPtr> ParseTuple(Cursor& cursor, int32_t nesting) {
  return ExpressionParser(cursor, nesting).Tuple();
}

absl::StatusOr<ExprPtr> ParseFilterChain(Cursor& cursor, int32_t nesting) {
  return ExpressionParser(cursor, nesting).FilterChain();
}

}  // namespace ebb::jinja
