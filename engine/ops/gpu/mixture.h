// What kernels of a mixture of experts are told: who goes where, and how what experts made comes together (kernels.h
// has the products between).

#ifndef EBB_ENGINE_OPS_GPU_MIXTURE_H_
#define EBB_ENGINE_OPS_GPU_MIXTURE_H_

#include <cstdint>

#include "engine/ops/gpu/anywhere.h"

namespace ebb::gpu {

// Of a mixture: experts of a layer and to a row, at most. Rows of one expert that one block of threads multiplies, and
// how many such tiles there are at most, however `choices` fall on experts.
inline constexpr int32_t kExpertsMax = 1024;
inline constexpr int32_t kExpertsUsedMax = 32;
inline constexpr int32_t kExpertTileRows = 64;
EBB_ANYWHERE constexpr int32_t ExpertTiles(int32_t choices, int32_t experts) {
  const int32_t chosen = choices < experts ? choices : experts;  // each may have one more than its whole tiles
  return (choices + (kExpertTileRows - 1) * chosen) / kExpertTileRows;
}

// Sorted choices first .. first + rows - 1, all of one expert. None: 0 rows.
struct ExpertTile {
  int32_t expert = 0;
  int32_t first = 0;
  int32_t rows = 0;
};

// The experts of each row: the `used` largest of its scores, of equal ones the first, NaN larger than all; and the
// softmax over these. A row's choices lie in ascending order of expert. All rows' together are sorted by expert, those
// of one expert by row; where each went is its place:
//
//   expert [T][used]    row 0: 1 4        row 1: 0 4        row 2: 0 1
//   place  [T][used]           2 4               0 5               1 3
//   row_of [T * used]   1 2   0 2   0 1
//   tiles               of 0  of 1  of 4      (first 0, 2, 4; 2 rows each), then such as have none
struct RouteArgs {
  const float* scores = nullptr;  // [T][experts]
  int32_t rows = 0;
  int32_t experts = 0;          // 1 .. kExpertsMax
  int32_t used = 0;             // 1 .. kExpertsUsedMax, at most experts
  int32_t* expert = nullptr;    // [T][used]
  float* weight = nullptr;      // [T][used]
  int32_t* place = nullptr;     // [T][used]
  int32_t* row_of = nullptr;    // [T * used]
  ExpertTile* tiles = nullptr;  // [ExpertTiles(T * used, experts)]
};

// x [T][n] += the sum over a row's choices, in their order, of weight * parts[place]. n is a multiple of 4; x and parts
// are 16-byte aligned.
struct CombineArgs {
  const float* parts = nullptr;    // [T * used][n], sorted
  const int32_t* place = nullptr;  // [T][used]
  const float* weight = nullptr;   // [T][used]
  float* x = nullptr;
  int32_t n = 0;
  int32_t rows = 0;
  int32_t used = 0;
};

}  // namespace ebb::gpu

#endif  // EBB_ENGINE_OPS_GPU_MIXTURE_H_
