// y = x W^T over packed groups of BF16 with x rounded to BF16, up to 32 rows of x at a time, by products of tiles
// (tiles.h).
//
// A chunk of a panel as kernels.h draws it is a tile as the instruction wants it, line for line, and so is a chunk of
// each of sixteen rows of x, 64 bytes from the beginning of its 128:
//
//                           sixteen outputs
//                     k 0  1  | 0  1  | ...               row 0   k = 0, 1
//   A  16 rows of x   k 2  3  | 2  3  | ...           B   row 1       2, 3        16 rows of 64 bytes
//      32 BF16 each   ...                                 ...
//                     k 30 31 | 30 31 | ...               row 15      30, 31
//
// The instruction adds up even and odd k of a chunk apart, and then the two: another order than dot products of pairs
// have, and other bits. So all rows go this way, however few: a row's bits do not depend on how many there are. Two
// tiles of rows share a load of weights, and four sums hide how long a product takes.

#include <cstddef>
#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/linear_tiles.h"
#include "engine/ops/cpu/tiles.h"
#include "engine/ops/cpu/vec.h"

namespace ebb::cpu::EBB_KERNEL_ISA {
namespace {

constexpr int32_t kRowsMost = 2 * kTileHeight;

// `rows` rows from pass.row over one piece of k.
template <bool kTwo>
void TwoTiles(const LinearArgs& a, const Pass& pass, int rows, PairTiles& tiles) {
  constexpr int64_t kChunkBytes = ChunkBytes(Element::kBf16);
  const int64_t chunks = (a.k + kChunk - 1) / kChunk;
  PairSums sums;
  Pass one = pass;
  for (int r = 0; r < rows; ++r, ++one.row) {
    Floats row[1][kGroupPanels];
    LoadSums(a, one, 0, row);
    for (int p = 0; p < kGroupPanels; ++p) Store(row[0][p], sums.of[r / kTileHeight][p][r % kTileHeight]);
  }
  tiles.Load<kTwo>(sums);
  Asking<kChunkBytes> asking(a, pass, 0);
  const std::byte* weights = a.weights + pass.first * kChunkBytes;
  const float* x = a.rounded.pairs + (pass.row * chunks + pass.first) * kChunk;
  for (int32_t chunk = pass.first; chunk < pass.last; ++chunk, weights += kChunkBytes, x += kChunk) {
    asking.Ask();
    tiles.Multiply<kTwo>(reinterpret_cast<const std::byte*>(x), chunks * kChunk * int64_t{sizeof(float)}, weights,
                         kChunkBytes / kGroupPanels);
  }
  tiles.Store<kTwo>(sums);
  one = pass;
  for (int r = 0; r < rows; ++r, ++one.row) {
    Floats row[1][kGroupPanels];
    for (int p = 0; p < kGroupPanels; ++p) row[0][p] = Load(sums.of[r / kTileHeight][p][r % kTileHeight]);
    StoreSums(a, one, 0, row);
  }
}

}  // namespace

// linear_fast (kernels.h) of BF16, with x as pairs. Declared by who takes its address, as LinearByTiles.
void LinearByPairTiles(const LinearArgs& args);
void LinearByPairTiles(const LinearArgs& args) {
  const int32_t chunks = (args.k + kChunk - 1) / kChunk;
  PairTiles tiles;
  int32_t shaped = 0;  // rows that the registers are set for
  for (int32_t first = 0; first < chunks; first += kPieceChunks) {
    Pass pass = {.first = first,
                 .last = chunks - first < kPieceChunks ? chunks : first + kPieceChunks,
                 .tiles = (args.rows + kRowsMost - 1) / kRowsMost};
    for (; pass.tile < pass.tiles; ++pass.tile, pass.row += kRowsMost) {
      const int32_t rows = args.rows - pass.row < kRowsMost ? args.rows - pass.row : kRowsMost;
      if (rows != shaped) tiles.SetRows(rows);
      shaped = rows;
      if (rows > kTileHeight) {
        TwoTiles<true>(args, pass, rows, tiles);
      } else {
        TwoTiles<false>(args, pass, rows, tiles);
      }
    }
  }
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
