// y = x W^T for the few rows of decode where weights are exact in BF16: BF16 itself, and the codes of Q8_0, Q4_0, Q4_K
// and Q6_K.
// Bound by reading W, once for up to 32 rows of x, by tensor cores.
//
// A block makes 256 outputs of its columns, 128 of them, a stage, at a time; of sixteen teams each has 32 outputs and
// one half of a stage, in two chunks of 32 columns:
//
//   columns of a stage     | chunk 0 | chunk 1 | chunk 2 | chunk 3 |
//   outputs   0 ..  31       team 0              team 8
//   outputs  32 ..  63       team 1              team 9           ...
//
// W goes from memory to the registers of the thread that multiplies it, some chunks ahead (row_codes.h). x, which all
// teams want, and scales lie in shared memory, a stage ahead, too: who fetches them splits x and works out scales for
// all. x is float32: a number is the sum of two BF16, the nearest one and the nearest to what that leaves, within 2^-17
// of it, which is what a float sum of some hundred terms is good for.
//
// With W as the 16 x 16 tile and x as the 16 x 8 one, thread 4 g + t of a team has eight columns of outputs g, g + 8,
// g + 16 and g + 24 and of row g; which columns a tile calls 0 .. 15 does not matter, as long as both agree. A scale is
// that of a chunk, or of a tile's 16 columns, multiplied into their sum; a minimum meets the sum of x.
//
// Sums do not depend on how many rows there are: an output's chunks of a team are added in turn, then the teams', then
// splits of the columns (kernels.h, LinearSplits), which the block that is done last adds up in ascending order. Block
// (splits i + s, y): outputs 256 i .., split s, rows 8 kTiles y ..

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/reduce.h"
#include "engine/ops/gpu/row_codes.h"
#include "engine/ops/gpu/tensor.h"
#include "engine/ops/gpu/weights.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 512;
constexpr int32_t kTeams = kThreads / kTeam;
constexpr int32_t kOutputs = kLinearOutputs;
constexpr int32_t kGroups = kOutputs / 32;  // of outputs
constexpr int32_t kWays = kTeams / kGroups;
constexpr int32_t kStageChunks = kLinearStage / kChunk;
constexpr int32_t kSteps = kStageChunks / kWays;
constexpr int32_t kTileRows = 8;
constexpr int32_t kTilesMax = kLinearRows / kTileRows;

struct SplitArgs {
  LinearArgs linear;
  int32_t tiles;  // of outputs
  int32_t splits;
  int32_t columns;  // of a split
};

// Shared memory. Of x: [stage % 2][tile of a chunk][chunk, tile of rows, thread of a team] the first terms of four
// columns, then the second ones.
template <typename From, int32_t kTiles>
struct Stages {
  static constexpr int32_t kItems = kStageChunks * kTiles * kTeam;
  static constexpr int32_t kScales = From::kScales > 0 ? From::kScales : 1;
  static constexpr int32_t kScaled = From::kScales > 0 ? kOutputs : 1;
  static constexpr int32_t kSummed = From::kHasMinimum ? kTileRows * kTiles : 1;
  Vector16 x[2][2][kItems];
  float scales[2][kStageChunks][kScaled][kScales];
  float sums[2][kStageChunks][kSummed];  // of x
};
// The same memory when all is read. Rows lie so that a team writes to 32 banks.
struct Parts {
  float of_way[kWays][kTileRows][kOutputs + 4];
};
template <typename From, int32_t kTiles>
constexpr int32_t SharedBytes() {
  return sizeof(Stages<From, kTiles>) > sizeof(Parts) ? sizeof(Stages<From, kTiles>) : sizeof(Parts);
}

// What a thread fetches of the next stage: eight columns of one row of x, and the scales of one output.
template <typename From, int32_t kTiles>
struct Fetched {
  float x[8];
  StoredScales scales;

