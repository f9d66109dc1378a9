// y = x W^T over packed groups of quantised weights with x rounded to bytes, sixteen rows of x at a time, by products
// of tiles (tiles.h). The rows that are left over, and BF16, are linear_fast.cc's. The bits are those of linear_fast.cc
// and linear_k_fast.cc as well: products and sums of bytes are exact in any order, and what follows of a chunk is the
// same multiply-add.
//
// A chunk of a panel of Q8_0 as kernels.h draws it is a tile as the instruction wants it, line for line:
//
//                            sixteen outputs
//                     k 0 1 2 3 | 0 1 2 3 | ...              row 0  k = 0 .. 3
//   A  16 rows of x   k 4 5 6 7 | 4 5 6 7 | ...          B   row 1       4 .. 7    unsigned, value + 128
//      32 bytes each, ...                                    ...                   8 rows of 64 bytes
//      signed         k 28 .. 31|         |                  row 7      28 .. 31
//
//   C  [16 rows][16 outputs] int32 += sum over j and i of A[row][4 j + i] * B[j][4 output + i]
//
// The codes of other types are spread to such bytes first, once for all rows that pass over a piece of k. Q6_K has a
// scale for each half of a chunk: its tiles are half as deep. The products of a block of x are there before the first
// of them is scaled, so that what a panel's outputs add up to stays in registers.

#include <cstddef>
#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/linear_bytes.h"
#include "engine/ops/cpu/linear_k.h"
#include "engine/ops/cpu/linear_tiles.h"
#include "engine/ops/cpu/tiles.h"
#include "engine/ops/cpu/vec.h"

