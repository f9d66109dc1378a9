// Expected attention (Devoto et al. 2025, arXiv:2510.00636).
//
// The queries still to come are taken for a Gaussian with the mean m and covariance S, of each query head, that the
// session's unrotated queries had so far; R is the mean of the rotations for the next `future` positions. With k the
// rotated key of slot j, the logarithm of the Gaussian's moment-generating function is
//
//   x[h, j] = (R m).k / sqrt(d) + k' (R S R') k / (2 d)
//   keep[j] = (mean_h softmax_j x[h, j] + epsilon) * |v[j]|        values = ignore leaves out the factor |v|
//
// The softmax runs over the live tokens. Reads queries, keys and values and no attention; chosen for what the session
// asks on the average, and for none of its questions in particular. A session's first 4 queries are outliers and left
// out of m and S; before the fifth both are 0, and the length of the values decides.
//
// Costs, for n live tokens and G query heads a KV head: with covariance = full a decision takes O(n G d^2 / 2) and
// 4 (1 + d + d (d + 1) / 2) bytes a query head (33.5 KB at d = 128), and a query O(d^2 / 2) when it is observed;
// diagonal and none are linear in d, in time and in memory. So decide once, or seldom. Of working memory, each thread
// that scores keeps n G float64.
//
// Differs: statistics of all queries, those of answers too; the reference takes the prompt's. The softmax runs over the
// protected tokens too; the reference leaves out the first 4. The first of the next positions is one past the newest
// live one, which holds for original and for compacted positions.
//
// Invariant: with S = 0 it is the attention that the one query R m would pay, times |v|.

#ifndef EBB_POLICIES_EXPECTED_ATTENTION_H_
#define EBB_POLICIES_EXPECTED_ATTENTION_H_

#include <cstdint>
#include <memory>

#include "policies/registry_row.h"

namespace ebb {

struct ExpectedAttentionOptions {
  enum class Covariance { kNone, kDiagonal, kFull };
  enum class Values { kIgnore, kWeigh };

  int32_t future = 512;  // positions to come, >= 1
  double epsilon = 0;    // >= 0
  Covariance covariance = Covariance::kFull;
  Values values = Values::kWeigh;
};

std::unique_ptr<const Scorer> MakeExpectedAttention(const ExpectedAttentionOptions& options);

extern const ScorerRow kExpectedAttentionRow;

}  // namespace ebb

#endif  // EBB_POLICIES_EXPECTED_ATTENTION_H_
