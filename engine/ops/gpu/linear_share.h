// What a block of linear_rows makes: products that have one x in one launch are tiles of outputs, one after another,
// and where these are few, each is split by columns (linear_splits.h). Block (splits i + s, y): tile i, split s.

#ifndef EBB_ENGINE_OPS_GPU_LINEAR_SHARE_H_
#define EBB_ENGINE_OPS_GPU_LINEAR_SHARE_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"

namespace ebb::gpu::EBB_GPU_TARGET {

struct ShareArgs {
  LinearsArgs linears = {};
  int32_t first_tile[kTogetherMax] = {};  // of outputs, of each product; INT32_MAX where there is none
  int32_t tiles = 0;                      // of all
  int32_t splits = 0;
  int32_t columns = 0;  // of a split
};

// Tiles of so many outputs; splits and columns are the caller's.
inline ShareArgs ShareOf(const LinearsArgs& linears, int32_t outputs) {
  ShareArgs share = {.linears = linears};
  for (int32_t i = 0; i < kTogetherMax; ++i) {
    share.first_tile[i] = i < linears.count ? share.tiles : INT32_MAX;
    if (i < linears.count) share.tiles += (linears.of[i].w.rows + outputs - 1) / outputs;
  }
  return share;
}

struct OwnShare {
  int32_t tile, part;  // of all; split
  int32_t product;
  const LinearArgs& a;
  int32_t first_output;
  int32_t begin, end;  // columns

  EBB_DEVICE OwnShare(const ShareArgs& share, int32_t outputs)
      : tile(BlockX() / share.splits),
        part(BlockX() % share.splits),
        product(ProductOf(share, tile)),
        a(share.linears.of[product]),
        first_output((tile - share.first_tile[product]) * outputs),
        begin(part * share.columns),
        end(begin + share.columns < a.w.cols ? begin + share.columns : a.w.cols) {}

 private:
  static EBB_DEVICE int32_t ProductOf(const ShareArgs& share, int32_t tile) {
    int32_t product = 0;
    EBB_UNROLL
    for (int32_t i = 1; i < kTogetherMax; ++i) product += tile >= share.first_tile[i] ? 1 : 0;
    return product;
  }
};

// Whether this block is done last of the splits that share outputs and rows, all of whose threads call it when they
// have written their sums; the last one then finds those of all, and leaves the count at 0. `is_last` is shared.
EBB_DEVICE bool ComesLast(int32_t* arrived, int32_t splits, int32_t& is_last) {
  FenceDevice();
  Barrier();
  if (ThreadIndex() == 0) is_last = AddDevice(arrived, 1) == splits - 1 ? 1 : 0;
  Barrier();
  if (is_last == 0) return false;
  FenceDevice();
  if (ThreadIndex() == 0) *arrived = 0;  // for the next launch
  return true;
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_LINEAR_SHARE_H_
