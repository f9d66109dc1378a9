// y = x W^T over packed groups of Q8_0 and Q4_0 with x rounded to bytes, sixteen rows of x at a time, by products of
// tiles: AMX-INT8 where this is compiled for it, plain loops else. The rows that are left over, and other types, are
// linear_fast.cc's. The bits are linear_fast.cc's as well: products and sums of bytes are exact in any order, and what
// follows of a chunk is the same multiply-add.
//
// A chunk of a panel as kernels.h draws it is a tile as the instruction wants it, line for line:
//
//                            sixteen outputs
//                     k 0 1 2 3 | 0 1 2 3 | ...              row 0  k = 0 .. 3
//   A  16 rows of x   k 4 5 6 7 | 4 5 6 7 | ...          B   row 1       4 .. 7    unsigned, value + 128
//      32 bytes each, ...                                    ...                   8 rows of 64 bytes
//      signed         k 28 .. 31|         |                  row 7      28 .. 31
//
//   C  [16 rows][16 outputs] int32 += sum over j and i of A[row][4 j + i] * B[j][4 output + i]
//
// Q4_0 is spread to such bytes first, once for all rows of a pass. Tiles of BF16 are left out: their instruction adds
// up products at even and at odd k apart and then the two, and treats subnormals as zero, which is another order and
// other bits than every other instruction set has.

#include <cstddef>
#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/linear_bytes.h"
#include "engine/ops/cpu/linear_tiles.h"
#include "engine/ops/cpu/vec.h"

namespace ebb::cpu::EBB_KERNEL_ISA {
namespace {

constexpr int kRows = 16;
constexpr int64_t kPanelBytes = kChunk * kPanelRows;

// C of both panels of a group, for a chunk.
struct alignas(64) Products {
  int32_t of[kGroupPanels][kRows][kPanelRows];
};

#ifdef __AMX_INT8__

// Tiles 0 and 1: C of the panels; 2: A; 3 and 4: B of the panels.
class Tiles {
 public:
  Tiles() {
    struct alignas(64) Shapes {  // as LDTILECFG reads it
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, kChunk, 64, 64};
      uint8_t rows[16] = {kRows, kRows, kRows, kChunk / 4, kChunk / 4};
    };
    static_assert(sizeof(Shapes) == 64);
    static constexpr Shapes kShapes = {};  // never stored: g++ 12 is told of the first 8 bytes alone
    _tile_loadconfig(&kShapes);
  }
  ~Tiles() { _tile_release(); }

  static EBB_INLINE void Multiply(const int8_t* x, int64_t stride, const std::byte* w, Products& products) {
    __asm__ volatile("" ::: "memory");  // g++ 12 is not told that the loads below read what was stored before
    _tile_loadd(2, x, stride);
    _tile_loadd(3, w, 64);
    _tile_loadd(4, w + kPanelBytes, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_dpbsud(0, 2, 3);
    _tile_dpbsud(1, 2, 4);
    _tile_stored(0, products.of[0], 64);
    _tile_stored(1, products.of[1], 64);
  }
};

#else

struct Tiles {
  static void Multiply(const int8_t* x, int64_t stride, const std::byte* w, Products& products) {
    for (int panel = 0; panel < kGroupPanels; ++panel) {
      for (int row = 0; row < kRows; ++row) {
        for (int output = 0; output < kPanelRows; ++output) {
          int32_t sum = 0;
          for (int k = 0; k < kChunk; ++k) {
            const auto weight = static_cast<int32_t>(w[panel * kPanelBytes + 64 * (k / 4) + 4 * output + k % 4]);
            sum += weight * x[row * stride + k];
          }
          products.of[panel][row][output] = sum;
        }
      }
    }
  }
};

#endif

// Bytes of value + 128 of both panels' chunk, as tiles B.
template <typename W>
EBB_INLINE const std::byte* Spread(const std::byte* chunk, std::byte* room) {
  if constexpr (W::kType == Element::kQ8) return chunk + 64;
  for (int panel = 0; panel < kGroupPanels; ++panel) {
    for (int step = 0; step < kChunk / 4; ++step) {
      Store(W::Read(chunk + 64 + panel * kPanelBytes / 2, step),
            reinterpret_cast<int32_t*>(room + panel * kPanelBytes + 64 * step));
    }
  }
  return room;
}

// Sixteen rows over one piece of k.
template <typename W>
void Tile(const LinearArgs& a, const Pass& pass) {
  constexpr int64_t kChunkBytes = ChunkBytes(W::kType);
  const int64_t chunks = (a.k + kChunk - 1) / kChunk;
  const int64_t blocks = (chunks + kBlockChunks - 1) / kBlockChunks;
  Floats total[kRows][kGroupPanels];
  LoadSums(a, pass, 0, total);
  Asking<kChunkBytes> asking(a, pass, 0);
  const std::byte* weights = a.weights + pass.first * kChunkBytes;
  const int8_t* x = a.rounded.bytes + (pass.row * chunks + pass.first) * kChunk;
  const int32_t* offsets = a.rounded.offsets + pass.row * chunks;
  const float* scales = a.rounded.scales + pass.row * blocks;
  Products products;
  alignas(64) std::byte room[kGroupPanels * kPanelBytes];
  for (int32_t block = pass.first; block < pass.last; block += kBlockChunks) {
    Floats part[kRows][kGroupPanels];
    Clear(part);
    const int32_t end = pass.last - block < kBlockChunks ? pass.last : block + kBlockChunks;
    for (int32_t chunk = block; chunk < end; ++chunk, weights += kChunkBytes, x += kChunk) {
      asking.Ask();
      Tiles::Multiply(x, chunks * kChunk, Spread<W>(weights, room), products);
      for (int p = 0; p < kGroupPanels; ++p) {
        const Floats scale = W::Scale(weights, p);
        for (int r = 0; r < kRows; ++r) {
          const Ints sum = Load(products.of[p][r]) + Splat(offsets[r * chunks + chunk]);
          part[r][p] = Fma(ToFloats(sum), scale, part[r][p]);
        }
      }
    }
    AddScaled(part, scales + block / kBlockChunks, blocks, total);
  }
  StoreSums(a, pass, 0, total);
}

// All whole tiles of rows, piece by piece as ForEachTile has it. Returns their rows.
template <typename W>
int32_t ForEachSixteen(const LinearArgs& a) {
  const int32_t chunks = (a.k + kChunk - 1) / kChunk;
  const int32_t tiles = a.rows / kRows;
  if (tiles == 0) return 0;
#ifdef __AMX_INT8__
  const Tiles shapes;
#endif
  for (int32_t first = 0; first < chunks; first += kPieceChunks) {
    Pass pass = {.first = first, .last = chunks - first < kPieceChunks ? chunks : first + kPieceChunks, .tiles = tiles};
    for (; pass.tile < tiles; ++pass.tile, pass.row += kRows) Tile<W>(a, pass);
  }
  return tiles * kRows;
}

}  // namespace

// linear_fast (kernels.h). Declared by who takes its address: dispatch.cc, and the test of its arithmetic.
void LinearByTiles(const LinearArgs& args);
void LinearByTiles(const LinearArgs& args) {
  int32_t done = 0;
  if (args.type == Element::kQ8) done = ForEachSixteen<BytesQ8>(args);
  if (args.type == Element::kQ4) done = ForEachSixteen<BytesQ4>(args);
  if (done == args.rows) return;
  if (done == 0) return LinearFast(args);
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
