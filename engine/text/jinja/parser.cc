#include "engine/text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/cursor.h"
#include "engine/text/jinja/lexer.h"
#include "engine/text/jinja/parse_expression.h"
#include "policies/status.h"

namespace ebb::jinja {
namespace {

using Made = std::unique_ptr<Stmt>;
using Words = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(Cursor cursor) : cursor_(std::move(cursor)) {}

  absl::StatusOr<Block> Run() {
    EBB_ASSIGN(Block block, Body({}));
    return block;
  }

 private:
  Made New(StmtKind kind) const {
    auto made = std::make_unique<Stmt>();
    made->kind = kind;
    made->line = cursor_.line();
    return made;
  }

  absl::Status EndTag() {
    if (!cursor_.Is(TokenKind::kBlockEnd)) return cursor_.Expected("%}");
    cursor_.Take();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Name() {
    if (!cursor_.Is(TokenKind::kName)) return cursor_.Expected("a name");
    return cursor_.Take().text;
  }

  // Statements up to a tag that begins with one of `ends`, which stays to be read from its name on; to the end of the
  // template where there are none.
  absl::StatusOr<Block> Body(Words ends) {
    if (++nesting_ > kNestingMax) {
      return Fault(cursor_.line(), absl::StrCat("blocks lie in one another deeper than ", kNestingMax));
    }
    Block block;
    while (true) {
      if (cursor_.Is(TokenKind::kEnd)) {
        if (ends.size() > 0) return cursor_.Expected(absl::StrCat("{% ", std::string(*(ends.end() - 1)), " %}"));
        break;
      }
      if (cursor_.Is(TokenKind::kBlockBegin)) {
        cursor_.Take();
        if (cursor_.Is(TokenKind::kName) && std::ranges::find(ends, cursor_.now().text) != ends.end()) break;
        EBB_ASSIGN(Made made, Statement());
        block.push_back(std::move(made));
        continue;
      }
      if (cursor_.Is(TokenKind::kData)) {
        Made made = New(StmtKind::kData);
        made->text = Value::Trusted(cursor_.Take().text);
        block.push_back(std::move(made));
        continue;
      }
      Made made = New(StmtKind::kWrite);  // the lexer leaves nothing else here
      cursor_.Take();
      EBB_ASSIGN(made->expr, ParseTuple(cursor_, nesting_));
      if (!cursor_.Is(TokenKind::kVariableEnd)) return cursor_.Expected("}}");
      cursor_.Take();
      block.push_back(std::move(made));
    }
    --nesting_;
    return block;
  }

  // Body up to `end`, and that tag.
  absl::StatusOr<Block> BodyUntil(std::string_view end) {
    EBB_ASSIGN(Block block, Body({end}));
    cursor_.Take();
    EBB_TRY(EndTag());
    return block;
  }

  absl::StatusOr<Made> Statement() {
    const int32_t line = cursor_.line();
    EBB_ASSIGN(const std::string name, Name());
    if (name == "if") return If();
    if (name == "for") return For();
    if (name == "set") return Set();
    if (name == "macro") return Macro();
    if (name == "call") return CallBlock();
    if (name == "filter") return Filter();
    if (name == "with") return With();
    if (name == "generation") return Generation();
    if (name == "break" || name == "continue") {
      if (loops_ == 0) return Fault(line, absl::StrCat(name, " outside of a loop"));
      Made made = New(name == "break" ? StmtKind::kBreak : StmtKind::kContinue);
      EBB_TRY(EndTag());
      return made;
    }
    return Fault(line, absl::StrCat("there is no statement '", name.substr(0, 40),
                                    "'; known: if, for, break, continue, set, macro, call, filter, with, generation, "
                                    "raw"));
  }

  absl::StatusOr<Made> If() {
    Made made = New(StmtKind::kIf);
    while (true) {
      Branch& branch = made->branches.emplace_back();
      EBB_ASSIGN(branch.condition, ParseTuple(cursor_, nesting_));
      EBB_TRY(EndTag());
      EBB_ASSIGN(branch.body, Body({"elif", "else", "endif"}));
      const std::string word = cursor_.Take().text;
      if (word == "elif") continue;
      EBB_TRY(EndTag());
      if (word == "else") {
        EBB_ASSIGN(made->branches.emplace_back().body, BodyUntil("endif"));
      }
      return made;
    }
  }

  absl::StatusOr<Target> ParseTarget() {
    Target target;
    EBB_ASSIGN(target.name, Name());
    return target;
  }

  // a, or a, b, or (a, b)
  absl::Status Targets(Stmt& made) {
    const bool parenthesis = cursor_.TakeOperator("(");
    do {
      EBB_ASSIGN(Target target, ParseTarget());
      made.targets.push_back(std::move(target));
    } while (cursor_.TakeOperator(","));
    return parenthesis ? cursor_.TakeOnly(")") : absl::OkStatus();
  }

  absl::StatusOr<Made> For() {
    Made made = New(StmtKind::kFor);
    EBB_TRY(Targets(*made));
    if (!cursor_.TakeName("in")) return cursor_.Expected("'in'");
    EBB_ASSIGN(made->expr, ParseIterated(cursor_, nesting_));
    if (cursor_.TakeName("if")) {
      EBB_ASSIGN(made->condition, ParseExpression(cursor_, nesting_));
    }
    if (cursor_.IsName("recursive")) return Fault(cursor_.line(), "recursive loops are not known here");
    EBB_TRY(EndTag());
    ++loops_;
    EBB_ASSIGN(made->body, Body({"else", "endfor"}));
    --loops_;
    const bool otherwise = cursor_.Take().text == "else";
    EBB_TRY(EndTag());
    if (otherwise) {
      EBB_ASSIGN(made->otherwise, BodyUntil("endfor"));
    }
    return made;
  }

  absl::StatusOr<Made> Set() {
    Made made = New(StmtKind::kSet);
    EBB_TRY(Targets(*made));
    if (made->targets.size() == 1 && cursor_.TakeOperator(".")) {
      EBB_ASSIGN(made->targets[0].member, Name());
    }
    if (cursor_.TakeOperator("=")) {
      EBB_ASSIGN(made->expr, ParseTuple(cursor_, nesting_));
      EBB_TRY(EndTag());
      return made;
    }
    if (made->targets.size() > 1) return cursor_.Expected("'='");
    if (cursor_.TakeOperator("|")) {
      EBB_ASSIGN(made->filter, ParseFilterChain(cursor_, nesting_));
    }
    EBB_TRY(EndTag());
    EBB_ASSIGN(made->body, BodyUntil("endset"));
    return made;
  }

  absl::Status Parameters(Stmt& made) {
    EBB_TRY(cursor_.TakeOnly("("));
    while (!cursor_.IsOperator(")")) {
      Parameter& parameter = made.parameters.emplace_back();
      EBB_ASSIGN(parameter.name, Name());
      if (cursor_.TakeOperator("=")) {
        EBB_ASSIGN(parameter.otherwise, ParseExpression(cursor_, nesting_));
      }
      if (!cursor_.TakeOperator(",")) break;
    }
    return cursor_.TakeOnly(")");
  }

  // The body of a macro is in none of the loops around it.
  absl::StatusOr<Block> MacroBody(std::string_view end) {
    const int32_t loops = std::exchange(loops_, 0);
    EBB_ASSIGN(Block body, BodyUntil(end));
    loops_ = loops;
    return body;
  }

  absl::StatusOr<Made> Macro() {
    Made made = New(StmtKind::kMacro);
    EBB_ASSIGN(made->name, Name());
    EBB_TRY(Parameters(*made));
    EBB_TRY(EndTag());
    EBB_ASSIGN(made->body, MacroBody("endmacro"));
    return made;
  }

  absl::StatusOr<Made> CallBlock() {
    Made made = New(StmtKind::kCallBlock);
    if (cursor_.IsOperator("(")) EBB_TRY(Parameters(*made));
    EBB_ASSIGN(made->expr, ParseExpression(cursor_, nesting_));
    if (made->expr->kind != ExprKind::kCall) return Fault(made->line, "expected a call of a macro after 'call'");
    EBB_TRY(EndTag());
    EBB_ASSIGN(made->body, MacroBody("endcall"));
    return made;
  }

  absl::StatusOr<Made> Filter() {
    Made made = New(StmtKind::kFilter);
    EBB_ASSIGN(made->filter, ParseFilterChain(cursor_, nesting_));
    EBB_TRY(EndTag());
    EBB_ASSIGN(made->body, BodyUntil("endfilter"));
    return made;
  }

  absl::StatusOr<Made> With() {
    Made made = New(StmtKind::kBlock);
    while (!cursor_.Is(TokenKind::kBlockEnd)) {
      EBB_ASSIGN(Target target, ParseTarget());
      made->targets.push_back(std::move(target));
      EBB_TRY(cursor_.TakeOnly("="));
      EBB_ASSIGN(ExprPtr value, ParseExpression(cursor_, nesting_));
      made->values.push_back(std::move(value));
      if (!cursor_.TakeOperator(",")) break;
    }
    EBB_TRY(EndTag());
    EBB_ASSIGN(made->body, BodyUntil("endwith"));
    return made;
  }

  // Says which part an assistant wrote; changes nothing.
  absl::StatusOr<Made> Generation() {
    Made made = New(StmtKind::kBlock);
    EBB_TRY(EndTag());
    EBB_ASSIGN(made->body, BodyUntil("endgeneration"));
    return made;
  }

  Cursor cursor_;
  int32_t nesting_ = 0;
  int32_t loops_ = 0;  // around the statement that is read
};

}  // namespace

absl::StatusOr<Block> Parse(std::string_view source) {
  EBB_ASSIGN(std::vector<Token> tokens, Lex(source));
  return Parser(Cursor(std::move(tokens))).Run();
}

}  // namespace ebb::jinja