  EBB_DEVICE void Fetch(const LinearArgs& a, int32_t first_output, int32_t first_row, int32_t column, int32_t end) {
    using Room = Stages<From, kTiles>;
    const int32_t thread = ThreadIndex();
    if (thread < Room::kItems) {
      const int32_t row = first_row + thread / kTeam % kTiles * kTileRows + thread % kTeam / 4;
      const int32_t of_chunk = column + thread / (kTeam * kTiles) * kChunk;
      EBB_UNROLL
      for (int32_t i = 0; i < 8; ++i) x[i] = 0;
      if (row < a.rows && of_chunk < end) From::ReadX(a.x + int64_t{row} * a.w.cols + of_chunk, thread % 4, x);
    }
    if constexpr (From::kScales > 0) {
      const int32_t output = first_output + thread;
      if (thread >= kOutputs || output >= a.w.rows) return;
      const int64_t at = int64_t{output} * a.w.cols + column;
      if (a.w.cols % kLinearStage == 0) {
        const Vector8 four = *reinterpret_cast<const Vector8*>(a.w.scales + at / kChunk);
        scales.word[0] = four.word[0];
        scales.word[1] = four.word[1];
      } else {  // not aligned
        scales.word[0] = scales.word[1] = 0;
        EBB_UNROLL
        for (int32_t i = 0; i < kStageChunks; ++i) {
          if (column + i * kChunk >= end) continue;
          scales.word[i / 2] |= static_cast<uint32_t>(a.w.scales[at / kChunk + i]) << (16 * (i % 2));
        }
      }
      if (a.w.supers != nullptr) scales.super = a.w.supers[at / kSuperBlock];
    }
  }

  EBB_DEVICE void Lay(Stages<From, kTiles>& room, int32_t parity) const {
    using Room = Stages<From, kTiles>;
    const int32_t thread = ThreadIndex();
    if (thread < Room::kItems) {
      EBB_UNROLL
      for (int32_t tile = 0; tile < 2; ++tile) {
        Vector16 terms;
        EBB_UNROLL
        for (int32_t i = 0; i < 2; ++i) {
          const float low = x[4 * tile + 2 * i];
          const float high = x[4 * tile + 2 * i + 1];
          const uint32_t first = Bf16Pair(low, high);
          terms.word[i] = first;
          terms.word[2 + i] = Bf16Pair(low - FloatOf(first << 16), high - FloatOf(first & 0xFFFF0000U));
        }
        room.x[parity][tile][thread] = terms;
      }
      if constexpr (From::kHasMinimum) {
        float sum = 0;
        EBB_UNROLL
        for (int32_t i = 0; i < 8; ++i) sum += x[i];
        sum = ReduceTeam(sum, Plus(), 4);
        const int32_t row = thread / kTeam % kTiles * kTileRows + thread % kTeam / 4;
        if (thread % 4 == 0) room.sums[parity][thread / (kTeam * kTiles)][row] = sum;
      }
    }
    if constexpr (From::kScales > 0) {
      if (thread >= kOutputs) return;
      EBB_UNROLL
      for (int32_t i = 0; i < kStageChunks; ++i) From::Scale(scales, i, room.scales[parity][i][thread]);
    }
  }
};

template <typename From>
using Chunk = typename From::Raw[2][2];  // of outputs g, g + 8, g + 16, g + 24

