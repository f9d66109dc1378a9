// y = x W^T for the few rows of decode and weights whose codes are exact in BF16: Q8_0, Q4_0, Q4_K, Q5_K and Q6_K.
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
// x is the 16 x 16 tile and W the 16 x 8 one, as what a thread reads of W is then what it multiplies: thread 4 g + t of
// a team has eight columns of outputs g, g + 8, g + 16 and g + 24, and of rows g and g + 8; which columns a tile calls
// 0 .. 15 does not matter, as long as both agree. Up to eight rows leave half of the tile empty. A scale is that of a
// chunk, or of a tile's 16 columns, multiplied into their sum; a minimum meets the sum of x.
//
// Sums do not depend on how many rows there are: an output's chunks of a team are added in turn, then the teams', then
// splits of the columns (linear_splits.h), which the block that is done last adds up in ascending order. Block
// (splits i + s, y): outputs 256 i .., split s, rows kRows y ..

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/linear_share.h"
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
constexpr int32_t kTileRows = 16;
constexpr int32_t kTiles = 2;  // of a chunk's columns
constexpr int32_t kTileOutputs = 8;
constexpr int32_t kOutputTiles = 32 / kTileOutputs;  // of a team
// The fewest rows that have a kernel of their own. Where the team multiplies a tile by exchanges, half of it costs as
// much as all.
#if defined(__HIPCC__)
constexpr int32_t kRowsMin = 16;
#else
constexpr int32_t kRowsMin = 8;
#endif

// Shared memory. Of x: [stage % 2][term][chunk, tile of columns, of rows, thread of a team] what that thread has of it.
// kRows: 8, 16 or 32.
template <typename From, int32_t kRows>
struct Stages {
  static constexpr int32_t kRowTiles = (kRows + kTileRows - 1) / kTileRows;
  static constexpr int32_t kItems = kStageChunks * kTiles * kRowTiles * kTeam;
  static constexpr int32_t kScales = From::kScales;
  static constexpr int32_t kSummed = From::kHasMinimum ? kTileRows * kRowTiles : 1;
  Vector16 x[2][2][kItems];
  float scales[2][kStageChunks][kOutputs][kScales];
  float sums[2][kStageChunks][kTiles][kSummed];  // of x
};
// The same memory when all is read. Rows lie so that a team writes to all banks.
struct Parts {
  float of_way[kWays][8][kOutputs + 8];
};
template <typename From, int32_t kRows>
constexpr int32_t SharedBytes() {
  return sizeof(Stages<From, kRows>) > sizeof(Parts) ? sizeof(Stages<From, kRows>) : sizeof(Parts);
}

// What a thread fetches of the next stage: what a thread of a team has of one tile of x, of rows g and g + 8, and the
// scales of one output.
template <typename From, int32_t kRows>
struct Fetched {
  using Room = Stages<From, kRows>;
  static constexpr int32_t kHalves = kRows > 8 ? 2 : 1;
  float x[kHalves][4];
  StoredScales scales;

  EBB_DEVICE static int32_t ChunkOf(int32_t thread) { return thread / (kTeam * Room::kRowTiles * kTiles); }
  EBB_DEVICE static int32_t TileOf(int32_t thread) { return thread / (kTeam * Room::kRowTiles) % kTiles; }
  EBB_DEVICE static int32_t RowOf(int32_t thread) {
    return thread / kTeam % Room::kRowTiles * kTileRows + thread % kTeam / 4;
  }

  EBB_DEVICE void Fetch(const LinearArgs& a, int32_t first_output, int32_t first_row, int32_t column, int32_t end) {
    const int32_t thread = ThreadIndex();
    if (thread < Room::kItems) {
      const int32_t of_chunk = column + ChunkOf(thread) * kChunk;
      EBB_UNROLL
      for (int32_t half = 0; half < kHalves; ++half) {
        const int32_t row = first_row + RowOf(thread) + 8 * half;
        EBB_UNROLL
        for (int32_t i = 0; i < 4; ++i) x[half][i] = 0;
        if (row >= a.rows || of_chunk >= end) continue;
        From::ReadX(a.x + int64_t{row} * a.w.cols + of_chunk, thread % 4, TileOf(thread), x[half]);
      }
    }
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
    if constexpr (From::kScales > 1) scales.super = a.w.supers[at / kSuperBlock];
  }

