// How the products of a decode step are shared between blocks, and how much room their sums take, for whoever launches
// them and for whoever sees to that room.

#ifndef EBB_ENGINE_OPS_GPU_LINEAR_SPLITS_H_
#define EBB_ENGINE_OPS_GPU_LINEAR_SPLITS_H_

#include <cstdint>

namespace ebb::gpu {

// A block of linear_rows makes so many outputs of so many rows. Where that makes few blocks, columns are split, by the
// shape of all W of the launch alone: that keeps a row's bits its own.
inline constexpr int32_t kTogetherMax = 3;  // products of one launch
inline constexpr int32_t kLinearOutputs = 256;
inline constexpr int32_t kLinearRows = 32;
inline constexpr int32_t kLinearStage = 128;  // columns that a split has whole multiples of
constexpr int32_t LinearTiles(int32_t outputs) { return (outputs + kLinearOutputs - 1) / kLinearOutputs; }
// Columns of a split; the last has what is left.
constexpr int32_t LinearColumns(int32_t outputs, int32_t cols) {
  constexpr int32_t kBlocks = 132;  // so many do not wait for each other on a large device
  constexpr int32_t kStagesMin = 2;
  const int32_t stages = (cols + kLinearStage - 1) / kLinearStage;
  const int32_t tiles = LinearTiles(outputs);
  const int32_t splits = tiles < kBlocks ? kBlocks / tiles : 1;
  const int32_t each = (stages + splits - 1) / splits;
  return (each < kStagesMin ? kStagesMin : each) * kLinearStage;
}
constexpr int32_t LinearSplits(int32_t outputs, int32_t cols) {
  const int32_t columns = LinearColumns(outputs, cols);
  return (cols + columns - 1) / columns;
}
// With weights of BF16 a block makes other tiles (linear_rows_wide.cc), and where there are splits, there are at most
// so many blocks for the same rows, which are as many as the block has room for.
inline constexpr int32_t kWideOutputs = 128;
inline constexpr int32_t kWideBlocks = 2 * 132;
constexpr int32_t WideRows(int32_t rows) {
  return rows <= 8 ? 8 : rows <= 16 ? 16 : (rows + kLinearRows - 1) / kLinearRows * kLinearRows;
}
// Enough for weights of either kind.
constexpr int64_t LinearPartials(int32_t outputs, int32_t cols, int32_t rows) {
  const int32_t splits = LinearSplits(outputs, cols);
  const int64_t narrow = splits == 1 ? 0 : int64_t{LinearTiles(outputs)} * splits * kLinearOutputs * rows;
  // Of several products each fills tiles of its own: there may be fewer than their outputs together make.
  const int32_t tiles = LinearTiles(outputs) * (kLinearOutputs / kWideOutputs) - 2 * kTogetherMax;
  const int64_t wide = 2 * tiles > kWideBlocks ? 0 : int64_t{kWideBlocks} * kWideOutputs * WideRows(rows);
  return narrow > wide ? narrow : wide;
}
constexpr int64_t LinearMeetings(int32_t outputs, int32_t rows) {
  return int64_t{LinearTiles(outputs)} * (kLinearOutputs / kWideOutputs) * ((rows + kLinearRows - 1) / kLinearRows);
}

}  // namespace ebb::gpu

#endif  // EBB_ENGINE_OPS_GPU_LINEAR_SPLITS_H_
