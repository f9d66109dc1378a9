// Products of tiles: AMX's where this is compiled for them, the same in plain loops else, as any processor runs them.
// A tile register holds up to 16 rows of 64 bytes. What instructions and loops do is defined by the loops; they follow
// the operation sections of TDPBSUD and TDPBF16PS in Intel's instruction set reference.
//
// One object at a time and thread: it sets the shapes of the thread's registers, and gives them up at its end.

#ifndef EBB_ENGINE_OPS_CPU_TILES_H_
#define EBB_ENGINE_OPS_CPU_TILES_H_

#include <cstddef>
#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/vec.h"

namespace ebb::cpu::EBB_KERNEL_ISA {

inline constexpr int kTileHeight = 16;  // rows of x in a tile

#if defined(__AMX_INT8__) || defined(__AMX_BF16__)
struct alignas(64) TileShapes {  // as LDTILECFG reads it
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);
#endif

// of[p][row][output] = sum over j and i of x[row][4 j + i] * w[p][j][4 output + i], x signed and w not: kBytes bytes of
// each row, a chunk's or half a chunk's.
struct alignas(64) ByteProducts {
  int32_t of[kGroupPanels][kTileHeight][kPanelRows];
};

#ifdef __AMX_INT8__

// Tiles 0 and 1: products of the panels; 2: x, 3 and 4: w of a chunk; 5: x, 6 and 7: w of half a chunk.
class ByteTiles {
 public:
  ByteTiles() {
    static constexpr TileShapes kShapes = {
        .row_bytes = {64, 64, kChunk, 64, 64, kChunk / 2, 64, 64},
        .rows = {kTileHeight, kTileHeight, kTileHeight, kChunk / 4, kChunk / 4, kTileHeight, kChunk / 8, kChunk / 8}};
    _tile_loadconfig(&kShapes);  // constant, as g++ 12 is told of the first 8 bytes alone
  }
  ~ByteTiles() { _tile_release(); }

  // Rows of x lie `x_stride` bytes apart, panels of w `w_stride`.
  template <int kBytes>
  static EBB_INLINE void Multiply(const int8_t* x, int64_t x_stride, const std::byte* w, int64_t w_stride,
                                  ByteProducts& products) {
    __asm__ volatile("" ::: "memory");  // g++ 12 is not told that the loads below read what was stored before
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kBytes == kChunk) {
      _tile_loadd(2, x, x_stride);
      _tile_loadd(3, w, 64);
      _tile_loadd(4, w + w_stride, 64);
      _tile_dpbsud(0, 2, 3);
      _tile_dpbsud(1, 2, 4);
    } else {
      static_assert(kBytes == kChunk / 2);
      _tile_loadd(5, x, x_stride);
      _tile_loadd(6, w, 64);
      _tile_loadd(7, w + w_stride, 64);
      _tile_dpbsud(0, 5, 6);
      _tile_dpbsud(1, 5, 7);
    }
    _tile_stored(0, products.of[0], 64);
    _tile_stored(1, products.of[1], 64);
  }
};

#else

class ByteTiles {
 public:
  template <int kBytes>
  static void Multiply(const int8_t* x, int64_t x_stride, const std::byte* w, int64_t w_stride,
                       ByteProducts& products) {
    for (int panel = 0; panel < kGroupPanels; ++panel) {
      for (int row = 0; row < kTileHeight; ++row) {
        for (int output = 0; output < kPanelRows; ++output) {
          int32_t sum = 0;
          for (int k = 0; k < kBytes; ++k) {
            const auto weight = static_cast<int32_t>(w[panel * w_stride + 64 * (k / 4) + 4 * output + k % 4]);
            sum += weight * x[row * x_stride + k];
          }
          products.of[panel][row][output] = sum;
        }
      }
    }
  }
};

#endif

// Sums of up to two tiles of rows with both panels of a group, in float32.
struct alignas(64) PairSums {
  float of[2][kGroupPanels][kTileHeight][kPanelRows];
};

// A tile's product of 32 k, for each row and output:
//
//   even = odd = 0
//   for each pair j: even = x[2 j] * w[j].first + even, odd = x[2 j + 1] * w[j].second + odd, each rounded once
//   sum = sum + (even + odd)
//
// to nearest even, what is subnormal taken and given as zero. Rows do not see one another.
#ifdef __AMX_BF16__

