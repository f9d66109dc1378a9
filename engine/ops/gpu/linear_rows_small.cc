// y = x W^T for the few rows of decode where weights are exact in BF16: BF16 itself, and the codes of Q8_0, Q4_0, Q4_K
// and Q6_K.
// Bound by reading W, once for up to 32 rows of x, by tensor cores.
//
// A block makes 32 outputs; its eight teams take columns in turn, 32 at a time, and are added in order when all is
// read. With W as the 16 x 16 tile and x as the 16 x 8 one, thread 4 g + t of a team reads eight neighbouring columns
// of two rows of W and one of x in whole vectors; which columns a tile calls 0..15 does not matter, as long as both
// agree:
//
//   columns of the team   | 0 .. 7 | 8 .. 15 | 16 .. 23 | 24 .. 31 |
//   thread                  t = 0    1         2          3           of row g, and of row g + 8
//   first tile              0 1 2 3 of each: 2t, 2t + 1, 2t + 8, 2t + 9       second tile: 4 5 6 7
//
// Of Q6_K, where 16 columns share a scale, the first tile has columns 0 .. 15 and the second the others: thread t reads
// 4 t .. 4 t + 3 of both.
//
// x is float32: each number is three BF16 that add up to it (tensor.h), so a product is as good as one of floats. A
// scale is that of 32 columns, or of a tile's 16, multiplied into their sum; a minimum meets the sum of x. Sums do not
// depend on how many rows there are. Block (x, y): outputs 32 x .., rows 8 kTiles y ..

#include <cstdint>

#include "engine/ops/gpu/codes.h"
#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/reduce.h"
#include "engine/ops/gpu/tensor.h"
#include "engine/ops/gpu/weights.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kTeams = kThreads / kTeam;
constexpr int32_t kOutputs = 32;
constexpr int32_t kTileRows = 8;
constexpr int32_t kTilesMax = 4;

// Columns of x that thread t's are of W.
template <bool kByHalves>
EBB_DEVICE void ReadX(const float* x, int32_t t, float (&to)[8]) {
  if constexpr (!kByHalves) return KvF32::ReadEight(x + 8 * t, to);
  EBB_UNROLL
  for (int32_t half = 0; half < 2; ++half) {
    const Vector16 four = *reinterpret_cast<const Vector16*>(x + 16 * half + 4 * t);
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) to[4 * half + i] = FloatOf(four.word[i]);
  }
}

// Takes minimum times the chunk's sum of x off both sums. `x` is this thread's of row g, and the sums those of rows 2 t
// and 2 t + 1.
EBB_DEVICE void TakeMinima(const float (&x)[8], const KScales (&scales)[2][2], float (&first)[4], float (&second)[4]) {
  float of_row = 0;
  EBB_UNROLL
  for (int32_t i = 0; i < 8; ++i) of_row += x[i];
  of_row = ReduceTeam(of_row, Plus(), 4);
  const int32_t t = ThreadIndex() % 4;
  const float of_rows[2] = {Shuffle(of_row, 8 * t), Shuffle(of_row, 8 * t + 4)};
  EBB_UNROLL
  for (int32_t i = 0; i < 4; ++i) {
    first[i] = MultiplyAdd(-scales[0][i / 2].minimum, of_rows[i % 2], first[i]);
    second[i] = MultiplyAdd(-scales[1][i / 2].minimum, of_rows[i % 2], second[i]);
  }
}

