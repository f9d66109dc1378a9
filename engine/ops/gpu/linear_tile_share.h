// What a block of linear_tiles makes: some rows of y, and some outputs of one matrix, all W or an expert's part of it.
//
//   one matrix   tile y is rows 64 y .. of x, which are those of y
//   of experts   tile y says which sorted choices, which are the rows of y, and which expert's; their rows of x may lie
//                anywhere. How many tiles there are follows from the number of rows alone: some are empty
//
// Both are the same code, in which the compiler knows of the first what it need not ask.

#ifndef EBB_ENGINE_OPS_GPU_LINEAR_TILE_SHARE_H_
#define EBB_ENGINE_OPS_GPU_LINEAR_TILE_SHARE_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"

namespace ebb::gpu::EBB_GPU_TARGET {

inline constexpr int32_t kTileRows = kExpertTileRows;

struct TileShare {
  const LinearArgs& a;
  bool is_empty = false;
  int32_t first_of_w = 0;  // W's row of output 0
  int32_t outputs = 0;     // of the matrix
  int32_t first_row = 0;   // of y
  int32_t end_row = 0;
  const int32_t* row_of = nullptr;  // of x for each of y; null: the same

  // Rows past the last are anything.
  EBB_DEVICE int32_t RowOfX(int32_t row) const { return row_of == nullptr || row >= end_row ? row : row_of[row]; }
};

EBB_DEVICE TileShare ShareOf(const LinearArgs& a) {
  return {.a = a, .outputs = a.w.rows, .first_row = BlockY() * kTileRows, .end_row = a.rows};
}
EBB_DEVICE TileShare ShareOf(const LinearExpertsArgs& a) {
  const ExpertTile tile = a.tiles[BlockY()];
  const int32_t outputs = a.linear.w.rows / a.experts;
  return {.a = a.linear,
          .is_empty = tile.rows == 0,
          .first_of_w = tile.expert * outputs,
          .outputs = outputs,
          .first_row = tile.first,
          .end_row = tile.first + tile.rows,
          .row_of = a.row_of};
}

inline Element TypeOf(const LinearArgs& a) { return a.w.type; }
inline Element TypeOf(const LinearExpertsArgs& a) { return a.linear.w.type; }

// Of blocks that make so many outputs each.
inline Grid TileGrid(const LinearArgs& a, int32_t outputs) {
  return {(a.w.rows + outputs - 1) / outputs, (a.rows + kTileRows - 1) / kTileRows};
}
inline Grid TileGrid(const LinearExpertsArgs& a, int32_t outputs) {
  return {(a.linear.w.rows / a.experts + outputs - 1) / outputs, ExpertTiles(a.linear.rows, a.experts)};
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_LINEAR_TILE_SHARE_H_
