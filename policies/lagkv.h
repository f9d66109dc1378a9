// LagKV (Liang et al. 2025, arXiv:2504.04704).
//
// The tokens after the sinks fall into partitions of `lag`, by their index in the log. A partition is scored once, when
// the next one, its reference, is complete. Per channel c, with lo and hi the least and largest of the reference:
//
//   z[j, c] = (x[j, c] - lo[c]) / max(hi[c] - lo[c], 1e-6), within +-1e4
//   worth[j] = softmax_j std_c(z[j, c]) over rotated keys + value_ratio * the same over values
//   keep[j] = place of worth[j] in its partition, 1 / lag .. 1; of equals the newer is ahead
//
// Who has no score yet, the last whole partition and what follows it, stays before all who have, the newest first. Keys
// are rotated for their tokens' indices, whatever positions the cache counts. No queries and no attention: safe over
// several turns. A partition costs O(lag * head_dim) once; 4 bytes a slot. Each thread that scores keeps the angles of
// 256 positions, the lane as floats and 2 * lag rows of head_dim floats to work in.
//
// Differs: the paper keeps a fixed share of each partition, so the cache grows with the text. Here places within
// partitions compete for one budget (KVPress' reading), so that all scored partitions keep equal shares of it and the
// cache is bounded. 128 a partition is KVPress' choice; the authors' code has 1024, and a budget below sinks + 2 * lag
// leaves nothing to score: it keeps the newest. Where tokens of a partition or its reference have left before it is
// scored, those that live are taken.

#ifndef EBB_POLICIES_LAGKV_H_
#define EBB_POLICIES_LAGKV_H_

#include <cstdint>
#include <memory>
#include <span>

#include "policies/registry_row.h"

namespace ebb {

// Unbiased standard deviation over channels of each row of `rows` [count, dim], each channel taken relative to its
// range in `reference` [., dim]; writes [count]. 0 where dim is 1, the reference is empty, or it is no number.
void LagDeviations(std::span<const float> rows, std::span<const float> reference, int32_t dim,
                   std::span<double> deviations);

// The softmax of these over the rows: what keys, or values, say of each token's worth. Sums to 1.
void LagScores(std::span<const float> rows, std::span<const float> reference, int32_t dim, std::span<double> scores);

struct LagkvOptions {
  int32_t lag = 128;       // tokens of a partition, >= 1
  double value_ratio = 1;  // weight of the values' score beside the keys'
};

std::unique_ptr<const Scorer> MakeLagkv(const LagkvOptions& options);

extern const ScorerRow kLagkvRow;

}  // namespace ebb

#endif  // EBB_POLICIES_LAGKV_H_