template <typename From, int32_t kTiles>
EBB_KERNEL(kThreads)
MultiplySmall(LinearArgs a) {
  EBB_SHARED float part[kTeams][kOutputs][kTileRows];
  const int32_t thread = ThreadIndex();
  const int32_t team = thread / kTeam;
  const int32_t g = thread % kTeam / 4;
  const int32_t t = thread % 4;
  const int32_t first_output = BlockX() * kOutputs;
  const int32_t first_row = BlockY() * kTileRows * kTiles;
  float sum[2][kTiles][4] = {};
  for (int32_t begin = 0; begin < a.w.cols; begin += kChunk * kTeams) {
    const int32_t column = begin + kChunk * team;
    const bool has_columns = column < a.w.cols;  // who has none multiplies zeros: all of a warp meet in each tile
    Vector16 w[2][2] = {};
    KScales scales[2][2] = {};
    EBB_UNROLL
    for (int32_t m = 0; m < 2; ++m) {
      EBB_UNROLL
      for (int32_t half = 0; half < 2; ++half) {
        const int32_t output = first_output + 16 * m + 8 * half + g;
        if (!has_columns || output >= a.w.rows) continue;
        w[m][half] = From::Read(a.w, output, column, t);
        if constexpr (From::kScaled) scales[m][half] = From::Scales(a.w, output, column);
      }
    }
    EBB_UNROLL
    for (int32_t n = 0; n < kTiles; ++n) {
      const int32_t row = first_row + kTileRows * n + g;
      float x[8] = {};
      if (has_columns && row < a.rows) ReadX<From::kByHalves>(a.x + int64_t{row} * a.w.cols + column, t, x);
      SyncTeam();
      if constexpr (From::kHasMinimum) TakeMinima(x, scales, sum[0][n], sum[1][n]);
      EBB_UNROLL
      for (int32_t tile = 0; tile < 2; ++tile) {
        float of_tile[2][4] = {};
        EBB_UNROLL
        for (int32_t term = 0; term < kBf16Terms; ++term) {
          const uint32_t b[2] = {TakeBf16(x[4 * tile], x[4 * tile + 1]), TakeBf16(x[4 * tile + 2], x[4 * tile + 3])};
          EBB_UNROLL
          for (int32_t m = 0; m < 2; ++m) {
            const uint32_t tile_of_w[4] = {w[m][0].word[2 * tile], w[m][1].word[2 * tile], w[m][0].word[2 * tile + 1],
                                           w[m][1].word[2 * tile + 1]};
            MultiplySmallTile(tile_of_w, b, From::kScaled ? of_tile[m] : sum[m][n]);
          }
        }
        if constexpr (From::kScaled) {
          EBB_UNROLL
          for (int32_t m = 0; m < 2; ++m) {
            EBB_UNROLL
            for (int32_t i = 0; i < 4; ++i) {
              sum[m][n][i] = MultiplyAdd(of_tile[m][i], scales[m][i / 2].of_half[tile], sum[m][n][i]);
            }
          }
        }
      }
    }
  }

  EBB_UNROLL
  for (int32_t n = 0; n < kTiles; ++n) {
    EBB_UNROLL
    for (int32_t m = 0; m < 2; ++m) {
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) part[team][16 * m + 8 * (i / 2) + g][2 * t + i % 2] = sum[m][n][i];
    }
    Barrier();
    const int32_t output = first_output + thread / kTileRows;
    const int32_t row = first_row + kTileRows * n + thread % kTileRows;
    float total = 0;
    for (int32_t i = 0; i < kTeams; ++i) total += part[i][thread / kTileRows][thread % kTileRows];
    if (output < a.w.rows && row < a.rows) {
      float* const y = a.y + row * a.y_stride + output;
      const float biased = a.bias == nullptr ? total : total + a.bias[output];
      *y = a.add != 0 ? *y + biased : biased;
    }
    Barrier();  // part is free again
  }
}

template <typename From, int32_t kTiles>
void LaunchTiles(const LinearArgs& args, Stream stream) {
  constexpr int32_t kRows = kTileRows * kTiles;
  Launch(MultiplySmall<From, kTiles>, {(args.w.rows + kOutputs - 1) / kOutputs, (args.rows + kRows - 1) / kRows},
         kThreads, args, stream);
}
template <typename From>
void LaunchOf(const LinearArgs& args, Stream stream) {
  if (args.rows <= kTileRows) return LaunchTiles<From, 1>(args, stream);
  if (args.rows <= 2 * kTileRows) return LaunchTiles<From, 2>(args, stream);
  LaunchTiles<From, kTilesMax>(args, stream);
}

}  // namespace

void LaunchLinearRowsSmall(const LinearArgs& args, Stream stream) {
  WithCodes(args.w.type, [&](auto codes) { LaunchOf<decltype(codes)>(args, stream); });
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
