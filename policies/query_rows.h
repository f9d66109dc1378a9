// Queries that a scorer keeps in its lane state: rows of a token and its query, all empty in a new session.

#ifndef EBB_POLICIES_QUERY_ROWS_H_
#define EBB_POLICIES_QUERY_ROWS_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

namespace ebb {

// A view of float or const float.
template <typename Float>
class QueryRows {
 public:
  static int64_t Floats(int32_t rows, int32_t head_dim) { return int64_t{rows} * (head_dim + 1); }

  // REQUIRES: Floats(rows, head_dim) of them.
  QueryRows(std::span<Float> floats, int32_t rows)
      : token_(floats.first(static_cast<size_t>(rows))), query_(floats.subspan(static_cast<size_t>(rows))) {}

  // -1 where the row is empty.
  int32_t Token(int32_t row) const { return std::bit_cast<int32_t>(float{token_[row]}) - 1; }

  std::span<Float> Query(int32_t row) const {
    const size_t head_dim = query_.size() / token_.size();
    return query_.subspan(row * head_dim, head_dim);
  }

  // Empties the rows of tokens from `token` on. A step whose first token is older than some that it finds here comes
  // after an edit of the log: they are another text's, or have other indices now.
  void ForgetFrom(int32_t token) const {
    for (size_t row = 0; row < token_.size(); ++row) {
      if (Token(static_cast<int32_t>(row)) >= token) token_[row] = 0;
    }
  }

  void Put(int32_t row, int32_t token, const float* query) const {
    token_[row] = std::bit_cast<float>(token + 1);
    std::copy_n(query, Query(row).size(), Query(row).begin());
  }

 private:
  std::span<Float> token_;  // [rows] bits of token + 1, so that zero is empty
  std::span<Float> query_;  // [rows, head_dim]
};

// ceil(tokens * ratio), where 1e-9 is what rounding may add to a product that is whole on paper.
inline int32_t CeilShare(int32_t tokens, double ratio) {
  return static_cast<int32_t>(std::ceil(tokens * ratio - 1e-9));
}

}  // namespace ebb

#endif  // EBB_POLICIES_QUERY_ROWS_H_
