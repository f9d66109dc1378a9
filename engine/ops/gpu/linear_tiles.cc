// y = x W^T for the many rows of a prompt's block and F32 or F16 weights: tiles of 64 rows x 64 outputs, 16 columns at
// a time; float32 arithmetic, no tensor cores. All other weights are linear_tiles_tensor.cc's.
//
//   shared   x tile [16 columns][64 rows], w tile [16 columns][64 outputs], as floats
//   thread   (r, o) = (i / 16, i % 16) keeps 4 rows x 4 outputs in registers: rows 4 r .., outputs 4 o ..
//
//            outputs 0..3  4..7        60..63
//   rows 0..3   thread 0    1    ...    15
//        4..7        16    17    ...    31
//        ...                           255
//
// A sum runs over the columns in order, so a row's bits depend on no other row. Block (x, y): outputs 64 x .., rows
// 64 y ..

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/weights.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kTile = 64;
constexpr int32_t kEach = 4;
constexpr int32_t kAcross = kTile / kEach;
constexpr int32_t kPad = 4;  // columns of the tile then begin in different banks

template <Element kType>
EBB_KERNEL(kThreads)
MultiplyTile(LinearArgs a) {
  EBB_SHARED float xs[kColumns][kTile + kPad];
  EBB_SHARED float ws[kColumns][kTile + kPad];
  const int32_t thread = ThreadIndex();
  const int32_t first_output = BlockX() * kTile;
  const int32_t first_row = BlockY() * kTile;
  const int32_t row = thread / kAcross * kEach;
  const int32_t output = thread % kAcross * kEach;
  float sum[kEach][kEach] = {};
  for (int32_t column = 0; column < a.w.cols; column += kColumns) {
    // Of 256 threads 64 read a row of W each, 64 others one of x.
    float read[kColumns] = {};
    const int32_t own = thread % kTile;
    if (thread < kTile) {
      if (first_output + own < a.w.rows) Weights<kType>::Read(a.w, first_output + own, column, read);
      EBB_UNROLL
      for (int i = 0; i < kColumns; ++i) ws[i][own] = read[i];
    } else if (thread < 2 * kTile) {
      if (first_row + own < a.rows) {
        const float* const x = a.x + int64_t{first_row + own} * a.w.cols + column;
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
    if (first_row + row + r >= a.rows) continue;
    EBB_UNROLL
    for (int o = 0; o < kEach; ++o) {
      const int32_t at = first_output + output + o;
      if (at >= a.w.rows) continue;
      float* const y = a.y + (first_row + row + r) * a.y_stride + at;
      const float biased = a.bias == nullptr ? sum[r][o] : sum[r][o] + a.bias[at];
      *y = a.add != 0 ? *y + biased : biased;
    }
  }
}

}  // namespace

void LaunchLinearTiles(const LinearArgs& args, Stream stream) {
  const Grid grid = {(args.w.rows + kTile - 1) / kTile, (args.rows + kTile - 1) / kTile};
  if (args.w.type == Element::kF32) return Launch(MultiplyTile<Element::kF32>, grid, kThreads, args, stream);
  if (args.w.type == Element::kF16) return Launch(MultiplyTile<Element::kF16>, grid, kThreads, args, stream);
  LaunchLinearTilesTensor(args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
