// Root-mean-square norms of the query heads and the KV heads of a row, each head by itself, where they lie. A team a
// head, four teams a block; thread i of a team takes vectors i and i + 32 of four components.
//
//   row t of x   | query head 0 | 1 | ... | H G - 1 | KV head 0 | ... | H - 1 | values, which nobody reads
//   weights      of query heads [d]                 | of KV heads [d]
//   head         | 0-3 | 4-7 | ... | 124-127 | 128-131 | ...      thread 0, 1, ... 31, 0, ...
//
// A head is as short as rms_norm's rows are long: a block of threads for each would leave most of them idle, and of a
// prompt there are a hundred thousand heads.

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 128;
constexpr int32_t kTeams = kThreads / kTeam;
constexpr int32_t kHeld = kHeadDimMax / 4 / kTeam;  // vectors of a thread

EBB_KERNEL(kThreads) NormHead(NormHeadsArgs a) {
  const int64_t heads = a.query_heads + a.kv_heads;
  const int64_t own = int64_t{BlockX()} * kTeams + ThreadIndex() / kTeam;
  const bool is_head = own < a.rows * heads;
  const int64_t of = is_head ? own : 0;  // all threads of a warp meet
  const auto head = static_cast<int32_t>(of % heads);
  const int32_t vectors = a.head_dim / 4;
  const int32_t member = ThreadIndex() % kTeam;
  Vector16* const x = reinterpret_cast<Vector16*>(a.x + of / heads * a.stride + int64_t{head} * a.head_dim);
  const Vector16* const weight = reinterpret_cast<const Vector16*>(head < a.query_heads ? a.query_weight : a.kv_weight);
  Vector16 held[kHeld] = {};
  Vector16 weights[kHeld] = {};
  EBB_UNROLL
  for (int32_t j = 0; j < kHeld; ++j) {
    const int32_t i = member + j * kTeam;
    if (i < vectors) weights[j] = weight[i];
  }
  WaitForEarlier();
  LetLaterBegin();
  float squares = 0;
  EBB_UNROLL
  for (int32_t j = 0; j < kHeld; ++j) {
    const int32_t i = member + j * kTeam;
    if (i < vectors) held[j] = x[i];
    EBB_UNROLL
    for (int32_t c = 0; c < 4; ++c) squares = MultiplyAdd(FloatOf(held[j].word[c]), FloatOf(held[j].word[c]), squares);
  }
  squares = ReduceTeam(squares, Plus());
  const float scale = InverseSqrt(squares / static_cast<float>(a.head_dim) + a.eps);
  EBB_UNROLL
  for (int32_t j = 0; j < kHeld; ++j) {
    const int32_t i = member + j * kTeam;
    if (!is_head || i >= vectors) continue;
    Vector16 y;
    EBB_UNROLL
    for (int32_t c = 0; c < 4; ++c) {
      y.word[c] = BitsOf(FloatOf(held[j].word[c]) * scale * FloatOf(weights[j].word[c]));
    }
    x[i] = y;
  }
}

}  // namespace

void LaunchNormHeads(const NormHeadsArgs& args, Stream stream) {
  const int64_t heads = int64_t{args.rows} * (args.query_heads + args.kv_heads);
  LaunchEarly(NormHead, {(heads + kTeams - 1) / kTeams}, kThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