namespace ebb::cpu::EBB_KERNEL_ISA {
namespace {

constexpr int64_t kSpreadPanel = kChunk * kPanelRows;  // bytes of a chunk

// What a product of tiles takes of weights: bytes, four k of sixteen outputs a step, in units that parts of a chunk
// have.
template <typename W>
struct Whole {  // of Q8_0 and Q4_0
  static constexpr Element kType = W::kType;
  static constexpr int kParts = 1;
  static constexpr bool kHasMinimum = false;
  static EBB_INLINE Ints Bytes(const std::byte* group, int32_t chunk, int panel, int step) {
    constexpr int64_t kPanelBytes = (ChunkBytes(kType) - 64) / kGroupPanels;
    return W::Read(group + chunk * ChunkBytes(kType) + 64 + panel * kPanelBytes, step);
  }
  static EBB_INLINE Floats Unit(const std::byte* group, int32_t chunk, int panel, int /*part*/) {
    return W::Scale(group + chunk * ChunkBytes(kType), panel);
  }
};

template <typename W>
struct OfBlocks : W {  // of the K types
  static EBB_INLINE Ints Bytes(const std::byte* group, int32_t chunk, int panel, int step) {
    return W::Bytes(W::At(group, chunk), panel, step);
  }
  static EBB_INLINE Floats Unit(const std::byte* group, int32_t chunk, int panel, int part) {
    return W::Unit(W::At(group, chunk), panel, part);
  }
};

// A piece's chunks as tiles: where they begin, and how far apart they are.
struct Spread {
  const std::byte* bytes = nullptr;
  int64_t stride = 0;
};

struct alignas(64) Room {
  std::byte bytes[kPieceChunks * kGroupPanels * kSpreadPanel];
};

template <typename W>
Spread SpreadOut(const LinearArgs& a, int32_t first, int32_t last, Room& room) {
  if constexpr (W::kType == Element::kQ8) {
    constexpr int64_t kChunkBytes = ChunkBytes(W::kType);
    return {a.weights + first * kChunkBytes + 64, kChunkBytes};
  }
  constexpr int64_t kStride = kGroupPanels * kSpreadPanel;
  for (int32_t chunk = first; chunk < last; ++chunk) {
    for (int panel = 0; panel < kGroupPanels; ++panel) {
      for (int step = 0; step < kChunk / 4; ++step) {
        std::byte* const to = room.bytes + (chunk - first) * kStride + panel * kSpreadPanel + 64 * step;
        Store(W::Bytes(a.weights, chunk, panel, step), reinterpret_cast<int32_t*>(to));
      }
    }
  }
  return {room.bytes, kStride};
}

// Sixteen rows over one piece of k.
template <typename W>
void Tile(const LinearArgs& a, const Pass& pass, const Spread& spread) {
  constexpr int kBytes = kChunk / W::kParts;
  const int64_t chunks = (a.k + kChunk - 1) / kChunk;
  const int64_t blocks = (chunks + kBlockChunks - 1) / kBlockChunks;
  Floats total[kGroupPanels][kTileHeight][1];
  for (int p = 0; p < kGroupPanels; ++p) LoadSums(a, pass, p, total[p]);
  Asking<ChunkBytes(W::kType)> asking(a, pass, 0);
  const std::byte* weights = spread.bytes;
  const int8_t* x = a.rounded.bytes + (pass.row * chunks + pass.first) * kChunk;
  const int32_t* offsets = a.rounded.offsets + pass.row * chunks;
  const int32_t* halves = a.rounded.halves + pass.row * chunks;
  const float* scales = a.rounded.scales + pass.row * blocks;
  ByteProducts products[kBlockChunks][W::kParts];
  for (int32_t block = pass.first; block < pass.last; block += kBlockChunks) {
    const int32_t end = pass.last - block < kBlockChunks ? pass.last : block + kBlockChunks;
    for (int32_t chunk = block; chunk < end; ++chunk, weights += spread.stride, x += kChunk) {
      asking.Ask();
      for (int part = 0; part < W::kParts; ++part) {
        ByteTiles::Multiply<kBytes>(x + part * kBytes, chunks * kChunk, weights + part * kBytes * kPanelRows,
                                    kSpreadPanel, products[chunk - block][part]);
      }
    }
    for (int p = 0; p < kGroupPanels; ++p) {
      Floats sums[kTileHeight][1];
      Clear(sums);
      for (int32_t chunk = block; chunk < end; ++chunk) {
        for (int part = 0; part < W::kParts; ++part) {
          const Floats unit = W::Unit(a.weights, chunk, p, part);
#pragma GCC unroll 16
          for (int r = 0; r < kTileHeight; ++r) {
            const int64_t at = r * chunks + chunk;
            const int32_t start = W::kParts == 1 ? offsets[at] : part == 0 ? halves[at] : offsets[at] - halves[at];
            const Ints sum = Load(products[chunk - block][part].of[p][r]) + Splat(start);
            sums[r][0] = Fma(ToFloats(sum), unit, sums[r][0]);
          }
        }
        if constexpr (W::kHasMinimum) {
          const Floats middle = W::Middle(W::At(a.weights, chunk), p);
#pragma GCC unroll 16
          for (int r = 0; r < kTileHeight; ++r) {
            const Floats offset = Splat(static_cast<float>(offsets[r * chunks + chunk]));
            sums[r][0] = Fma(offset, middle, sums[r][0]);
          }
        }
      }
      AddScaled(sums, scales + block / kBlockChunks, blocks, total[p]);
    }
  }
  for (int p = 0; p < kGroupPanels; ++p) StoreSums(a, pass, p, total[p]);
}

// All whole tiles of rows, piece by piece as ForEachTile has it.
template <typename W>
void ForEachSixteen(const LinearArgs& a, int32_t tiles) {
  const int32_t chunks = (a.k + kChunk - 1) / kChunk;
  [[maybe_unused]] const ByteTiles registers;
  Room room;
  for (int32_t first = 0; first < chunks; first += kPieceChunks) {
    Pass pass = {.first = first, .last = chunks - first < kPieceChunks ? chunks : first + kPieceChunks, .tiles = tiles};
    const Spread spread = SpreadOut<W>(a, pass.first, pass.last, room);
    for (; pass.tile < tiles; ++pass.tile, pass.row += kTileHeight) Tile<W>(a, pass, spread);
  }
}

}  // namespace

// linear_fast (kernels.h). Declared by who takes its address: dispatch.cc, and the test of its arithmetic.
void LinearByTiles(const LinearArgs& args);
void LinearByTiles(const LinearArgs& args) {
  const int32_t tiles = args.type == Element::kBf16 ? 0 : args.rows / kTileHeight;
  if (tiles == 0) return LinearFast(args);
  switch (args.type) {
    case Element::kQ8:
      ForEachSixteen<Whole<BytesQ8>>(args, tiles);
      break;
    case Element::kQ4:
      ForEachSixteen<Whole<BytesQ4>>(args, tiles);
      break;
    case Element::kQ4K:
      ForEachSixteen<OfBlocks<KWeights<CodesQ4K>>>(args, tiles);
      break;
    case Element::kQ5K:
      ForEachSixteen<OfBlocks<KWeights<CodesQ5K>>>(args, tiles);
      break;
    case Element::kQ6K:
      ForEachSixteen<OfBlocks<KWeights<CodesQ6K>>>(args, tiles);
      break;
    default:
      return;  // not rounded, or to BF16
  }
  const int32_t done = tiles * kTileHeight;
  if (done == args.rows) return;
  const int64_t chunks = (args.k + kChunk - 1) / kChunk;
  const int64_t blocks = (chunks + kBlockChunks - 1) / kBlockChunks;
  LinearArgs rest = args;
  rest.rows -= done;
  rest.y += done * args.y_stride;
  rest.rounded.bytes += done * chunks * kChunk;
  rest.rounded.scales += done * blocks;
  rest.rounded.offsets += done * chunks;
  rest.rounded.halves += done * chunks;
  LinearFast(rest);
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
