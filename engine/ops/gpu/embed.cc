// Rows of a table as floats: of the embedding, by token, and of learned positions, which are added to it. Block (t, y):
// columns 4096 y .. of token t, sixteen a thread.
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

// Calls use(four numbers of row `row` of the table, four of row BlockX of x), of the thread's columns.
template <Element kType, typename Use>
EBB_DEVICE void ReadColumns(const Matrix& table, int32_t row, float* rows, const Use& use) {
  const int32_t column = (BlockY() * kThreads + ThreadIndex()) * kColumns;
  if (column >= table.cols) return;
  float read[kColumns];
  Weights<kType>::Read(table, row, column, read);
  Vector16* const x = reinterpret_cast<Vector16*>(rows + int64_t{BlockX()} * table.cols + column);
  EBB_UNROLL
  for (int32_t i = 0; i < kColumns / 4; ++i) use(read + 4 * i, x[i]);
}

template <Element kType>
EBB_KERNEL(kThreads)
EmbedRow(EmbedArgs a) {
  ReadColumns<kType>(a.table, a.tokens[BlockX()], a.x, [&](const float* read, Vector16& x) {
    Vector16 four;
    EBB_UNROLL
    for (int32_t j = 0; j < 4; ++j) four.word[j] = BitsOf(a.scale * read[j]);
    x = four;
  });
}

template <Element kType>
EBB_KERNEL(kThreads)
AddPositionRow(EmbedPositionsArgs a) {
  const SessionView& session = a.cache.sessions[a.cache.row_session[BlockX()]];
  const int32_t slot = session.placed[BlockX() - session.first_row];
  ReadColumns<kType>(a.table, session.position[slot], a.x, [&](const float* read, Vector16& x) {
    Vector16 four = x;
    EBB_UNROLL
    for (int32_t j = 0; j < 4; ++j) four.word[j] = BitsOf(FloatOf(four.word[j]) + read[j]);
    x = four;
  });
}

template <Element kType>
struct Of {
  static constexpr Element kElement = kType;
};
// launch(Of<the type of a table of weights>()).
template <typename F>
void WithTable(const Matrix& table, const F& launch) {
  switch (table.type) {
    case Element::kF32:
      return launch(Of<Element::kF32>());
    case Element::kF16:
      return launch(Of<Element::kF16>());
    case Element::kBf16:
      return launch(Of<Element::kBf16>());
    case Element::kQ8:
      return launch(Of<Element::kQ8>());
    case Element::kQ4:
      return launch(Of<Element::kQ4>());
    case Element::kQ4K:
      return launch(Of<Element::kQ4K>());
    case Element::kQ5K:
      return launch(Of<Element::kQ5K>());
    case Element::kQ6K:
      return launch(Of<Element::kQ6K>());
    case Element::kFp8:
      return;  // no weights
  }
}

Grid GridOf(const Matrix& table, int32_t rows) { return {rows, (table.cols / kColumns + kThreads - 1) / kThreads}; }

}  // namespace

void LaunchEmbed(const EmbedArgs& args, Stream stream) {
  WithTable(args.table, [&](auto of) {
    Launch(EmbedRow<decltype(of)::kElement>, GridOf(args.table, args.rows), kThreads, args, stream);
  });
}

void LaunchEmbedPositions(const EmbedPositionsArgs& args, Stream stream) {
  WithTable(args.table, [&](auto of) {
    Launch(AddPositionRow<decltype(of)::kElement>, GridOf(args.table, args.cache.rows), kThreads, args, stream);
  });
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
