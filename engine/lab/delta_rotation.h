// Lazy Pruning's rotation of stored keys: when D tokens leave behind the sinks, every key behind them is rotated by the
// same angle, k' = R(-D) k, and stored again, rounded again. Ebb keeps keys unrotated and rotates while it reads, by
// the position of the moment, so that nothing accumulates. What the difference comes to.

#ifndef EBB_ENGINE_LAB_DELTA_ROTATION_H_
#define EBB_ENGINE_LAB_DELTA_ROTATION_H_

#include <cstdint>

#include "policies/spec.h"

namespace ebb::lab {

struct DeltaRotation {
  int32_t head_dim = 128;        // even
  double theta = 10000;          // of RoPE
  int32_t recent = 2044;         // tokens behind the sinks: a key is rotated recent / drop times before it leaves
  int32_t drop = 32;             // D, tokens dropped at one pruning, 1 .. recent
  KvType stored = KvType::kF32;  // what a key is rounded to each time
  int32_t keys = 256;            // random ones, of which the mean is taken
  int64_t seed = 0;
};

struct RotationError {
  int64_t rotations = 0;  // of a key
  double key = 0;         // |k' - R(p) k| / |k| at the end, the root of its mean square over the keys
  double once = 0;        // the same of a key that was rotated and rounded once, to where it is at first
};

// Keys are drawn uniformly in [-1, 1); angles are computed in double, cosines and products in float, as a kernel would.
RotationError MeasureDeltaRotation(const DeltaRotation& options);

// Multiplications of one pruning that rotates n keys of each KV head, and of one decode step that rotates the query of
// each query head once more, for a second segment whose keys stay as they are. 2 head_dim each.
int64_t KeyRotationProducts(int64_t n, int32_t kv_heads, int32_t head_dim);
int64_t QuerySegmentProducts(int32_t query_heads, int32_t head_dim);

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_DELTA_ROTATION_H_
