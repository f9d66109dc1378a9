// y = x W^T for the many rows of a prompt's block, or of one expert, where weights are exact in BF16 (codes.h): tensor
// cores, tiles of 128 outputs x 64 rows, 32 columns at a time. x is rounded to BF16, as the CPU's fast arithmetic does
// with BF16 weights (with quantised ones it rounds to bytes).
//
//   shared   W tile [128 outputs][32 columns], x tile [64 rows][32 columns], both as pairs of BF16, a row in 16 words,
//            and 4 more, so that the eight rows which a team reads at once begin in different banks
//            of quantised types, what the 32 columns of each output share; of Q4_K and Q5_K, each row's sum of x over
//            them
//   team     (m, n) = (i / 2, i % 2) keeps 32 outputs x 32 rows, two tiles of 16 outputs by four of 8 rows
//
//            rows 0..31   32..63
//   outputs 0..31   team 0    1
//          32..63        2    3
//          ...           6    7
//
// The next columns are read into registers while these are multiplied. A sum runs over the columns in order, so a row's
// bits depend on no other row. A scale is that of 32 columns, of Q6_K of 16, multiplied into their sum; a minimum meets
// the sum of x. Block (x, y): outputs 128 x .., rows of tile y (linear_tile_share.h).

#include <cstdint>

#include "engine/ops/gpu/codes.h"
#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/linear_tile_share.h"
#include "engine/ops/gpu/numbers.h"
#include "engine/ops/gpu/reduce.h"
#include "engine/ops/gpu/tensor.h"
#include "engine/ops/gpu/weights.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kOutputs = 128;
constexpr int32_t kRows = kTileRows;
constexpr int32_t kWords = kChunk / 2;
constexpr int32_t kStride = kWords + 4;

// What a thread reads of the next columns: those of two outputs and of one row, eight each.
struct Ahead {
  Vector16 w[2];
  Vector16 x;
  KScales scales[2];  // of its outputs
  float sum_of_x;     // of its row, all columns
};

// `x_row`: of x, its row.
template <typename From>
EBB_DEVICE Ahead ReadAhead(const TileShare& share, int32_t first_output, int32_t x_row, int32_t column) {
  const LinearArgs& a = share.a;
  Ahead ahead = {};
  const int32_t t = ThreadIndex() % 4;
  const int32_t row = ThreadIndex() / 4;  // 64 of W, twice, and of x
  EBB_UNROLL
  for (int32_t i = 0; i < 2; ++i) {
    const int32_t output = first_output + kRows * i + row;
    if (output >= share.outputs) continue;
    ahead.w[i] = From::Read(a.w, share.first_of_w + output, column, t);
    if constexpr (From::kScaled) {
      if (t == 0) ahead.scales[i] = From::Scales(a.w, share.first_of_w + output, column);
    }
  }
  if (share.first_row + row < share.end_row) {
    float x[8];
    KvF32::ReadEight(a.x + int64_t{x_row} * a.w.cols + column + 8 * t, x);
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) ahead.x.word[i] = PackBf16(x[2 * i], x[2 * i + 1]);
  }
  if constexpr (From::kHasMinimum) {
    float sum = 0;
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      sum += FloatOf(ahead.x.word[i] << 16) + FloatOf(ahead.x.word[i] & 0xFFFF0000U);
    }
    ahead.sum_of_x = ReduceTeam(sum, Plus(), 4);
  }
  return ahead;
}

