// Moves the tokens that sit past the slots that a session is to have into the lowest holes before them, with all that
// lies at their slots. Block (l, i): lane l of session i; of sessions whose tokens are in their place nothing is read.
//
//   slots 6, spread 10     slot     0  1  2  3  4  5 | 6  7  8  9
//                          token    7 -1  3 -1 -1  5 | 9 -1  8 -1
//                          scratch  6 8 | 1 3                        from | to, both ascending
//                          token    7  9  3  8 -1  5 |-1 -1 -1 -1
//
// The j-th of those that move takes the j-th hole, as SlotMap::Compact has it (engine/cache/slot_map.h): who sits where
// follows from the lane alone. Both lists are made as Place finds free slots, by running sums over the slots; then all
// threads go through the vectors of all rows that move, K's and V's, neighbours through neighbours.

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 128;

// The first slots of begin .. end - 1, `most` at the most, of which is(slot), into `list`; how many they are, or more.
template <typename Is>
EBB_DEVICE int32_t List(int32_t begin, int32_t end, int32_t most, const Is& is, int32_t* list) {
  int32_t found = 0;
  for (int32_t first = begin; first < end && found < most; first += kThreads) {
    const int32_t slot = first + ThreadIndex();
    const bool is_one = slot < end && is(slot);
    const Sums sums = SumBlock<kThreads>(is_one ? 1 : 0);
    const int32_t at = found + sums.before;
    if (is_one && at < most) list[at] = slot;
    found += sums.all;
  }
  return found;
}

template <typename E>
EBB_KERNEL(kThreads)
FillHolesOfLane(FillHolesArgs a) {
  const SessionView& session = a.cache.sessions[BlockY()];
  if (session.spread <= session.slots) return;
  const int32_t lane = BlockX();
  const int64_t first = int64_t{lane} * session.capacity;
  int32_t* const token = session.token + first;
  int32_t* const position = session.position + first;
  int32_t* const from = session.scratch + first;
  const int32_t moves = List(
      session.slots, session.spread, session.spread, [=](int32_t s) { return token[s] >= 0; }, from);
  int32_t* const to = from + moves;
  List(
      0, session.slots, moves, [=](int32_t s) { return token[s] < 0; }, to);
  Barrier();  // both are there for all, and nobody looks at tokens any more

  const int32_t vectors = a.cache.arena.head_dim * static_cast<int32_t>(sizeof(typename E::Type)) / 16;
  for (int32_t i = ThreadIndex(); i < moves * vectors; i += kThreads) {
    const int32_t move = i / vectors;
    const SlotRows<E> old = RowsOf<E>(a.cache.arena, session, lane, from[move]);
    const SlotRows<E> now = RowsOf<E>(a.cache.arena, session, lane, to[move]);
    const int32_t vector = i % vectors;
    reinterpret_cast<Vector16*>(now.k)[vector] = reinterpret_cast<const Vector16*>(old.k)[vector];
    reinterpret_cast<Vector16*>(now.v)[vector] = reinterpret_cast<const Vector16*>(old.v)[vector];
    if constexpr (E::kScaled) {
      if (vector > 0) continue;
      now.scales[0] = old.scales[0];
      now.scales[kPageSlots] = old.scales[kPageSlots];
    }
  }
  for (int32_t move = ThreadIndex(); move < moves; move += kThreads) {
    token[to[move]] = token[from[move]];
    position[to[move]] = position[from[move]];
    token[from[move]] = position[from[move]] = -1;
    for (int32_t track = 0; track < session.tracks; ++track) {
      float* const score = TrackOf(session, lane, track);
      score[to[move]] = score[from[move]];
    }
  }
}

}  // namespace

void LaunchFillHoles(const FillHolesArgs& args, Stream stream) {
  const Grid grid = {args.cache.lanes, args.cache.session_count};
  WithElement(args.cache.arena.type,
              [&](auto element) { Launch(FillHolesOfLane<decltype(element)>, grid, kThreads, args, stream); });
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
