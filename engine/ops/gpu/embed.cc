// Rows of the embedding table as floats. Block (t, y): columns 4096 y .. of token t, sixteen a thread.
//
//   table [vocab, dim], packed (weights.h)   row tokens[t]:  | 16 columns | 16 columns | ... |
//   x     [T, dim] floats                    row t:          | thread 0   | thread 1   | ... |  256 to a block

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"
#include "engine/ops/gpu/weights.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;

template <Element kType>
EBB_KERNEL(kThreads)
EmbedRow(EmbedArgs a) {
  const int32_t column = (BlockY() * kThreads + ThreadIndex()) * kColumns;
  if (column >= a.table.cols) return;
  float row[kColumns];
  Weights<kType>::Read(a.table, a.tokens[BlockX()], column, row);
  Vector16* const x = reinterpret_cast<Vector16*>(a.x + int64_t{BlockX()} * a.table.cols + column);
  EBB_UNROLL
  for (int32_t i = 0; i < kColumns / 4; ++i) {
    Vector16 four;
    EBB_UNROLL
    for (int32_t j = 0; j < 4; ++j) four.word[j] = BitsOf(a.scale * row[4 * i + j]);
    x[i] = four;
  }
}

}  // namespace

void LaunchEmbed(const EmbedArgs& args, Stream stream) {
  const Grid grid = {args.rows, (args.table.cols / kColumns + kThreads - 1) / kThreads};
  switch (args.table.type) {
    case Element::kF32:
      return Launch(EmbedRow<Element::kF32>, grid, kThreads, args, stream);
    case Element::kF16:
      return Launch(EmbedRow<Element::kF16>, grid, kThreads, args, stream);
    case Element::kBf16:
      return Launch(EmbedRow<Element::kBf16>, grid, kThreads, args, stream);
    case Element::kQ8:
      return Launch(EmbedRow<Element::kQ8>, grid, kThreads, args, stream);
    case Element::kQ4:
      return Launch(EmbedRow<Element::kQ4>, grid, kThreads, args, stream);
    case Element::kQ4K:
      return Launch(EmbedRow<Element::kQ4K>, grid, kThreads, args, stream);
    case Element::kQ5K:
      return Launch(EmbedRow<Element::kQ5K>, grid, kThreads, args, stream);
    case Element::kQ6K:
      return Launch(EmbedRow<Element::kQ6K>, grid, kThreads, args, stream);
    case Element::kFp8:
      return;  // no weights
  }
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