// sum += W x, of one chunk. `first` output of the team within the block.
template <typename From, int32_t kTiles>
EBB_DEVICE void MultiplyChunk(const Stages<From, kTiles>& room, int32_t parity, int32_t chunk, int32_t first,
                              const Chunk<From>& raw, float (&sum)[2][kTiles][4]) {
  const int32_t lane = ThreadIndex() % kTeam;
  const int32_t g = lane / 4;
  const int32_t t = lane % 4;
  Vector16 w[2][2];
  EBB_UNROLL
  for (int32_t i = 0; i < 4; ++i) w[i / 2][i % 2] = From::Pairs(raw[i / 2][i % 2], t);
  uint32_t tile_of_w[2][2][4];  // [tile][m]
  EBB_UNROLL
  for (int32_t i = 0; i < 16; ++i) {
    const int32_t tile = i / 8, m = i / 4 % 2, at = i % 4;
    tile_of_w[tile][m][at] = w[m][at % 2].word[2 * tile + at / 2];
  }
  SyncTeam();
  if constexpr (From::kScales == 0) {
    EBB_UNROLL
    for (int32_t tile = 0; tile < 2; ++tile) {
      Vector16 x[kTiles];
      EBB_UNROLL
      for (int32_t n = 0; n < kTiles; ++n) x[n] = room.x[parity][tile][(chunk * kTiles + n) * kTeam + lane];
      EBB_UNROLL
      for (int32_t term = 0; term < 2; ++term) {
        EBB_UNROLL
        for (int32_t n = 0; n < kTiles; ++n) {
          const uint32_t b[2] = {x[n].word[2 * term], x[n].word[2 * term + 1]};
          EBB_UNROLL
          for (int32_t m = 0; m < 2; ++m) MultiplySmallTile(tile_of_w[tile][m], b, sum[m][n]);
        }
      }
    }
  } else {
    float scales[2][2][From::kScales];
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      EBB_UNROLL
      for (int32_t j = 0; j < From::kScales; ++j) {
        scales[i / 2][i % 2][j] = room.scales[parity][chunk][first + 8 * i + g][j];
      }
    }
    // Two tiles of rows at a time: one waits for the other's sums.
    constexpr int32_t kTogether = kTiles > 1 ? 2 : 1;
    EBB_UNROLL
    for (int32_t begin = 0; begin < kTiles; begin += kTogether) {
      float of_chunk[kTogether][2][4];
      EBB_UNROLL
      for (int32_t tile = 0; tile < 2; ++tile) {
        Vector16 x[kTogether];
        EBB_UNROLL
        for (int32_t n = 0; n < kTogether; ++n) {
          x[n] = room.x[parity][tile][(chunk * kTiles + begin + n) * kTeam + lane];
        }
        EBB_UNROLL
        for (int32_t term = 0; term < 2; ++term) {
          EBB_UNROLL
          for (int32_t n = 0; n < kTogether; ++n) {
            const uint32_t b[2] = {x[n].word[2 * term], x[n].word[2 * term + 1]};
            EBB_UNROLL
            for (int32_t m = 0; m < 2; ++m) {
              if (term == 0 && (tile == 0 || From::kByHalves)) {
                MultiplySmallTileAnew(tile_of_w[tile][m], b, of_chunk[n][m]);
              } else {
                MultiplySmallTile(tile_of_w[tile][m], b, of_chunk[n][m]);
              }
            }
          }
        }
        if (tile == 0 && !From::kByHalves) continue;
        EBB_UNROLL
        for (int32_t n = 0; n < kTogether; ++n) {
          EBB_UNROLL
          for (int32_t i = 0; i < 8; ++i) {
            float& to = sum[i / 4][begin + n][i % 4];
            to = MultiplyAdd(of_chunk[n][i / 4][i % 4], scales[i / 4][i % 4 / 2][From::kByHalves ? tile : 0], to);
          }
        }
      }
      if constexpr (From::kHasMinimum) {
        EBB_UNROLL
        for (int32_t n = 0; n < kTogether; ++n) {
          const float* const sums = room.sums[parity][chunk] + (begin + n) * kTileRows + 2 * t;
          const float of_rows[2] = {sums[0], sums[1]};
          EBB_UNROLL
          for (int32_t i = 0; i < 8; ++i) {
            float& to = sum[i / 4][begin + n][i % 4];
            to = MultiplyAdd(-scales[i / 4][i % 4 / 2][1], of_rows[i % 2], to);
          }
        }
      }
    }
  }
}

EBB_DEVICE void Put(const LinearArgs& a, int32_t output, int32_t row, float sum) {
  float* const y = a.y + row * a.y_stride + output;
  const float biased = a.bias == nullptr ? sum : sum + a.bias[output];
  *y = a.add != 0 ? *y + biased : biased;
}

