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
// Where to is found step by step, and each step waits for memory: the row's session, the token's slot, the slot's page.
// So all that does not depend on it is asked for before, and steps are taken together where they can be: of the session
// it is guessed that it is the row's own, as in a step of decoding, and checked; and a team reads the lane's first
// pages at once while it waits for the slot.
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
constexpr int32_t kHeld = kHeadDimMax / kThreads;  // components of a thread

// A thread's components of a row; zeros past its end.
struct Held {
  float of[kHeld];
};
EBB_DEVICE Held Hold(const float* x, int32_t d) {
  Held held = {};
  EBB_UNROLL
  for (int32_t i = 0; i < kHeld; ++i) {
    if (ThreadIndex() + i * kThreads < d) held.of[i] = x[ThreadIndex() + i * kThreads];
  }
  return held;
}

// What a row is multiplied by so that the largest becomes E::kLargest, and what its elements are to be multiplied by.
struct Units {
  float units, scale;
};
template <typename E>
EBB_DEVICE Units UnitsOf(const Held& x) {
  float largest = 0, doubt = 0;  // not a number where anything is not finite
  EBB_UNROLL
  for (int32_t i = 0; i < kHeld; ++i) {
    largest = Larger(FloatOf(BitsOf(x.of[i]) & 0x7FFFFFFFU), largest);
    doubt = MultiplyAdd(x.of[i], 0, doubt);
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

// Of a session what rows want: read at once, and before it is known that it is the row's. A plain read would be put off
// until then.
struct Seat {
  const int32_t* placed;
  const int32_t* page;
  float* queries;
  int32_t block_max, pages_per_lane, first_row, tokens;
  ScoreRule rule;

  EBB_DEVICE bool Has(int32_t row) const { return row >= first_row && row < first_row + tokens; }
};
EBB_DEVICE Seat SeatOf(const SessionView& session) {
  return {.placed = ReadOnce(&session.placed),
          .page = ReadOnce(&session.page),
          .queries = ReadOnce(&session.queries),
          .block_max = ReadOnce(&session.block_max),
          .pages_per_lane = ReadOnce(&session.pages_per_lane),
          .first_row = ReadOnce(&session.first_row),
          .tokens = ReadOnce(&session.tokens),
          .rule = ReadOnce(&session.rule)};
}

template <typename E>
EBB_KERNEL(kThreads)
StoreRow(StoreArgs a) {
  const int32_t row = BlockX();
  const int32_t head = BlockY();
  const int32_t d = a.cache.arena.head_dim;
  WaitForEarlier();
  LetLaterBegin();
  const Held k = Hold(a.k + row * a.stride + int64_t{head} * d, d);
  const Held v = Hold(a.v + row * a.stride + int64_t{head} * d, d);
  int32_t own = row < a.cache.session_count ? row : a.cache.session_count - 1;
  if (own < 0) own = a.cache.row_session[row];
  Seat seat = SeatOf(a.cache.sessions[own]);
  if (!seat.Has(row)) {
    own = a.cache.row_session[row];
    seat = SeatOf(a.cache.sessions[own]);
  }
  const int32_t lane = a.layer * a.cache.kv_heads + head;
  const int32_t* const pages = seat.page + int64_t{lane} * seat.pages_per_lane;
  const int32_t member = ThreadIndex() % kTeam;
  const int32_t slot = seat.placed[int64_t{lane} * seat.block_max + row - seat.first_row];
  const int32_t first_pages = member < seat.pages_per_lane ? pages[member] : 0;
  if (a.group > 0 && row - seat.first_row == seat.tokens - 1) {
    const int64_t queries = int64_t{a.group} * d;
    const Vector16* const q = reinterpret_cast<const Vector16*>(a.q + row * a.stride + head * queries);
    Vector16* const newest = reinterpret_cast<Vector16*>(seat.queries + lane * queries);
    for (int32_t c = ThreadIndex(); c < queries / 4; c += kThreads) newest[c] = q[c];
  }
  const int32_t at = slot / kPageSlots;
  int32_t page = Shuffle(first_pages, at % kTeam);
  if (at >= kTeam) page = pages[at];
  const SlotRows<E> to = RowsIn<E>(a.cache.arena, page, slot);

  float scale = 1;  // of K
  Units of_k = {}, of_v = {};
  if constexpr (E::kScaled) {
    of_k = UnitsOf<E>(k);
    of_v = UnitsOf<E>(v);
    scale = of_k.scale;
    if (ThreadIndex() == 0) {
      to.scales[0] = of_k.scale;
      to.scales[kPageSlots] = of_v.scale;
    }
  }
  EBB_UNROLL
  for (int32_t i = 0; i < kHeld; ++i) {
    const int32_t c = ThreadIndex() + i * kThreads;
    if (c >= d) continue;
    if constexpr (E::kScaled) {
      to.k[c] = E::Convert(k.of[i], of_k.units);
      to.v[c] = E::Convert(v.of[i], of_v.units);
    } else {
      to.k[c] = E::Convert(k.of[i]);
      to.v[c] = E::Convert(v.of[i]);
    }
  }
  if (seat.rule != ScoreRule::kShortKeys && seat.rule != ScoreRule::kLongKeys) return;
  const float length = LengthOf<E>(to, scale, d);
  if (ThreadIndex() == 0) TrackOf(a.cache.sessions[own], lane, 0)[slot] = length;
}

}  // namespace

void LaunchStore(const StoreArgs& args, Stream stream) {
  const Grid grid = {args.cache.rows, args.cache.kv_heads};
  WithElement(args.cache.arena.type,
              [&](auto element) { LaunchEarly(StoreRow<decltype(element)>, grid, kThreads, args, stream); });
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