  EBB_DEVICE void Lay(Room& room, int32_t parity) const {
    const int32_t thread = ThreadIndex();
    if (thread < Room::kItems) {
      Vector16 terms[2] = {};
      EBB_UNROLL
      for (int32_t i = 0; i < 2 * kHalves; ++i) {
        const int32_t half = i / 2;
        const Terms of_two = TermsOfAny(x[half][i % 2 * 2], x[half][i % 2 * 2 + 1]);
        terms[0].word[i % 2 * 2 + half] = of_two.first;
        terms[1].word[i % 2 * 2 + half] = of_two.second;
      }
      EBB_UNROLL
      for (int32_t term = 0; term < 2; ++term) room.x[parity][term][thread] = terms[term];
      if constexpr (From::kHasMinimum) {
        EBB_UNROLL
        for (int32_t half = 0; half < kHalves; ++half) {
          const float sum = ReduceTeam(x[half][0] + x[half][1] + x[half][2] + x[half][3], Plus(), 4);
          if (thread % 4 == 0) room.sums[parity][ChunkOf(thread)][TileOf(thread)][RowOf(thread) + 8 * half] = sum;
        }
      }
    }
    if (thread >= kOutputs) return;
    EBB_UNROLL
    for (int32_t i = 0; i < kStageChunks; ++i) From::Scale(scales, i, room.scales[parity][i][thread]);
  }
};

template <typename From>
using Chunk = typename From::Raw[kOutputTiles];  // of outputs g, g + 8, g + 16, g + 24

// sum += x W^T of one chunk, [tile of rows][tile of outputs] as the tile has them. `first` output of the team within
// the block.
template <typename From, int32_t kRows, int32_t kRowTiles>
EBB_DEVICE void MultiplyChunk(const Stages<From, kRows>& room, int32_t parity, int32_t chunk, int32_t first,
                              const Chunk<From>& raw, float (&sum)[kRowTiles][kOutputTiles][4]) {
  const int32_t lane = ThreadIndex() % kTeam;
  const int32_t g = lane / 4;
  const int32_t t = lane % 4;
  constexpr int32_t kInUse = kRows > 8 ? 4 : 2;  // numbers of a tile
  const auto multiply = [&](int32_t m, int32_t tile, const uint32_t(&w)[kOutputTiles][2], bool is_new,
                            float(&to)[kOutputTiles][4]) {
    EBB_UNROLL
    for (int32_t term = 0; term < 2; ++term) {
      const Vector16& x = room.x[parity][term][((chunk * kTiles + tile) * kRowTiles + m) * kTeam + lane];
      const uint32_t tile_of_x[4] = {x.word[0], x.word[1], x.word[2], x.word[3]};
      EBB_UNROLL
      for (int32_t j = 0; j < kOutputTiles; ++j) {
        if (is_new && term == 0) {
          MultiplySmallTileAnew(tile_of_x, w[j], to[j]);
        } else {
          MultiplySmallTile(tile_of_x, w[j], to[j]);
        }
      }
    }
  };
  // The scales, [output 2 t and the next one], of a tile of outputs.
  using Scales = const float(&)[2][Stages<From, kRows>::kScales];
  const auto scales_of = [&](int32_t j) -> Scales {
    return *reinterpret_cast<const float(*)[2][Stages<From, kRows>::kScales]>(
        room.scales[parity][chunk][first + kTileOutputs * j + 2 * t]);
  };
  SyncTeam();
  if constexpr (From::kByHalves) {
    EBB_UNROLL
    for (int32_t tile = 0; tile < kTiles; ++tile) {
      uint32_t w[kOutputTiles][2];
      EBB_UNROLL
      for (int32_t j = 0; j < kOutputTiles; ++j) From::Pairs(raw[j], tile, t, w[j]);
      EBB_UNROLL
      for (int32_t m = 0; m < kRowTiles; ++m) {
        float of_tile[kOutputTiles][4];
        multiply(m, tile, w, true, of_tile);
        EBB_UNROLL
        for (int32_t j = 0; j < kOutputTiles; ++j) {
          Scales scales = scales_of(j);
          EBB_UNROLL
          for (int32_t i = 0; i < kInUse; ++i) {
            sum[m][j][i] = MultiplyAdd(of_tile[j][i], scales[i % 2][tile], sum[m][j][i]);
          }
        }
      }
    }
  } else {
    uint32_t w[kTiles][kOutputTiles][2];
    EBB_UNROLL
    for (int32_t j = 0; j < kOutputTiles; ++j) {
      EBB_UNROLL
      for (int32_t tile = 0; tile < kTiles; ++tile) From::Pairs(raw[j], tile, t, w[tile][j]);
    }
    EBB_UNROLL
    for (int32_t m = 0; m < kRowTiles; ++m) {
      float of_chunk[kOutputTiles][4];
      EBB_UNROLL
      for (int32_t tile = 0; tile < kTiles; ++tile) multiply(m, tile, w[tile], tile == 0, of_chunk);
      float of_rows[2] = {};
      if constexpr (From::kHasMinimum) {
        EBB_UNROLL
        for (int32_t half = 0; half < kInUse / 2; ++half) {
          const int32_t row = m * kTileRows + 8 * half + g;
          of_rows[half] = room.sums[parity][chunk][0][row] + room.sums[parity][chunk][1][row];
        }
      }
      EBB_UNROLL
      for (int32_t j = 0; j < kOutputTiles; ++j) {
        Scales scales = scales_of(j);
        EBB_UNROLL
        for (int32_t i = 0; i < kInUse; ++i) {
          float& to = sum[m][j][i];
          to = MultiplyAdd(of_chunk[j][i], scales[i % 2][0], to);
          if constexpr (From::kHasMinimum) to = MultiplyAdd(-scales[i % 2][1], of_rows[i / 2], to);
        }
      }
    }
  }
}

