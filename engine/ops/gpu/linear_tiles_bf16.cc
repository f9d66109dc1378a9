// y = x W^T for the many rows of a prompt's block and BF16 weights: tensor cores, tiles of 128 outputs x 64 rows, 32
// columns at a time. x is rounded to BF16, as the CPU's fast arithmetic does with such weights.
//
//   shared   W tile [128 outputs][32 columns], x tile [64 rows][32 columns], both as pairs of BF16, a row in 16 words
//   and
//            4 more, so that the eight rows which a team reads at once begin in different banks
//   team     (m, n) = (i / 2, i % 2) keeps 32 outputs x 32 rows, two tiles of 16 outputs by four of 8 rows
//
//            rows 0..31   32..63
//   outputs 0..31   team 0    1
//          32..63        2    3
//          ...           6    7
//
// The next columns are read into registers while these are multiplied. A sum runs over the columns in order, so a row's
// bits depend on no other row. Block (x, y): outputs 128 x .., rows 64 y ..

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"
#include "engine/ops/gpu/tensor.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kOutputs = 128;
constexpr int32_t kRows = 64;
constexpr int32_t kColumnsAtOnce = 32;
constexpr int32_t kWords = kColumnsAtOnce / 2;
constexpr int32_t kStride = kWords + 4;
static_assert(kColumnsAtOnce == kWeightBlock);

// What a thread reads of the next columns: two vectors of W and one of x, eight columns each.
struct Ahead {
  Vector16 w[2];
  Vector16 x;
};

EBB_DEVICE uint32_t Pair(float low, float high) { return ToBf16(low) | static_cast<uint32_t>(ToBf16(high)) << 16; }

EBB_DEVICE Ahead ReadAhead(const LinearArgs& a, int32_t first_output, int32_t first_row, int32_t column) {
  Ahead ahead = {};
  const int32_t at = column + ThreadIndex() % 4 * 8;
  const int32_t row = ThreadIndex() / 4;  // 64 of W, twice, and of x
  EBB_UNROLL
  for (int32_t i = 0; i < 2; ++i) {
    const int32_t output = first_output + kRows * i + row;
    if (output >= a.w.rows) continue;
    ahead.w[i] =
        *reinterpret_cast<const Vector16*>(static_cast<const uint16_t*>(a.w.values) + int64_t{output} * a.w.cols + at);
  }
  if (first_row + row < a.rows) {
    float x[8];
    KvF32::ReadEight(a.x + int64_t{first_row + row} * a.w.cols + at, x);
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) ahead.x.word[i] = Pair(x[2 * i], x[2 * i + 1]);
  }
  return ahead;
}

EBB_KERNEL(kThreads) MultiplyTileBf16(LinearArgs a) {
  EBB_SHARED uint32_t ws[kOutputs][kStride];
  EBB_SHARED uint32_t xs[kRows][kStride];
  const int32_t thread = ThreadIndex();
  const int32_t team = thread / kTeam;
  const int32_t g = thread % kTeam / 4;
  const int32_t t = thread % 4;
  const int32_t first_output = BlockX() * kOutputs;
  const int32_t first_row = BlockY() * kRows;
  const int32_t output = team / 2 * 32;
  const int32_t row = team % 2 * 32;
  float sum[2][4][4] = {};
  Ahead ahead = ReadAhead(a, first_output, first_row, 0);
  for (int32_t column = 0; column < a.w.cols; column += kColumnsAtOnce) {
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      ws[thread / 4][thread % 4 * 4 + i] = ahead.w[0].word[i];
      ws[kRows + thread / 4][thread % 4 * 4 + i] = ahead.w[1].word[i];
      xs[thread / 4][thread % 4 * 4 + i] = ahead.x.word[i];
    }
    Barrier();
    if (column + kColumnsAtOnce < a.w.cols) ahead = ReadAhead(a, first_output, first_row, column + kColumnsAtOnce);
    EBB_UNROLL
    for (int32_t half = 0; half < 2; ++half) {
      const int32_t word = 8 * half + t;
      uint32_t w[2][4];
      EBB_UNROLL
      for (int32_t m = 0; m < 2; ++m) {
        const int32_t at = output + 16 * m + g;
        w[m][0] = ws[at][word];
        w[m][1] = ws[at + 8][word];
        w[m][2] = ws[at][word + 4];
        w[m][3] = ws[at + 8][word + 4];
      }
      EBB_UNROLL
      for (int32_t n = 0; n < 4; ++n) {
        const uint32_t x[2] = {xs[row + 8 * n + g][word], xs[row + 8 * n + g][word + 4]};
        EBB_UNROLL
        for (int32_t m = 0; m < 2; ++m) MultiplySmallTile(w[m], x, sum[m][n]);
      }
    }
    Barrier();  // both tiles are free again
  }
  EBB_UNROLL
  for (int32_t m = 0; m < 2; ++m) {
    EBB_UNROLL
    for (int32_t n = 0; n < 4; ++n) {
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        const int32_t to_output = first_output + output + 16 * m + 8 * (i / 2) + g;
        const int32_t to_row = first_row + row + 8 * n + 2 * t + i % 2;
        if (to_output >= a.w.rows || to_row >= a.rows) continue;
        float* const y = a.y + to_row * a.y_stride + to_output;
        const float biased = a.bias == nullptr ? sum[m][n][i] : sum[m][n][i] + a.bias[to_output];
        *y = a.add != 0 ? *y + biased : biased;
      }
    }
  }
}

}  // namespace

void LaunchLinearTilesBf16(const LinearArgs& args, Stream stream) {
  const Grid grid = {(args.w.rows + kOutputs - 1) / kOutputs, (args.rows + kRows - 1) / kRows};
  Launch(MultiplyTileBf16, grid, kThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
