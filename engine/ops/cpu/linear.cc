// y = x W^T over packed panels (kernels.h). Lanes are outputs, so no sum ever crosses lanes.

#include <cstddef>
#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/vec.h"

namespace ebb::cpu::EBB_KERNEL_ISA {
namespace {

// Bytes. Two chunks of Q8_0, four of Q4_0; half or twice as much makes no difference that can be measured.
constexpr int64_t kPrefetchAhead = 4096;

// How a panel of one chunk is read. A step is kLoads vectors of weights, of columns k and k + 16 where it is two (that
// order is part of a result's bits, as everything in Tile is); Accumulate says what the sum of a chunk is worth.
struct WeightsF32 {
  static constexpr Element kType = Element::kF32;
  static constexpr int kLoads = 1;
  static EBB_INLINE void Read(const std::byte* panel, int k, Floats* w) {
    w[0] = Load(reinterpret_cast<const float*>(panel) + 16 * k);
  }
  static EBB_INLINE Floats Accumulate(const std::byte* /*panel*/, Floats chunk, Floats total) { return total + chunk; }
};

struct WeightsF16 : WeightsF32 {
  static constexpr Element kType = Element::kF16;
  static EBB_INLINE void Read(const std::byte* panel, int k, Floats* w) {
    w[0] = LoadF16(reinterpret_cast<const uint16_t*>(panel) + 16 * k);
  }
};

struct WeightsBf16 : WeightsF32 {
  static constexpr Element kType = Element::kBf16;
  static EBB_INLINE void Read(const std::byte* panel, int k, Floats* w) {
    w[0] = LoadBf16(reinterpret_cast<const uint16_t*>(panel) + 16 * k);
  }
};

struct WeightsQ8 {
  static constexpr Element kType = Element::kQ8;
  static constexpr int kLoads = 1;
  static EBB_INLINE void Read(const std::byte* panel, int k, Floats* w) {
    w[0] = LoadInt8(reinterpret_cast<const int8_t*>(panel) + 32 + 16 * k);
  }
  static EBB_INLINE Floats Accumulate(const std::byte* panel, Floats chunk, Floats total) {
    return Fma(LoadF16(reinterpret_cast<const uint16_t*>(panel)), chunk, total);
  }
};

struct WeightsQ4 : WeightsQ8 {
  static constexpr Element kType = Element::kQ4;
  static constexpr int kLoads = 2;
  static EBB_INLINE void Read(const std::byte* panel, int k, Floats* w) {
    const FloatPair both = LoadNibbles(reinterpret_cast<const uint8_t*>(panel) + 32 + 16 * k);
    w[0] = both.low;
    w[1] = both.high;
  }
};

EBB_INLINE void Finish(const LinearArgs& a, Floats total, int row, int panel) {
  const int outputs = a.outputs - panel * kPanelRows;
  float* y = a.y + row * a.y_stride + panel * kPanelRows;
  if (outputs >= kPanelRows) {
    Store(a.add ? Load(y) + total : total, y);
  } else if (outputs > 0) {
    StoreFirst(a.add ? LoadFirst(y, outputs) + total : total, y, outputs);
  }
}

// Lines that a step of the k loop asks for ahead of itself, so that a row of x meets weights that have arrived: without
// it a core takes in Q8_0 at half the rate that memory gives. Addresses past the end are asked for too; that is
// allowed.
template <int64_t kBytes>
EBB_INLINE void PrefetchStep(const std::byte* weights, int step) {
  const std::byte* ahead = weights + kPrefetchAhead + step * kBytes;
#pragma GCC unroll 8
  for (int64_t line = 0; line < kBytes; line += 64) Prefetch(ahead + line);
}

// Rows row .. row + kRows - 1 of x against panels panel .. panel + kPanels - 1.
template <typename W, int kRows, int kPanels>
void Tile(const LinearArgs& a, int row, int panel) {
  constexpr int64_t kPanelBytes = PanelBytes(W::kType);
  constexpr int kSteps = kChunk / W::kLoads;
  Floats total[kRows][kPanels];
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) total[r][p] = Zero();
  }
  const std::byte* weights = a.weights + panel * kPanelBytes;
  const float* x = a.x + int64_t{row} * a.k;
  for (int32_t k0 = 0; k0 < a.k; k0 += kChunk, weights += a.chunk_stride, x += kChunk) {
    Floats chunk[kRows][kPanels];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) chunk[r][p] = Zero();
    }
    const int steps = a.k - k0 < kChunk ? a.k - k0 : kSteps;  // quantised types have whole chunks only
    for (int k = 0; k < steps; ++k) {
      PrefetchStep<kPanels * kPanelBytes / kSteps>(weights, k);
      Floats w[kPanels][W::kLoads];
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) W::Read(weights + p * kPanelBytes, k, w[p]);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int half = 0; half < W::kLoads; ++half) {
          const Floats xr = Splat(x[int64_t{r} * a.k + 16 * half + k]);
#pragma GCC unroll 8
          for (int p = 0; p < kPanels; ++p) chunk[r][p] = Fma(w[p][half], xr, chunk[r][p]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) {
        total[r][p] = W::Accumulate(weights + p * kPanelBytes, chunk[r][p], total[r][p]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) Finish(a, total[r][p], row + r, panel + p);
  }
}

template <typename W, int kRows>
void Rows(const LinearArgs& a, int row) {
  constexpr int kPanels = TileVectors(kRows);
  int panel = 0;
  for (; panel + kPanels <= a.panels; panel += kPanels) Tile<W, kRows, kPanels>(a, row, panel);
  for (; panel < a.panels; ++panel) Tile<W, kRows, 1>(a, row, panel);
}

// The last rows, kRows or fewer.
template <typename W, int kRows>
void Rest(const LinearArgs& a, int row) {
  if (a.rows - row == kRows) {
    Rows<W, kRows>(a, row);
  } else if constexpr (kRows > 1) {
    Rest<W, kRows - 1>(a, row);
  }
}

template <typename W>
void All(const LinearArgs& a) {
  int row = 0;
  for (; row + kTileRows <= a.rows; row += kTileRows) Rows<W, kTileRows>(a, row);
  Rest<W, kTileRows>(a, row);
}

}  // namespace

void Linear(const LinearArgs& args) {
  switch (args.type) {
    case Element::kF32:
      return All<WeightsF32>(args);
    case Element::kF16:
      return All<WeightsF16>(args);
    case Element::kBf16:
      return All<WeightsBf16>(args);
    case Element::kQ8:
      return All<WeightsQ8>(args);
    case Element::kQ4:
      return All<WeightsQ4>(args);
  }
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