// By the block that is done last of those that share outputs and rows: the sums of all splits.
EBB_DEVICE void AddSplits(const SplitArgs& split, int32_t tile, int32_t first_row, int32_t rows, int32_t meeting) {
  EBB_SHARED int32_t is_last;
  const LinearArgs& a = split.linear;
  FenceDevice();
  Barrier();
  if (ThreadIndex() == 0) is_last = AddDevice(a.arrived + meeting, 1) == split.splits - 1 ? 1 : 0;
  Barrier();
  if (is_last == 0) return;
  FenceDevice();
  for (int32_t i = ThreadIndex(); i < rows * kOutputs / 4; i += kThreads) {
    const int32_t row = first_row + i / (kOutputs / 4);
    const int32_t of_tile = i % (kOutputs / 4) * 4;
    float sum[4] = {};
    const int64_t apart = int64_t{a.rows} * kOutputs;
    const float* from = a.partial + int64_t{tile} * split.splits * apart + int64_t{row} * kOutputs + of_tile;
    constexpr int32_t kTogether = 8;
    for (int32_t begin = 0; begin < split.splits; begin += kTogether) {
      float part[kTogether][4];
      EBB_UNROLL
      for (int32_t s = 0; s < kTogether; ++s) {
        if (begin + s < split.splits) ReadFour(from + s * apart, part[s]);
      }
      EBB_UNROLL
      for (int32_t s = 0; s < kTogether; ++s) {
        if (begin + s >= split.splits) continue;
        EBB_UNROLL
        for (int32_t j = 0; j < 4; ++j) sum[j] += part[s][j];
      }
      from += kTogether * apart;
    }
    EBB_UNROLL
    for (int32_t j = 0; j < 4; ++j) {
      const int32_t output = tile * kOutputs + of_tile + j;
      if (output < a.w.rows) Put(a, output, row, sum[j]);
    }
  }
  if (ThreadIndex() == 0) a.arrived[meeting] = 0;
}

template <typename From, int32_t kTiles>
EBB_KERNEL(kThreads)
MultiplySmall(SplitArgs split) {
  using Room = Stages<From, kTiles>;
  constexpr int32_t kStagesAhead = From::kAhead / kSteps;
  static_assert(From::kAhead % kSteps == 0 && Room::kItems <= kThreads);
  Room& room = *LaunchShared<Room>();
  const LinearArgs& a = split.linear;
  const int32_t team = ThreadIndex() / kTeam;
  const int32_t g = ThreadIndex() % kTeam / 4;
  const int32_t t = ThreadIndex() % 4;
  const int32_t way = team / kGroups;
  const int32_t first = team % kGroups * 32;  // output within the block
  const int32_t tile = BlockX() / split.splits;
  const int32_t part = BlockX() % split.splits;
  const int32_t first_output = tile * kOutputs;
  const int32_t first_row = BlockY() * kTileRows * kTiles;
  const int32_t begin = part * split.columns;
  const int32_t end = begin + split.columns < a.w.cols ? begin + split.columns : a.w.cols;
  const int32_t chunks = (end - begin) / kChunk;
  const int32_t stages = (chunks + kStageChunks - 1) / kStageChunks;
  // Two teams, as many as a warp may have, multiply or do not; who has no output makes the last one again.
  const bool multiplies = first_output + first / 64 * 64 < a.w.rows;
  int64_t at[4];
  EBB_UNROLL
  for (int32_t i = 0; i < 4; ++i) {
    const int32_t output = first_output + first + 8 * i + g;
    at[i] = int64_t{output < a.w.rows ? output : a.w.rows - 1} * a.w.cols + begin;
  }
  typename From::Raw raw[From::kAhead][2][2];
  const auto read = [&](int32_t chunk, Chunk<From>& to) {
    if (!multiplies || chunk >= chunks) return;
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) to[i / 2][i % 2] = From::Read(a.w, at[i] + chunk * kChunk, t);
  };
  EBB_UNROLL
  for (int32_t i = 0; i < From::kAhead; ++i) {
    read(i / kSteps * kStageChunks + way * kSteps + i % kSteps, raw[i]);
  }
  Fetched<From, kTiles> fetched = {};
  const auto fetch = [&](int32_t stage) {
    if (stage < stages) fetched.Fetch(a, first_output, first_row, begin + stage * kLinearStage, end);
  };
  fetch(0);
  fetched.Lay(room, 0);
  fetch(1);

  float sum[2][kTiles][4] = {};
  for (int32_t from = 0; from < stages; from += kStagesAhead) {
    EBB_UNROLL
    for (int32_t i = 0; i < kStagesAhead; ++i) {
      const int32_t stage = from + i;
      if (stage >= stages) break;
      Barrier();  // this stage is laid, and the room of the one before is free again
      if (stage + 1 < stages) fetched.Lay(room, (stage + 1) % 2);
      fetch(stage + 2);
      EBB_UNROLL
      for (int32_t step = 0; step < kSteps; ++step) {
        const int32_t of_stage = way * kSteps + step;
        const int32_t chunk = stage * kStageChunks + of_stage;
        if (!multiplies || chunk >= chunks) continue;
        MultiplyChunk(room, stage % 2, of_stage, first, raw[i * kSteps + step], sum);
        read(chunk + kStagesAhead * kStageChunks, raw[i * kSteps + step]);
      }
    }
  }

  Parts& parts = *LaunchShared<Parts>();
  const int32_t rows = a.rows - first_row < kTileRows * kTiles ? a.rows - first_row : kTileRows * kTiles;
  float* const partial =
      a.partial + ((int64_t{tile} * split.splits + part) * a.rows + first_row) * kOutputs;  // [rows][kOutputs]
  EBB_UNROLL
  for (int32_t n = 0; n < kTiles; ++n) {
    if (n * kTileRows >= rows) break;
    Barrier();  // the memory is free
    EBB_UNROLL
    for (int32_t i = 0; i < 8; ++i) {
      parts.of_way[way][2 * t + i % 2][first + 8 * (i / 2) + g] = sum[i / 4][n][i % 4];
    }
    Barrier();
    const int32_t of_tile = rows - n * kTileRows < kTileRows ? rows - n * kTileRows : kTileRows;
    for (int32_t i = ThreadIndex(); i < of_tile * kOutputs; i += kThreads) {
      const int32_t row = i / kOutputs;
      const int32_t output = i % kOutputs;
      float total = 0;
      EBB_UNROLL
      for (int32_t j = 0; j < kWays; ++j) total += parts.of_way[j][row][output];
      if (split.splits > 1) {
        partial[n * kTileRows * kOutputs + i] = total;
      } else if (first_output + output < a.w.rows) {
        Put(a, first_output + output, first_row + n * kTileRows + row, total);
      }
    }
  }
  if (split.splits > 1) AddSplits(split, tile, first_row, rows, BlockY() * split.tiles + tile);
}

