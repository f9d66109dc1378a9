// y = x W^T over packed groups with weights dequantised exactly and x in float32 (kernels.h, LinearArgs).

#include <cstddef>
#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/linear_tiles.h"
#include "engine/ops/cpu/vec.h"

namespace ebb::cpu::EBB_KERNEL_ISA {
namespace {

// How one chunk of a panel is read. A step is kLoads vectors of weights, of neighbouring k in rising order; kFirst is
// where the panels begin in a group's chunk; Scaled says what the sum of a chunk is worth.
struct WeightsF32 {
  static constexpr Element kType = Element::kF32;
  static constexpr int kLoads = 1;
  static constexpr int64_t kFirst = 0;
  static EBB_INLINE void Read(const std::byte* panel, int k, Floats* w) {
    w[0] = Load(reinterpret_cast<const float*>(panel) + 16 * k);
  }
  static EBB_INLINE Floats Scaled(const std::byte* /*chunk*/, int /*panel*/, Floats sum, Floats total) {
    return total + sum;
  }
};

struct WeightsF16 : WeightsF32 {
  static constexpr Element kType = Element::kF16;
  static EBB_INLINE void Read(const std::byte* panel, int k, Floats* w) {
    w[0] = LoadF16(reinterpret_cast<const uint16_t*>(panel) + 16 * k);
  }
};

struct WeightsBf16 : WeightsF32 {
  static constexpr Element kType = Element::kBf16;
  static constexpr int kLoads = 2;
  static EBB_INLINE void Read(const std::byte* panel, int step, Floats* w) {
    const Ints pairs = LoadBytes(panel + 64 * step);
    w[0] = FromBits(ShiftLeft<16>(pairs));
    w[1] = FromBits(pairs & Splat(-65536));
  }
};

struct WeightsQ8 {
  static constexpr Element kType = Element::kQ8;
  static constexpr int kLoads = 4;
  static constexpr int64_t kFirst = 64;
  static EBB_INLINE void Read(const std::byte* panel, int step, Floats* w) {
    const Ints fours = LoadBytes(panel + 64 * step) ^ Splat(static_cast<int32_t>(0x80808080U));
    w[0] = ToFloats(ShiftRightSigned<24>(ShiftLeft<24>(fours)));
    w[1] = ToFloats(ShiftRightSigned<24>(ShiftLeft<16>(fours)));
    w[2] = ToFloats(ShiftRightSigned<24>(ShiftLeft<8>(fours)));
    w[3] = ToFloats(ShiftRightSigned<24>(fours));
  }
  static EBB_INLINE Floats Scaled(const std::byte* chunk, int panel, Floats sum, Floats total) {
    return Fma(LoadF16(reinterpret_cast<const uint16_t*>(chunk) + 16 * panel), sum, total);
  }
};

struct WeightsQ4 : WeightsQ8 {
  static constexpr Element kType = Element::kQ4;
  static EBB_INLINE void Read(const std::byte* panel, int step, Floats* w) {
    const Ints eights = LoadBytes(panel + 64 * (step / 2));
    const Ints fours = step % 2 == 0 ? eights : ShiftRight<4>(eights);
    const Ints nibble = Splat(15);
    const Ints zero = Splat(8);
    w[0] = ToFloats((fours & nibble) - zero);
    w[1] = ToFloats((ShiftRight<8>(fours) & nibble) - zero);
    w[2] = ToFloats((ShiftRight<16>(fours) & nibble) - zero);
    w[3] = ToFloats((ShiftRight<24>(fours) & nibble) - zero);
  }
};

template <typename W>
struct Exact {
  template <int kRows, int kPanels>
  static void Tile(const LinearArgs& a, const Pass& pass, int panel) {
    constexpr int64_t kChunkBytes = ChunkBytes(W::kType);
    constexpr int64_t kPanelBytes = (kChunkBytes - W::kFirst) / kGroupPanels;
    Floats total[kRows][kPanels];
    LoadSums(a, pass, panel, total);
    Asking<kChunkBytes> asking(a, pass, panel);
    const std::byte* weights = a.weights + pass.first * kChunkBytes;
    const float* x = a.x + int64_t{pass.row} * a.k + pass.first * kChunk;
    for (int32_t chunk = pass.first; chunk < pass.last; ++chunk, weights += kChunkBytes, x += kChunk) {
      asking.Ask();
      Floats sum[kRows][kPanels];
      Clear(sum);
      const int32_t left = a.k - chunk * kChunk < kChunk ? a.k - chunk * kChunk : kChunk;
      for (int step = 0; step < left / W::kLoads; ++step) {
        Floats w[kPanels][W::kLoads];
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) {
          W::Read(weights + W::kFirst + (panel + p) * kPanelBytes, step, w[p]);
        }
#pragma GCC unroll 8
        for (int l = 0; l < W::kLoads; ++l) {
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            const Floats xr = Splat(x[int64_t{r} * a.k + step * W::kLoads + l]);
#pragma GCC unroll 8
            for (int p = 0; p < kPanels; ++p) sum[r][p] = Fma(w[p][l], xr, sum[r][p]);
          }
        }
      }
      if (W::kLoads > 1 && left % W::kLoads != 0) {  // BF16 whose k is odd: the first of the last pair
        for (int p = 0; p < kPanels; ++p) {
          Floats w[W::kLoads];
          W::Read(weights + W::kFirst + (panel + p) * kPanelBytes, left / W::kLoads, w);
          for (int r = 0; r < kRows; ++r) sum[r][p] = Fma(w[0], Splat(x[int64_t{r} * a.k + left - 1]), sum[r][p]);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) total[r][p] = W::Scaled(weights, panel + p, sum[r][p], total[r][p]);
      }
    }
    StoreSums(a, pass, panel, total);
  }
};

}  // namespace

void LinearExact(const LinearArgs& args) {
  switch (args.type) {
    case Element::kF32:
      return ForEachTile<Exact<WeightsF32>>(args);
    case Element::kF16:
      return ForEachTile<Exact<WeightsF16>>(args);
    case Element::kBf16:
      return ForEachTile<Exact<WeightsBf16>>(args);
    case Element::kQ8:
      return ForEachTile<Exact<WeightsQ8>>(args);
    case Element::kQ4:
      return ForEachTile<Exact<WeightsQ4>>(args);
    case Element::kQ4K:
    case Element::kQ5K:
    case Element::kQ6K:
      return LinearKExact(args);
    case Element::kInt8:
    case Element::kFp8:
      return;  // no weights
  }
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