template <typename From>
EBB_DEVICE void Put(const LinearArgs& a, int32_t output, int32_t row, float sum) {
  if constexpr (From::kHasMinimum) {
    if (sum != sum) sum = MultiplyByWeights<From::kElement>(a.w, output, a.x + int64_t{row} * a.w.cols);
  }
  float* const y = a.y + row * a.y_stride + output;
  const float biased = a.bias == nullptr ? sum : sum + a.bias[output];
  *y = a.add != 0 ? *y + biased : biased;
}

// By the block that is done last of those that share outputs and rows: the sums of all splits.
template <typename From>
EBB_DEVICE void AddSplits(const ShareArgs& split, const LinearArgs& a, int32_t tile, int32_t first_output,
                          int32_t first_row, int32_t rows) {
  EBB_SHARED int32_t is_last;
  const int32_t meeting = BlockY() * split.tiles + tile;
  if (!ComesLast(a.arrived + meeting, split.splits, is_last)) return;
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
      const int32_t output = first_output + of_tile + j;
      if (output < a.w.rows) Put<From>(a, output, row, sum[j]);
    }
  }
}

template <typename From, int32_t kRows>
EBB_KERNEL(kThreads)
MultiplySmall(ShareArgs split) {
  using Room = Stages<From, kRows>;
  constexpr int32_t kAhead = From::template kAhead<kRows>;
  constexpr int32_t kStagesAhead = kAhead / kSteps;
  constexpr int32_t kChunksAhead = kStagesAhead * kStageChunks;
  static_assert(kAhead % kSteps == 0 && Room::kItems <= kThreads);
  Room& room = *LaunchShared<Room>();
  const int32_t team = ThreadIndex() / kTeam;
  const int32_t g = ThreadIndex() % kTeam / 4;
  const int32_t t = ThreadIndex() % 4;
  const int32_t way = team / kGroups;
  const int32_t first = team % kGroups * 32;  // output within the block
  const OwnShare share(split, kOutputs);
  const LinearArgs& a = share.a;
  const int32_t tile = share.tile;
  const int32_t part = share.part;
  const int32_t first_output = share.first_output;
  const int32_t begin = share.begin;
  const int32_t end = share.end;
  const int32_t first_row = BlockY() * kRows;
  const int32_t stages = (end - begin + kLinearStage - 1) / kLinearStage;
  // Two teams, as many as a warp may have, multiply or do not; who has no output makes the last one again. Chunks of
  // this team are those of all that its places, and numbers, leave to it.
  const bool multiplies = first_output + first / 64 * 64 < a.w.rows;
  const int32_t chunks = multiplies ? (end - begin) / kChunk - way * kSteps : 0;
  typename From::Place place[kOutputTiles];
  EBB_UNROLL
  for (int32_t j = 0; j < kOutputTiles; ++j) {
    const int32_t output = first_output + first + kTileOutputs * j + g;
    const int64_t row = output < a.w.rows ? output : a.w.rows - 1;
    place[j] = From::From(a.w, row * a.w.cols + begin + way * kSteps * kChunk, t);
  }
  typename From::Raw raw[kAhead][kOutputTiles];
  // Chunk `ahead` behind the places; of the team's, number `chunk`.
  const auto read = [&](int32_t ahead, int32_t chunk, Chunk<From>& to) {
    if (chunk >= chunks) return;
    EBB_UNROLL
    for (int32_t j = 0; j < kOutputTiles; ++j) to[j] = From::Read(place[j], ahead);
  };
  const auto go_on = [&] {
    EBB_UNROLL
    for (int32_t j = 0; j < kOutputTiles; ++j) From::GoOn(place[j], kChunksAhead);
  };
  EBB_UNROLL
  for (int32_t i = 0; i < kAhead; ++i) {
    const int32_t chunk = i / kSteps * kStageChunks + i % kSteps;
    read(chunk, chunk, raw[i]);
  }
  go_on();
  Fetched<From, kRows> fetched = {};
  const auto fetch = [&](int32_t stage) {
    if (stage < stages) fetched.Fetch(a, first_output, first_row, begin + stage * kLinearStage, end);
  };
  fetch(0);
  fetched.Lay(room, 0);
  fetch(1);

  float sum[Room::kRowTiles][kOutputTiles][4] = {};
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
        const int32_t chunk = stage * kStageChunks + step;
        if (chunk >= chunks) continue;
        MultiplyChunk<From, kRows>(room, stage % 2, way * kSteps + step, first, raw[i * kSteps + step], sum);
        read(i * kStageChunks + step, chunk + kChunksAhead, raw[i * kSteps + step]);
      }
    }
    go_on();
  }

  Parts& parts = *LaunchShared<Parts>();
  const int32_t rows = a.rows - first_row < kRows ? a.rows - first_row : kRows;
  const int64_t partial = ((int64_t{tile} * split.splits + part) * a.rows + first_row) * kOutputs;  // [rows][kOutputs]
  EBB_UNROLL
  for (int32_t eight = 0; eight < kRows; eight += 8) {
    if (eight >= rows) continue;
    Barrier();  // the memory is free
    EBB_UNROLL
    for (int32_t i = 0; i < 2 * kOutputTiles; ++i) {
      parts.of_way[way][g][first + kTileOutputs * (i / 2) + 2 * t + i % 2] =
          sum[eight / kTileRows][i / 2][eight / 8 % 2 * 2 + i % 2];
    }
    Barrier();
    const int32_t of_eight = rows - eight < 8 ? rows - eight : 8;
    for (int32_t i = ThreadIndex(); i < of_eight * kOutputs; i += kThreads) {
      const int32_t row = i / kOutputs;
      const int32_t output = i % kOutputs;
      float total = 0;
      EBB_UNROLL
      for (int32_t j = 0; j < kWays; ++j) total += parts.of_way[j][row][output];
      if (split.splits > 1) {
        a.partial[partial + eight * kOutputs + i] = total;
      } else if (first_output + output < a.w.rows) {
        Put<From>(a, first_output + output, first_row + eight + row, total);
      }
    }
  }
  if (split.splits > 1) AddSplits<From>(split, a, tile, first_output, first_row, rows);
}

