// K and V of the step's tokens into the slots where they were placed, as the cache's element type; of a session's last
// row the queries, too. Block (t, h): KV head h of row t; thread c takes components c, c + 128, ...
//
//   k, v row t of the step [d] floats            | 0 | 1 | ... | 127 | 128 | ... |    component c: thread c % 128
//   page slot / 64 (kernels.h, Arena)            K [64][d]  ...  row slot % 64  ...   the same thread
//                                                V [64][d]  ...  row slot % 64  ...   the same thread
//   queries [lanes][G][d] of the session         | g, c |                             thread (g d + c) % 128
//
// Two rows of d elements are written, and nothing else of the cache is touched.
//
// Where lengths of keys are the session's scores, they are read from what was written.
//
// As bytes, the largest component of a row becomes the largest of its type, and a row that is not finite has a scale
// that is not a number: bit for bit what the CPU keeps of the same row (ops/cpu/store.cc).

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/numbers.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 128;

// What a row is multiplied by so that the largest becomes E::kLargest, and what its elements are to be multiplied by.
struct Units {
  float units, scale;
};
template <typename E>
EBB_DEVICE Units UnitsOf(const float* x, int32_t d) {
  float largest = 0, doubt = 0;  // not a number where anything is not finite
  for (int32_t c = ThreadIndex(); c < d; c += kThreads) {
    largest = Larger(FloatOf(BitsOf(x[c]) & 0x7FFFFFFFU), largest);
    doubt = MultiplyAdd(x[c], 0, doubt);
  }
  largest = ReduceBlock<kThreads>(largest, Largest());
  doubt = ReduceBlock<kThreads>(doubt, Plus());
  return {largest > 0x1p-100F ? E::kLargest / largest : 0.0F,  // below, the quotient could overflow
          largest * E::kUnit + doubt};
}

// |k| as it rests, by all threads of a block, each of which reads what it wrote.
template <typename E>
EBB_DEVICE float LengthOf(const SlotRows<E>& row, float scale, int32_t d) {
  double squares = 0;
  for (int32_t c = ThreadIndex(); c < d; c += kThreads) {
    const float x = E::Read(row.k[c]) * scale;
    squares += static_cast<double>(x) * x;
  }
  return static_cast<float>(Sqrt(ReduceBlock<kThreads>(squares, Plus())));
}

template <typename E>
EBB_KERNEL(kThreads)
StoreRow(StoreArgs a) {
  const int32_t row = BlockX();
  const int32_t head = BlockY();
  const SessionView& session = a.cache.sessions[a.cache.row_session[row]];
  const int32_t lane = a.layer * a.cache.kv_heads + head;
  const int32_t slot = session.placed[int64_t{lane} * session.block_max + row - session.first_row];
  const SlotRows<E> to = RowsOf<E>(a.cache.arena, session, lane, slot);
  const int32_t d = a.cache.arena.head_dim;
  const float* const k = a.k + row * a.stride + int64_t{head} * d;
  const float* const v = a.v + row * a.stride + int64_t{head} * d;
  if (a.group > 0 && row - session.first_row == session.tokens - 1) {
    const int64_t queries = int64_t{a.group} * d;
    const float* const q = a.q + row * a.stride + head * queries;
    float* const newest = session.queries + lane * queries;
    for (int64_t c = ThreadIndex(); c < queries; c += kThreads) newest[c] = q[c];
  }
  float scale = 1;  // of K
  if constexpr (E::kScaled) {
    const Units of_k = UnitsOf<E>(k, d);
    const Units of_v = UnitsOf<E>(v, d);
    for (int32_t c = ThreadIndex(); c < d; c += kThreads) {
      to.k[c] = E::Convert(k[c], of_k.units);
      to.v[c] = E::Convert(v[c], of_v.units);
    }
    scale = of_k.scale;
    if (ThreadIndex() == 0) {
      to.scales[0] = of_k.scale;
      to.scales[kPageSlots] = of_v.scale;
    }
  } else {
    for (int32_t c = ThreadIndex(); c < d; c += kThreads) {
      to.k[c] = E::Convert(k[c]);
      to.v[c] = E::Convert(v[c]);
    }
  }
  if (session.rule != ScoreRule::kShortKeys && session.rule != ScoreRule::kLongKeys) return;
  const float length = LengthOf<E>(to, scale, d);
  if (ThreadIndex() == 0) TrackOf(session, lane, 0)[slot] = length;
}

}  // namespace

void LaunchStore(const StoreArgs& args, Stream stream) {
  const Grid grid = {args.cache.rows, args.cache.kv_heads};
  WithElement(args.cache.arena.type,
              [&](auto element) { Launch(StoreRow<decltype(element)>, grid, kThreads, args, stream); });
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