template <typename From, int32_t kTiles>
void LaunchTiles(const LinearArgs& args, Stream stream) {
  constexpr int32_t kRows = kTileRows * kTiles;
  const SplitArgs split = {.linear = args,
                           .tiles = LinearTiles(args.w.rows),
                           .splits = LinearSplits(args.w.rows, args.w.cols),
                           .columns = LinearColumns(args.w.rows, args.w.cols)};
  Launch(MultiplySmall<From, kTiles>, {int64_t{split.tiles} * split.splits, (int64_t{args.rows} + kRows - 1) / kRows},
         kThreads, split, stream, SharedBytes<From, kTiles>());
}
template <typename From>
void LaunchOf(const LinearArgs& args, Stream stream) {
  if (args.rows <= kTileRows) return LaunchTiles<From, 1>(args, stream);
  if (args.rows <= 2 * kTileRows) return LaunchTiles<From, 2>(args, stream);
  LaunchTiles<From, kTilesMax>(args, stream);
}

}  // namespace

void LaunchLinearRowsSmall(const LinearArgs& args, Stream stream) {
  switch (args.w.type) {
    case Element::kQ8:
      return LaunchOf<RowCodes<Element::kQ8>>(args, stream);
    case Element::kQ4:
      return LaunchOf<RowCodes<Element::kQ4>>(args, stream);
    case Element::kQ4K:
      return LaunchOf<RowCodes<Element::kQ4K>>(args, stream);
    case Element::kQ6K:
      return LaunchOf<RowCodes<Element::kQ6K>>(args, stream);
    default:
      return LaunchOf<RowCodes<Element::kBf16>>(args, stream);
  }
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
