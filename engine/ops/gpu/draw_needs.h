// What a draw needs to know of a row of logits, and what a device says of it instead of the row. Plain data that
// crosses the border between compilers.

#ifndef EBB_ENGINE_OPS_GPU_DRAW_NEEDS_H_
#define EBB_ENGINE_OPS_GPU_DRAW_NEEDS_H_

#include <cstdint>

namespace ebb::gpu {

struct TokenLogit {
  float logit = 0;
  int32_t token = 0;
};

// The most that one launch yields of a row: room for a top_k of 64 behind a window of 64 penalised tokens.
inline constexpr int32_t kLargestMax = 128;

struct DrawNeeds {
  int32_t largest = 0;    // so many of the largest logits, up to kLargestMax and the vocabulary; 0: the row itself
  float temperature = 0;  // above 0: the row's mass at it, too
  double share = -1;      // 0 .. 1: and the token in which this share of the mass ends; below 0: none
};

// The weights of a row's tokens (draw_weight.h) side by side by id, and what ends where.
struct RowMass {
  double mass = 0;    // their sum
  double margin = 0;  // how far the share's end is from the nearer edge of the token's weight, as a share of the mass
  int64_t token = 0;  // anything where the margin is 0
};

// Of the mass: a device's sums and the host's, of the same row, differ by less, wherever they end. For a vocabulary of
// up to 2^20, more than a model may have.
//
// Both add up weights that are the same bits and not negative. An addition or subtraction loses at most u = 2^-53 of
// its result, which is no larger than the mass; so n of them, in any order, lose at most n * u * mass. The host makes
// 2^16 for the mass, sixteen weights and then their sums, as many to walk to a token, and 2^20 where it cuts a nucleus
// out of the row; a device makes fewer (mass.cc). Together: below 2^21 * u = 2.4e-10.
inline constexpr double kMassError = 1e-9;

}  // namespace ebb::gpu

#endif  // EBB_ENGINE_OPS_GPU_DRAW_NEEDS_H_
