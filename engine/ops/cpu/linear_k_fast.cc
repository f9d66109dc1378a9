// y = x W^T over packed groups of the K types with x rounded: dot products of bytes, summed as integers (kernels.h,
// LinearArgs). Compiled once more for each instruction set that has them as instructions, as linear_fast.cc.
//
// A code of b bits, shifted to the top of its byte, is 2^(8-b) (code - 2^(b-1)) + 128: what a dot product of bytes
// takes. So with s = d * scale and h = 2^(b-1), the products of a chunk are
//
//   sum of (s code - dmin minimum) x = s * sum of (code - h) x + (h s - dmin minimum) * sum of x
//
// of which Q6_K, whose minimum is h s, has the first term only.

#include <cstddef>
#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/linear_k.h"
#include "engine/ops/cpu/linear_tiles.h"
#include "engine/ops/cpu/vec.h"

namespace ebb::cpu::EBB_KERNEL_ISA {
namespace {

static_assert(kSuperChunks % kBlockChunks == 0);

template <typename W>
struct OfCodes {
  template <int kRows, int kPanels>
  static void Tile(const LinearArgs& a, const Pass& pass, int panel) {
    constexpr int kPartSteps = kSteps / W::kParts;
    const int64_t chunks = a.k / kChunk;
    const int64_t blocks = chunks / kBlockChunks;
    Floats total[kRows][kPanels];
    LoadSums(a, pass, panel, total);
    Asking<ChunkBytes(W::kType)> asking(a, pass, panel);
    const int8_t* x = a.rounded.bytes + (pass.row * chunks + pass.first) * kChunk;
    const int32_t* offsets = a.rounded.offsets + pass.row * chunks;
    const int32_t* halves = a.rounded.halves + pass.row * chunks;
    const float* scales = a.rounded.scales + pass.row * blocks;
    for (int32_t block = pass.first; block < pass.last; block += kBlockChunks) {
      Floats part[kRows][kPanels];
      Clear(part);
      for (int32_t chunk = block; chunk < block + kBlockChunks; ++chunk, x += kChunk) {
        asking.Ask();
        const KPlace at = W::At(a.weights, chunk);
#pragma GCC unroll 2
        for (int of = 0; of < W::kParts; ++of) {
          Ints sum[kRows][kPanels];
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            const int64_t index = r * chunks + chunk;
            const int32_t whole = offsets[index];
            const int32_t start = W::kParts == 1 ? whole : of == 0 ? halves[index] : whole - halves[index];
#pragma GCC unroll 8
            for (int p = 0; p < kPanels; ++p) sum[r][p] = DotStart(start);
          }
#pragma GCC unroll 8
          for (int i = 0; i < kPartSteps; ++i) {
            const int step = of * kPartSteps + i;
            Ints w[kPanels];
#pragma GCC unroll 8
            for (int p = 0; p < kPanels; ++p) w[p] = W::Bytes(at, panel + p, step);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
              const int32_t four = LoadWord(x + r * chunks * kChunk + 4 * step);
#pragma GCC unroll 8
              for (int p = 0; p < kPanels; ++p) sum[r][p] = DotBytes(sum[r][p], w[p], four);
            }
          }
#pragma GCC unroll 8
          for (int p = 0; p < kPanels; ++p) {
            const Floats unit = W::Unit(at, panel + p, of);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) part[r][p] = Fma(ToFloats(sum[r][p]), unit, part[r][p]);
          }
        }
        if constexpr (W::kHasMinimum) {
#pragma GCC unroll 8
          for (int p = 0; p < kPanels; ++p) {
            const Floats middle = W::Middle(at, panel + p);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {  // an offset is -128 times the sum of x
              const Floats offset = Splat(static_cast<float>(offsets[r * chunks + chunk]));
              part[r][p] = Fma(offset, middle, part[r][p]);
            }
          }
        }
      }
      AddScaled(part, scales + block / kBlockChunks, blocks, total);
    }
    StoreSums(a, pass, panel, total);
  }
};

}  // namespace

void LinearKFast(const LinearArgs& args) {
  switch (args.type) {
    case Element::kQ4K:
      return ForEachTile<OfCodes<KWeights<CodesQ4K>>>(args);
    case Element::kQ5K:
      return ForEachTile<OfCodes<KWeights<CodesQ5K>>>(args);
    case Element::kQ6K:
      return ForEachTile<OfCodes<KWeights<CodesQ6K>>>(args);
    default:
      return;  // linear_fast.cc has the others
  }
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