// Tiles 0 .. 3: sums of the first tile of rows with both panels, and of the second; 4 and 5: x; 6 and 7: w.
class PairTiles {
 public:
  PairTiles() = default;
  ~PairTiles() { _tile_release(); }
  PairTiles(const PairTiles&) = delete;
  PairTiles& operator=(const PairTiles&) = delete;

  // For what follows: 1 .. 32 rows of x.
  void SetRows(int rows) {
    const int first = rows < kTileHeight ? rows : kTileHeight;
    const int second = rows - first;
    const auto top = static_cast<uint8_t>(first), rest = static_cast<uint8_t>(second);
    const uint16_t wide = second > 0 ? 64 : 0;
    const TileShapes shapes = {.row_bytes = {64, 64, wide, wide, 64, wide, 64, 64},
                               .rows = {top, top, rest, rest, top, rest, kChunk / 2, kChunk / 2}};
    __asm__ volatile("" ::"r"(&shapes) : "memory");  // as above
    _tile_loadconfig(&shapes);
  }

  template <bool kTwo>
  EBB_INLINE void Load(const PairSums& sums) {
    __asm__ volatile("" ::: "memory");
    _tile_loadd(0, sums.of[0][0], 64);
    _tile_loadd(1, sums.of[0][1], 64);
    if constexpr (kTwo) {
      _tile_loadd(2, sums.of[1][0], 64);
      _tile_loadd(3, sums.of[1][1], 64);
    }
  }

  // Rows of x lie `x_stride` bytes apart, panels of w `w_stride`.
  template <bool kTwo>
  EBB_INLINE void Multiply(const std::byte* x, int64_t x_stride, const std::byte* w, int64_t w_stride) {
    _tile_loadd(6, w, 64);
    _tile_loadd(7, w + w_stride, 64);
    _tile_loadd(4, x, x_stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwo) {
      _tile_loadd(5, x + kTileHeight * x_stride, x_stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }

  template <bool kTwo>
  EBB_INLINE void Store(PairSums& sums) {
    _tile_stored(0, sums.of[0][0], 64);
    _tile_stored(1, sums.of[0][1], 64);
    if constexpr (kTwo) {
      _tile_stored(2, sums.of[1][0], 64);
      _tile_stored(3, sums.of[1][1], 64);
    }
  }
};

#else

class PairTiles {
 public:
  void SetRows(int rows) { rows_ = rows; }

  template <bool kTwo>
  void Load(const PairSums& sums) {
    sums_ = sums;
  }

  template <bool kTwo>
  void Multiply(const std::byte* x, int64_t x_stride, const std::byte* w, int64_t w_stride) {
    for (int row = 0; row < rows_; ++row, x += x_stride) {
      for (int panel = 0; panel < kGroupPanels; ++panel) {
        for (int output = 0; output < kPanelRows; ++output) {
          float parts[2] = {};
          for (int k = 0; k < kChunk; ++k) {
            const float weight = At(w + panel * w_stride + 64 * (k / 2) + 4 * output + 2 * (k % 2));
            parts[k % 2] = Flushed(__builtin_fmaf(At(x + 2 * k), weight, parts[k % 2]));
          }
          float& sum = sums_.of[row / kTileHeight][panel][row % kTileHeight][output];
          sum = Flushed(Flushed(sum) + Flushed(parts[0] + parts[1]));
        }
      }
    }
  }

  template <bool kTwo>
  void Store(PairSums& sums) {
    sums = sums_;
  }

 private:
  static float Flushed(float a) { return a > -0x1p-126F && a < 0x1p-126F ? __builtin_copysignf(0, a) : a; }
  static float At(const std::byte* bf16) {
    uint16_t bits;
    __builtin_memcpy(&bits, bf16, sizeof(bits));
    return Flushed(__builtin_bit_cast(float, uint32_t{bits} << 16U));
  }

  int rows_ = 0;
  PairSums sums_ = {};
};

#endif

}  // namespace ebb::cpu::EBB_KERNEL_ISA

#endif  // EBB_ENGINE_OPS_CPU_TILES_H_