template <typename From, int32_t kRows>
void LaunchRows(const LinearsArgs& args, Stream stream) {
  ShareArgs split = ShareOf(args, kOutputs);
  const LinearArgs& one = args.of[0];
  split.splits = LinearSplits(split.tiles * kOutputs, one.w.cols);
  split.columns = LinearColumns(split.tiles * kOutputs, one.w.cols);
  Launch(MultiplySmall<From, kRows>, {int64_t{split.tiles} * split.splits, (int64_t{one.rows} + kRows - 1) / kRows},
         kThreads, split, stream, SharedBytes<From, kRows>());
}
template <typename From>
void LaunchOf(const LinearsArgs& args, Stream stream) {
  if constexpr (kRowsMin <= 8) {
    if (args.of[0].rows <= 8) return LaunchRows<From, 8>(args, stream);
  }
  if (args.of[0].rows <= 16) return LaunchRows<From, 16>(args, stream);
  LaunchRows<From, kLinearRows>(args, stream);
}

}  // namespace

void LaunchLinearRowsSmall(const LinearsArgs& args, Stream stream) {
  switch (args.of[0].w.type) {
    case Element::kQ8:
      return LaunchOf<RowCodes<Element::kQ8>>(args, stream);
    case Element::kQ4:
      return LaunchOf<RowCodes<Element::kQ4>>(args, stream);
    case Element::kQ4K:
      return LaunchOf<RowCodes<Element::kQ4K>>(args, stream);
    case Element::kQ5K:
      return LaunchOf<RowCodes<Element::kQ5K>>(args, stream);
    default:
      return LaunchOf<RowCodes<Element::kQ6K>>(args, stream);
  }
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
