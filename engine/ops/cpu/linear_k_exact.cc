// y = x W^T over packed groups of the K types with weights taken exactly and x in float32 (kernels.h, LinearArgs).

#include <cstddef>
#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/linear_k.h"
#include "engine/ops/cpu/linear_tiles.h"
#include "engine/ops/cpu/vec.h"

namespace ebb::cpu::EBB_KERNEL_ISA {
namespace {

// Four vectors of codes as numbers, of neighbouring k in rising order; those of Q6_K less 32.
template <typename W>
EBB_INLINE void Unpack(const std::byte* panel, int step, Floats* w) {
  const Ints codes = W::Read(panel, step);
  const Ints byte = Splat(255);
  const Ints zero = Splat(W::kHasMinimum ? 0 : 1 << (W::kBits - 1));
  w[0] = ToFloats((codes & byte) - zero);
  w[1] = ToFloats((ShiftRight<8>(codes) & byte) - zero);
  w[2] = ToFloats((ShiftRight<16>(codes) & byte) - zero);
  w[3] = ToFloats(ShiftRight<24>(codes) - zero);
}

template <typename W>
struct ExactK {
  template <int kRows, int kPanels>
  static void Tile(const LinearArgs& a, const Pass& pass, int panel) {
    constexpr int kPartSteps = kSteps / W::kParts;
    Floats total[kRows][kPanels];
    LoadSums(a, pass, panel, total);
    Asking<ChunkBytes(W::kType)> asking(a, pass, panel);
    const float* x = a.x + int64_t{pass.row} * a.k + pass.first * kChunk;
    for (int32_t chunk = pass.first; chunk < pass.last; ++chunk, x += kChunk) {
      asking.Ask();
      const KPlace at = W::At(a.weights, chunk);
      for (int part = 0; part < W::kParts; ++part) {
        Floats sum[kRows][kPanels];
        Clear(sum);
        for (int step = part * kPartSteps; step < (part + 1) * kPartSteps; ++step) {
          Floats w[kPanels][4];
#pragma GCC unroll 8
          for (int p = 0; p < kPanels; ++p) Unpack<W>(W::Panel(at, panel + p), step, w[p]);
#pragma GCC unroll 8
          for (int l = 0; l < 4; ++l) {
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
              const Floats xr = Splat(x[int64_t{r} * a.k + 4 * step + l]);
#pragma GCC unroll 8
              for (int p = 0; p < kPanels; ++p) sum[r][p] = Fma(w[p][l], xr, sum[r][p]);
            }
          }
        }
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) {
          const Floats scale = W::Scale(at, panel + p, part);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) total[r][p] = Fma(scale, sum[r][p], total[r][p]);
        }
      }
      if constexpr (W::kHasMinimum) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const float* row = x + int64_t{r} * a.k;
          const Floats sum = Splat(Sum(Load(row) + Load(row + 16)));
#pragma GCC unroll 8
          for (int p = 0; p < kPanels; ++p) total[r][p] = Fnma(W::Minimum(at, panel + p), sum, total[r][p]);
        }
      }
    }
    StoreSums(a, pass, panel, total);
  }
};

}  // namespace

void LinearKExact(const LinearArgs& args) {
  switch (args.type) {
    case Element::kQ4K:
      return ForEachTile<ExactK<KWeights<CodesQ4K>>>(args);
    case Element::kQ5K:
      return ForEachTile<ExactK<KWeights<CodesQ5K>>>(args);
    case Element::kQ6K:
      return ForEachTile<ExactK<KWeights<CodesQ6K>>>(args);
    default:
      return;  // linear_exact.cc has the others
  }
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
