// Every policy once more, from its formula, by brute force: plain loops in double over everything that ever happened,
// indexed by token. Nothing here is shared with policies/, which works in place, step by step, in float and by slot.

#ifndef EBB_TESTS_PROPERTY_SCORER_ORACLE_H_
#define EBB_TESTS_PROPERTY_SCORER_ORACLE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "policies/spec.h"
#include "tests/support/random_attention.h"

namespace ebb {

// What an oracle knows: the lanes of one slot map and all their past.
struct Past {
  // Call after each step, before anybody leaves; the first token of `attention` is 0.
  void Remember(const RandomAttention& attention);
  // Call before a decision.
  void LookAtTheLiving(const RandomAttention& attention);

  // What a query paid to a token when it came, mean over some query heads of one KV head.
  double P(int32_t query, std::span<const HeadIndex> heads, int32_t token) const;

  const RandomAttention* attention = nullptr;
  std::vector<int32_t> live = {};                  // tokens, ascending
  std::vector<std::vector<int32_t>> present = {};  // live after each step, before anybody left
  // [query][kv * query_heads + query_head][token]; 0 for a token that was not there
  std::vector<std::vector<std::vector<double>>> rows = {};
};

// A score for each token of past.live; heads are those of one KV head that are taken together.
using Formula = std::vector<double> (*)(const Past& past, std::span<const HeadIndex> heads, const ValidSpec& spec);

// Null for a scorer whose formula is not here.
Formula FormulaOf(const std::string& scorer);

struct OracleChoice {
  std::vector<int32_t> victims = {};  // tokens, ascending
  // Tokens that score what the last victim does but for rounding: by `resolution`, relative, or as a sum over lanes
  // that is equal on paper, as 1/3 + 2/3 is to 1/2 + 1/2. Any of them may leave for another.
  std::vector<int32_t> either = {};
};

// Who leaves: `count` tokens, after reduction, modifier and scope.
OracleChoice ChooseByFormula(const Past& past, const ValidSpec& spec, int32_t count, double resolution);

}  // namespace ebb

#endif  // EBB_TESTS_PROPERTY_SCORER_ORACLE_H_
