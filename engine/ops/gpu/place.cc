// Seats the step's tokens in the lowest-numbered free slots of a lane. Block (l, i): lanes l n .. l n + n - 1 of
// session i, n as many as leave no block without a place at once.
//
// Where one token comes and one slot is free, as in every decode step of a lane that is full or still grows, it is the
// last one or that which Evict emptied and left in `placed`. Thread j looks there for lane j of the block; what it
// finds free is the only one, whatever `placed` held.
//
// Else all threads of the block search the lane, four neighbouring slots each, round after round (select.h), until all
// tokens sit: what lies before a thread is what threads before it have.
//
//   token    | 7 -1  3  4 | -1 -1  5  6 | 9  8 -1  2 |      three threads; -1 is free
//   free       1            2             1
//   before     0            1             3                 so the second thread seats tokens 1 and 2 of the step

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/reduce.h"
#include "engine/ops/gpu/select.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 128;

struct Lanes {
  CacheArgs cache = {};
  int32_t of_block = 0;  // at most kThreads
};

// The step's token number `index`.
EBB_DEVICE void Seat(const SessionView& session, int32_t lane, int32_t slot, int32_t index) {
  const int64_t at = int64_t{lane} * session.capacity + slot;
  const int32_t token = session.first_token + index;
  const int32_t position = session.compacted != 0 ? session.live + index : token;
  int32_t* const placed = session.placed + int64_t{lane} * session.block_max + index;
  const int32_t tracks = session.tracks;
  float* const score = TrackOf(session, lane, 0) + slot;
  const int32_t capacity = session.capacity;
  int32_t* const position_at = session.position + at;
  session.token[at] = token;
  *position_at = position;
  *placed = slot;
  for (int32_t track = 0; track < tracks; ++track) score[int64_t{track} * capacity] = 0;
}

// REQUIRES: one slot is free. It, or -1 where it is neither of those that are likely.
EBB_DEVICE int32_t GuessFree(const SessionView& session, int32_t lane) {
  const int32_t* const token = session.token + int64_t{lane} * session.capacity;
  const int32_t last = session.slots - 1;
  const int32_t emptied = session.placed[int64_t{lane} * session.block_max];
  if (token[last] < 0) return last;
  return emptied >= 0 && emptied < last && token[emptied] < 0 ? emptied : -1;
}

template <bool kVectors>
EBB_DEVICE void Search(const SessionView& session, int32_t lane) {
  constexpr int32_t kAtOnce = 3;  // rounds on their way from memory
  const int32_t* const token = session.token + int64_t{lane} * session.capacity;
  const int32_t slots = session.slots;
  const int32_t tokens = session.tokens;
  int32_t seated = 0;
  for (int32_t round = 0; seated < tokens && round * 4 * kThreads < slots; round += kAtOnce) {
    Four<int32_t> four[kAtOnce];
    EBB_UNROLL
    for (int32_t j = 0; j < kAtOnce; ++j) four[j] = ReadFour<kVectors>(token, FourAt<kThreads>(round + j), slots, 0);
    EBB_UNROLL
    for (int32_t j = 0; j < kAtOnce; ++j) {
      if (seated >= tokens) continue;
      int32_t free = 0;
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) free += four[j].of[i] < 0 ? 1 : 0;
      const Sums sums = SumBlock<kThreads>(free);
      int32_t index = seated + sums.before;
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        if (four[j].of[i] >= 0) continue;
        if (index < tokens) Seat(session, lane, FourAt<kThreads>(round + j) + i, index);
        ++index;
      }
      seated += sums.all;
    }
  }
}

EBB_KERNEL(kThreads) PlaceTokens(Lanes a) {
  EBB_SHARED int32_t sits[kThreads];  // of the block's lanes
  const SessionView& session = a.cache.sessions[BlockY()];
  const int32_t begin = BlockX() * a.of_block;
  const int32_t count = begin + a.of_block < a.cache.lanes ? a.of_block : a.cache.lanes - begin;
  const bool is_one = session.tokens == 1 && session.slots - session.live == 1;
  const bool has_vectors = HasVectors(session);
  if (is_one) {
    int32_t slot = -1;
    if (ThreadIndex() < count) slot = GuessFree(session, begin + ThreadIndex());
    if (slot >= 0) Seat(session, begin + ThreadIndex(), slot, 0);
    sits[ThreadIndex()] = slot >= 0 ? 1 : 0;
    Barrier();
  }
  for (int32_t i = 0; i < count; ++i) {
    if (is_one && sits[i] != 0) continue;
    if (has_vectors) {
      Search<true>(session, begin + i);
    } else {
      Search<false>(session, begin + i);
    }
  }
}

}  // namespace

void LaunchPlace(const PlaceArgs& args, Stream stream) {
  const int32_t each = LanesOfBlock(args.cache);
  const Lanes lanes = {.cache = args.cache, .of_block = each < kThreads ? each : kThreads};
  const int32_t blocks = each == 0 ? 0 : (args.cache.lanes + lanes.of_block - 1) / lanes.of_block;
  Launch(PlaceTokens, {blocks, args.cache.session_count}, kThreads, lanes, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
