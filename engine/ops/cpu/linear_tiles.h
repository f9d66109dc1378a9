// What the kernels of y = x W^T share: in which order rows of x meet a group of weights, and when memory is asked for
// what comes next.
//
// k is cut into pieces of 16 chunks, whose weights stay in L1 while all rows pass over them, some rows (a tile) at a
// time; sums wait in y between two pieces. So a group is read from memory once, in order, for any number of rows, and
// the piece after is asked for while the rows pass over this one, a chunk of it by each tile in turn: arithmetic and
// memory overlap. Lanes are outputs, so no sum ever crosses lanes, and neither tiles nor pieces show in a result's
// bits.

#ifndef EBB_ENGINE_OPS_CPU_LINEAR_TILES_H_
#define EBB_ENGINE_OPS_CPU_LINEAR_TILES_H_

#include <cstddef>
#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/vec.h"

namespace ebb::cpu::EBB_KERNEL_ISA {

inline constexpr int kPieceChunks = 16;

// One tile's way over one piece: chunks first .. last - 1 for rows row .. .
struct Pass {
  int32_t first = 0;
  int32_t last = 0;
  int32_t row = 0;
  int32_t tile = 0;
  int32_t tiles = 1;
};

// Asks for the piece after, line after line: every chunk of every tile its share, so that requests go out at the pace
// of the arithmetic. The piece after a group's last is the first of the next group; addresses past the end of a matrix
// are asked for too, which is allowed.
template <int64_t kChunkBytes>
struct Asking {
  EBB_INLINE Asking(const LinearArgs& a, const Pass& pass, int panel) {
    constexpr int64_t kLines = (kPieceChunks * kChunkBytes + 63) / 64;
    const int32_t visits = (pass.last - pass.first) * pass.tiles;
    share = (kLines + visits - 1) / visits;
    const int64_t first = pass.tile * (pass.last - pass.first) * share;
    if (panel > 0 || first >= kLines) share = 0;  // asked for already
    next = a.weights + pass.last * kChunkBytes + 64 * first;
  }

  EBB_INLINE void Ask() {
    for (const std::byte* const end = next + 64 * share; next != end; next += 64) PrefetchFar(next);
  }

  const std::byte* next;
  int64_t share;
};

template <int kRows, int kPanels>
EBB_INLINE void Clear(Floats (&sums)[kRows][kPanels]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) sums[r][p] = Zero();
  }
}

// Outputs of a panel that exist: all, but for a matrix's last group.
EBB_INLINE int Lanes(const LinearArgs& a, int panel) {
  const int left = a.outputs - panel * kPanelRows;
  return left < 0 ? 0 : left < kPanelRows ? left : kPanelRows;
}

// The sums of a tile before its first chunk of a pass, and after its last.
template <int kRows, int kPanels>
EBB_INLINE void LoadSums(const LinearArgs& a, const Pass& pass, int panel, Floats (&sums)[kRows][kPanels]) {
  if (pass.first == 0 && !a.add) return Clear(sums);
  const float* y = a.y + pass.row * a.y_stride + panel * kPanelRows;
  const bool whole = Lanes(a, panel + kPanels - 1) == kPanelRows;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r, y += a.y_stride) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      sums[r][p] = whole ? Load(y + p * kPanelRows) : LoadFirst(y + p * kPanelRows, Lanes(a, panel + p));
    }
  }
}
template <int kRows, int kPanels>
EBB_INLINE void StoreSums(const LinearArgs& a, const Pass& pass, int panel, const Floats (&sums)[kRows][kPanels]) {
  float* y = a.y + pass.row * a.y_stride + panel * kPanelRows;
  const bool whole = Lanes(a, panel + kPanels - 1) == kPanelRows;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r, y += a.y_stride) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      if (whole) {
        Store(sums[r][p], y + p * kPanelRows);
      } else {
        StoreFirst(sums[r][p], y + p * kPanelRows, Lanes(a, panel + p));
      }
    }
  }
}

// Rounded activations: chunks that share a scale, and the four bytes that one lane of weights meets.
inline constexpr int32_t kBlockChunks = kRoundedBlock / kChunk;
static_assert(kPieceChunks % kBlockChunks == 0);
EBB_INLINE int32_t LoadWord(const int8_t* p) {
  int32_t word;
  __builtin_memcpy(&word, p, sizeof(word));
  return word;
}

// total += part of one block by its scale, that of row r at scales[r * stride].
template <int kRows, int kPanels>
EBB_INLINE void AddScaled(const Floats (&part)[kRows][kPanels], const float* scales, int64_t stride,
                          Floats (&total)[kRows][kPanels]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const Floats scale = Splat(scales[r * stride]);
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) total[r][p] = Fma(part[r][p], scale, total[r][p]);
  }
}

// Kernel::Tile<kRows, kPanels>(args, pass, panel) for a tile of `rows` rows, kRows or fewer.
template <typename Kernel, int kRows>
EBB_INLINE void TileOf(const LinearArgs& a, const Pass& pass, int rows) {
  if (rows == kRows) {
    constexpr int kPanels = LinearPanels(kRows);
    for (int panel = 0; panel < kGroupPanels; panel += kPanels) Kernel::template Tile<kRows, kPanels>(a, pass, panel);
  } else if constexpr (kRows > 1) {
    TileOf<Kernel, kRows - 1>(a, pass, rows);
  }
}

template <typename Kernel>
void ForEachTile(const LinearArgs& a) {
  const int32_t chunks = (a.k + kChunk - 1) / kChunk;
  const int32_t tiles = (a.rows + kTileRows - 1) / kTileRows;
  for (int32_t first = 0; first < chunks; first += kPieceChunks) {
    Pass pass = {.first = first, .last = chunks - first < kPieceChunks ? chunks : first + kPieceChunks, .tiles = tiles};
    for (; pass.tile < tiles; ++pass.tile) {
      const int32_t rows = (a.rows - pass.row) / (tiles - pass.tile);  // tiles of nearly equal height
      TileOf<Kernel, kTileRows>(a, pass, rows);
      pass.row += rows;
    }
  }
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA

#endif  // EBB_ENGINE_OPS_CPU_LINEAR_TILES_H_
