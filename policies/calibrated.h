// A calibrated scorer of our own: cheap features, weighed as a model's own lanes teach
// (docs/explanation/decisions/0006-a-calibrated-scorer.md).
//
//   keep[j] = b + sum over features f of w[f] x[f][j],  b and w of this layer and KV head, from a Calibration
//
//   key_length    |k[j]|
//   key_likeness  cos(k[j], m), m = mean over live tokens of k / |k| (key_likeness.h)
//   value_length  |v[j]|
//   attention     sqrt(A[j] / s[j]), A = sum over the s queries that saw the token, itself included, of P[i, j]
//   age           ln(a[j]), a = tokens of the log from this one on, >= 1
//
// The weights predict sqrt(the most that one query still to come will pay), so that what is asked for once, and then in
// full, counts. Keys are unrotated and ages counted in tokens: scores depend neither on positions nor on slots.
//
// No token's attention is known before the policy observes: after a swap to it, a token that was there already goes by
// the weights of the other features alone, which predict the same quantity, until the next query has seen it. With
// `attention` off these are the weights for all, and nothing is asked of attention.
//
// State: 12 bytes a slot and 4 a lane; with attention off, 8 a slot.

#ifndef EBB_POLICIES_CALIBRATED_H_
#define EBB_POLICIES_CALIBRATED_H_

#include <cstdint>
#include <memory>

#include "policies/calibration.h"
#include "policies/registry_row.h"

namespace ebb {

// x of one token. `paid` is A over the `queries` that saw it, and counts as 0 where none did. REQUIRES: age >= 1.
Features TokenFeatures(double key_length, double key_likeness, double value_length, double paid, int32_t queries,
                       int32_t age);

struct CalibratedOptions {
  bool attention = true;
};

// REQUIRES: calibration is not null, and has the lanes of whatever is scored.
std::unique_ptr<const Scorer> MakeCalibrated(std::shared_ptr<const Calibration> calibration,
                                             const CalibratedOptions& options);

extern const ScorerRow kCalibratedRow;

}  // namespace ebb

#endif  // EBB_POLICIES_CALIBRATED_H_