template <typename From, typename Args>
EBB_KERNEL(kThreads)
MultiplyTileOf(Args args) {
  EBB_SHARED uint32_t ws[kOutputs][kStride];
  EBB_SHARED uint32_t xs[kRows][kStride];
  EBB_SHARED KScales scales[From::kScaled ? kOutputs : 1];
  EBB_SHARED float sums_of_x[From::kHasMinimum ? kRows : 1];
  const TileShare share = ShareOf(args);
  if (share.is_empty) return;
  const LinearArgs& a = share.a;
  const int32_t thread = ThreadIndex();
  const int32_t team = thread / kTeam;
  const int32_t g = thread % kTeam / 4;
  const int32_t t = thread % 4;
  const int32_t first_output = BlockX() * kOutputs;
  const int32_t first_row = share.first_row;
  const int32_t output = team / 2 * 32;
  const int32_t row = team % 2 * 32;
  float sum[2][4][4] = {};
  const int32_t x_row = share.RowOfX(first_row + thread / 4);
  Ahead ahead = ReadAhead<From>(share, first_output, x_row, 0);
  for (int32_t column = 0; column < a.w.cols; column += kChunk) {
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      // Where thread t's columns are: 8 t .., or, by halves, 4 t .. and 16 + 4 t ..
      const int32_t word = From::kByHalves ? i / 2 * 8 + 2 * t + i % 2 : 4 * t + i;
      ws[thread / 4][word] = ahead.w[0].word[i];
      ws[kRows + thread / 4][word] = ahead.w[1].word[i];
      xs[thread / 4][4 * t + i] = ahead.x.word[i];
    }
    if (From::kScaled && t == 0) {
      scales[thread / 4] = ahead.scales[0];
      scales[kRows + thread / 4] = ahead.scales[1];
    }
    if (From::kHasMinimum && t == 0) sums_of_x[thread / 4] = ahead.sum_of_x;
    Barrier();
    if (column + kChunk < a.w.cols) ahead = ReadAhead<From>(share, first_output, x_row, column + kChunk);
    SyncTeam();
    float of_scale[2][4][4] = {};  // products that share a scale
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
        for (int32_t m = 0; m < 2; ++m) MultiplySmallTile(w[m], x, From::kScaled ? of_scale[m][n] : sum[m][n]);
      }
      if constexpr (From::kScaled) {
        if (!From::kByHalves && half == 0) continue;
        EBB_UNROLL
        for (int32_t m = 0; m < 2; ++m) {
          const KScales of_output[2] = {scales[output + 16 * m + g], scales[output + 16 * m + 8 + g]};
          EBB_UNROLL
          for (int32_t n = 0; n < 4; ++n) {
            EBB_UNROLL
            for (int32_t i = 0; i < 4; ++i) {
              sum[m][n][i] = MultiplyAdd(of_scale[m][n][i], of_output[i / 2].of_half[half], sum[m][n][i]);
              of_scale[m][n][i] = 0;
              if constexpr (From::kHasMinimum) {
                sum[m][n][i] =
                    MultiplyAdd(-of_output[i / 2].minimum, sums_of_x[row + 8 * n + 2 * t + i % 2], sum[m][n][i]);
              }
            }
          }
        }
      }
    }
    Barrier();  // both tiles are free again
  }
  // Of number i of this thread's tile (m, n).
  const auto output_of = [&](int32_t m, int32_t i) { return first_output + output + 16 * m + 8 * (i / 2) + g; };
  const auto row_of = [&](int32_t n, int32_t i) { return first_row + row + 8 * n + 2 * t + i % 2; };
  const auto put = [&](int32_t to_output, int32_t to_row, float made) {
    float* const y = a.y + to_row * a.y_stride + to_output;
    const float biased = a.bias == nullptr ? made : made + a.bias[to_output];
    *y = a.add != 0 ? *y + biased : biased;
  };
  uint32_t again = 0;  // a bit for each that is no number: for one loop, not 32
  EBB_UNROLL
  for (int32_t m = 0; m < 2; ++m) {
    EBB_UNROLL
    for (int32_t n = 0; n < 4; ++n) {
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        const float made = sum[m][n][i];
        if (output_of(m, i) >= share.outputs || row_of(n, i) >= share.end_row) continue;
        if (From::kHasMinimum && made != made) {
          again |= 1U << (16 * m + 4 * n + i);
        } else {
          put(output_of(m, i), row_of(n, i), made);
        }
      }
    }
  }
  if constexpr (From::kHasMinimum) {
    EBB_ROLLED
    for (int32_t at = 0; again != 0; ++at, again >>= 1) {
      if ((again & 1U) == 0) continue;
      const int32_t to_output = output_of(at / 16, at % 4);
      const int32_t to_row = row_of(at / 4 % 4, at % 4);
      const float* const x = a.x + int64_t{share.RowOfX(to_row)} * a.w.cols;
      put(to_output, to_row, MultiplyByWeights<From::kElement>(a.w, share.first_of_w + to_output, x));
    }
  }
}

template <typename Args>
void LaunchTiles(const Args& args, Stream stream) {
  WithCodes(TypeOf(args), [&](auto codes) {
    Launch(MultiplyTileOf<decltype(codes), Args>, TileGrid(args, kOutputs), kThreads, args, stream);
  });
}

}  // namespace

void LaunchLinearTilesTensor(const LinearArgs& args, Stream stream) { LaunchTiles(args, stream); }
void LaunchLinearExpertsTensor(const LinearExpertsArgs& args, Stream stream) { LaunchTiles(args, stream); }

}  // namespace ebb::gpu::EBB_GPU_TARGET
