// y = x W^T for the many rows of a prompt's block, or of one expert, and F32 or F16 weights: tiles of 64 rows x 64
// outputs, 16 columns at a time; float32 arithmetic, no tensor cores. All other weights are linear_tiles_tensor.cc's.
//
//   shared   x tile [16 columns][64 rows], w tile [16 columns][64 outputs], as floats
//   thread   (r, o) = (i / 16, i % 16) keeps 4 rows x 4 outputs in registers: rows 4 r .., outputs 4 o ..
//
//            outputs 0..3  4..7        60..63
//   rows 0..3   thread 0    1    ...    15
//        4..7        16    17    ...    31
//        ...                           255
//
// A sum runs over the columns in order, so a row's bits depend on no other row. Block (x, y): outputs 64 x .., rows of
// tile y (linear_tile_share.h).

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/linear_tile_share.h"
#include "engine/ops/gpu/weights.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kTile = kTileRows;
constexpr int32_t kEach = 4;
constexpr int32_t kAcross = kTile / kEach;
constexpr int32_t kPad = 4;  // columns of the tile then begin in different banks

template <Element kType, typename Args>
EBB_KERNEL(kThreads)
MultiplyTile(Args args) {
  EBB_SHARED float xs[kColumns][kTile + kPad];
  EBB_SHARED float ws[kColumns][kTile + kPad];
  const TileShare share = ShareOf(args);
  if (share.is_empty) return;
  const LinearArgs& a = share.a;
  const int32_t thread = ThreadIndex();
  const int32_t first_output = BlockX() * kTile;
  const int32_t first_row = share.first_row;
  const int32_t row = thread / kAcross * kEach;
  const int32_t output = thread % kAcross * kEach;
  const int32_t own = thread % kTile;
  const int32_t x_row = share.RowOfX(first_row + own);
  float sum[kEach][kEach] = {};
  for (int32_t column = 0; column < a.w.cols; column += kColumns) {
    // Of 256 threads 64 read a row of W each, 64 others one of x.
    float read[kColumns] = {};
    if (thread < kTile) {
      if (first_output + own < share.outputs) {
        Weights<kType>::Read(a.w, share.first_of_w + first_output + own, column, read);
      }
      EBB_UNROLL
      for (int i = 0; i < kColumns; ++i) ws[i][own] = read[i];
    } else if (thread < 2 * kTile) {
      if (first_row + own < share.end_row) {
        const float* const x = a.x + int64_t{x_row} * a.w.cols + column;
        KvF32::ReadEight(x, read);
        KvF32::ReadEight(x + 8, read + 8);
      }
      EBB_UNROLL
      for (int i = 0; i < kColumns; ++i) xs[i][own] = read[i];
    }
    Barrier();
    for (int32_t i = 0; i < kColumns; ++i) {
      EBB_UNROLL
      for (int r = 0; r < kEach; ++r) {
        EBB_UNROLL
        for (int o = 0; o < kEach; ++o) sum[r][o] = MultiplyAdd(xs[i][row + r], ws[i][output + o], sum[r][o]);
      }
    }
    Barrier();
  }
  EBB_UNROLL
  for (int r = 0; r < kEach; ++r) {
    if (first_row + row + r >= share.end_row) continue;
    EBB_UNROLL
    for (int o = 0; o < kEach; ++o) {
      const int32_t at = first_output + output + o;
      if (at >= share.outputs) continue;
      float* const y = a.y + (first_row + row + r) * a.y_stride + at;
      const float biased = a.bias == nullptr ? sum[r][o] : sum[r][o] + a.bias[at];
      *y = a.add != 0 ? *y + biased : biased;
    }
  }
}

// Whether there are weights of a type that it multiplies.
template <typename Args>
bool LaunchTiles(const Args& args, Stream stream) {
  const Grid grid = TileGrid(args, kTile);
  const Element type = TypeOf(args);
  if (type == Element::kF32) Launch(MultiplyTile<Element::kF32, Args>, grid, kThreads, args, stream);
  if (type == Element::kF16) Launch(MultiplyTile<Element::kF16, Args>, grid, kThreads, args, stream);
  return type == Element::kF32 || type == Element::kF16;
}

}  // namespace

void LaunchLinearTiles(const LinearArgs& args, Stream stream) {
  if (!LaunchTiles(args, stream)) LaunchLinearTilesTensor(args, stream);
}

void LaunchLinearExperts(const LinearExpertsArgs& args, Stream stream) {
  if (!LaunchTiles(args, stream)) LaunchLinearExpertsTensor(args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
