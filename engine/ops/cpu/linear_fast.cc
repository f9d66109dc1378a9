// y = x W^T over packed groups with x rounded: dot products of bytes, summed as integers, or of BF16 pairs (kernels.h,
// LinearArgs). Compiled once more for each instruction set that has them as instructions (vec_*.h, DotBytes, DotPairs);
// the bits are the same with and without.

#include <cstddef>
#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/linear_bytes.h"
#include "engine/ops/cpu/linear_tiles.h"
#include "engine/ops/cpu/vec.h"
#include "engine/ops/cpu/vec_math.h"

namespace ebb::cpu::EBB_KERNEL_ISA {
namespace {

template <typename W>
struct OfBytes {
  template <int kRows, int kPanels>
  static void Tile(const LinearArgs& a, const Pass& pass, int panel) {
    constexpr int64_t kChunkBytes = ChunkBytes(W::kType);
    constexpr int64_t kPanelBytes = (kChunkBytes - 64) / kGroupPanels;
    const int64_t chunks = (a.k + kChunk - 1) / kChunk;
    const int64_t blocks = (chunks + kBlockChunks - 1) / kBlockChunks;
    Floats total[kRows][kPanels];
    LoadSums(a, pass, panel, total);
    Asking<kChunkBytes> asking(a, pass, panel);
    const std::byte* weights = a.weights + pass.first * kChunkBytes;
    const int8_t* x = a.rounded.bytes + (pass.row * chunks + pass.first) * kChunk;
    const int32_t* offsets = a.rounded.offsets + pass.row * chunks;
    const float* scales = a.rounded.scales + pass.row * blocks;
    for (int32_t block = pass.first; block < pass.last; block += kBlockChunks) {
      Floats part[kRows][kPanels];
      Clear(part);
      const int32_t end = pass.last - block < kBlockChunks ? pass.last : block + kBlockChunks;
      for (int32_t chunk = block; chunk < end; ++chunk, weights += kChunkBytes, x += kChunk) {
        asking.Ask();
        Ints sum[kRows][kPanels];
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
          for (int p = 0; p < kPanels; ++p) sum[r][p] = DotStart(offsets[r * chunks + chunk]);
        }
#pragma GCC unroll 8
        for (int step = 0; step < 8; ++step) {
          Ints w[kPanels];
#pragma GCC unroll 8
          for (int p = 0; p < kPanels; ++p) w[p] = W::Read(weights + 64 + (panel + p) * kPanelBytes, step);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            const int32_t four = LoadWord(x + r * chunks * kChunk + 4 * step);
#pragma GCC unroll 8
            for (int p = 0; p < kPanels; ++p) sum[r][p] = DotBytes(sum[r][p], w[p], four);
          }
        }
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) {
          const Floats scale = W::Scale(weights, panel + p);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) part[r][p] = Fma(ToFloats(sum[r][p]), scale, part[r][p]);
        }
      }
      AddScaled(part, scales + block / kBlockChunks, blocks, total);
    }
    StoreSums(a, pass, panel, total);
  }
};

struct OfPairs {
  template <int kRows, int kPanels>
  static void Tile(const LinearArgs& a, const Pass& pass, int panel) {
    constexpr int64_t kChunkBytes = ChunkBytes(Element::kBf16);
    const int64_t chunks = (a.k + kChunk - 1) / kChunk;
    Floats sum[kRows][kPanels];
    LoadSums(a, pass, panel, sum);
    Asking<kChunkBytes> asking(a, pass, panel);
    const std::byte* weights = a.weights + pass.first * kChunkBytes;
    const float* x = a.rounded.pairs + (pass.row * chunks + pass.first) * kChunk;
    for (int32_t chunk = pass.first; chunk < pass.last; ++chunk, weights += kChunkBytes, x += kChunk) {
      asking.Ask();
#pragma GCC unroll 4
      for (int step = 0; step < kChunk / 2; ++step) {
        Ints w[kPanels];
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) w[p] = LoadBytes(weights + (panel + p) * 1024 + 64 * step);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
          for (int p = 0; p < kPanels; ++p) sum[r][p] = DotPairs(sum[r][p], w[p], x + r * chunks * kChunk, step);
        }
      }
    }
    StoreSums(a, pass, panel, sum);
  }
};

}  // namespace

void RoundToBf16(const float* x, int32_t k, const RoundedRows& row) {
  const int32_t padded = (k + kChunk - 1) / kChunk * kChunk;
  for (int32_t i = 0; i < padded; i += 16) {
    const int32_t left = k - i;
    const Floats a = left >= 16 ? Load(x + i) : left > 0 ? LoadFirst(x + i, left) : Zero();
    StoreForPairs(RoundBf16(a), i % kChunk, row.pairs + i / kChunk * kChunk);
  }
}

void LinearFast(const LinearArgs& args) {
  switch (args.type) {
    case Element::kQ8:
      return ForEachTile<OfBytes<BytesQ8>>(args);
    case Element::kQ4:
      return ForEachTile<OfBytes<BytesQ4>>(args);
    case Element::kBf16:
      return ForEachTile<OfPairs>(args);
    case Element::kQ4K:
    case Element::kQ5K:
    case Element::kQ6K:
      return LinearKFast(args);
    default:
      return;  // F32 and F16 have exact arithmetic only (IsRounded)
  }
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
