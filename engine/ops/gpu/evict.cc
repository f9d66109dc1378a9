// Who leaves a lane, and what that changes: of all lanes of all layers and sessions at once, after the step. The
// host asked for a number and hears of no slot: it knows how many live by arithmetic.
//
// Block (l, i): lanes l n .. l n + n - 1 of session i, n as many as leave no block without a place at once; of long
// lanes block l: lane l of all sessions. select.h finds who leaves; one victim, which is every decode step's, takes one
// pass over the slots, and while a block compares what its threads found in one lane, the next lane's slots are on
// their way. Who left is told where somebody asks, with whatever else the step yields.
//
// The slot of one victim is where the lane's next token goes, which place.cc finds in `placed`: what lay there is of
// the step that is over.
//
// Compacted positions then close up: position p loses the number of freed ones below p. These are bits in shared
// memory, of as many positions at once as there are bits.
//
//   token, position [lanes, capacity]   four neighbouring slots a thread (select.h); -1, -1: left
//   left            [lanes, drop]       tokens, in the order of their slots: where a running sum over slots puts them

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/reduce.h"
#include "engine/ops/gpu/select.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

// Few threads for one victim and for short lanes, of which there are thousands; of long lanes that many leave, as many
// as keep a rank of every slot. The host does not say which sessions have such lanes, and one that has must not slow
// down the others: so each kind has a launch, and the latter's blocks, which leave no room for others, go through all
// sessions instead of there being one for each.
constexpr int32_t kFewThreads = 128;
[[maybe_unused]] constexpr int32_t kFewBlocks = 7;
constexpr int32_t kFewSlots = 8192;
constexpr int32_t kManyThreads = 512;
constexpr int32_t kManyRounds = 16;

// Of each of the lanes `begin` to `end`.
template <int32_t kThreads, bool kVectors>
EBB_DEVICE void EvictOne(const SessionView& session, int32_t begin, int32_t end) {
  using Stretch = Stretch<kThreads, kVectors>;
  EBB_SHARED int32_t gap;
  Stretch stretch = Stretch::Read(OrderOf<kVectors>(session, begin), 0);
  for (int32_t lane = begin; lane < end; ++lane) {
    const int64_t first = int64_t{lane} * session.capacity;
    int32_t* const position = NotShared(session.position) + first;
    Order<kVectors> order = OrderOf<kVectors>(session, lane);
    const Least least = LeastOf(session, order, stretch);
    if (lane + 1 < end) stretch = Stretch::Read(OrderOf<kVectors>(session, lane + 1), 0);
    First leaves = FirstOf<kThreads>(session, least);
    if (!leaves.is_checked) {
      leaves = FindFirstAgain<kThreads>(session, order);
      if (lane + 1 < end) stretch = Stretch::Read(OrderOf<kVectors>(session, lane + 1), 0);  // rather than kept so long
    }
    if (leaves.slot >= 0) {
      if (session.left != nullptr) session.left[lane] = leaves.token;
      session.token[first + leaves.slot] = -1;
      if (session.block_max > 0) session.placed[int64_t{lane} * session.block_max] = leaves.slot;
      if (session.compacted != 0) gap = position[leaves.slot];
      position[leaves.slot] = -1;
    }
    Barrier();  // gap is there, and what FindFirst shared is free
    if (session.compacted == 0) continue;
    const int32_t above = gap;
    for (int32_t round = 0; round * 4 * kThreads < session.slots; round += Stretch::kRounds) {
      Four<int32_t> four[Stretch::kRounds];
      EBB_UNROLL
      for (int32_t j = 0; j < Stretch::kRounds; ++j) {
        four[j] = ReadFour<kVectors>(position, FourAt<kThreads>(round + j), session.slots, -1);
      }
      EBB_UNROLL
      for (int32_t j = 0; j < Stretch::kRounds; ++j) {
        bool moves = false;
        EBB_UNROLL
        for (int32_t i = 0; i < 4; ++i) {
          moves = moves || four[j].of[i] > above;
          four[j].of[i] -= four[j].of[i] > above ? 1 : 0;
        }
        if (moves) WriteFour<kVectors>(position, FourAt<kThreads>(round + j), session.slots, four[j]);
      }
    }
    Barrier();  // gap is free
  }
}

// The tokens that leave, in the order of their slots.
template <int32_t kThreads, bool kVectors>
EBB_DEVICE void Tell(const Order<kVectors>& order, const Last& last, int32_t* left) {
  int32_t told = 0;
  const Ranks<kThreads, 0> ranks = {};
  ranks.ForFours(order, [&](int32_t slot, const Four<uint32_t>& four) {
    int32_t leaves[4];
    int32_t count = 0;
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      leaves[i] = last.IsReached(four.of[i], order.token + slot + i) ? 1 : 0;
      count += leaves[i];
    }
    const Sums sums = SumBlock<kThreads>(count);
    int32_t at = told + sums.before;
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      if (leaves[i] != 0) left[at] = order.token[slot + i];
      at += leaves[i];
    }
    told += sums.all;
  });
}

template <int32_t kThreads>
EBB_DEVICE int32_t* FreedBefore() {
  alignas(16) EBB_SHARED int32_t before[Digits<kThreads>::kCount];
  return before;
}

template <int32_t kThreads, int32_t kRounds, bool kVectors>
EBB_DEVICE void EvictSeveral(const SessionView& session, int32_t lane) {
  const int64_t first = int64_t{lane} * session.capacity;
  int32_t* const token = NotShared(session.token) + first;
  int32_t* const position = NotShared(session.position) + first;
  Order<kVectors> order = OrderOf<kVectors>(session, lane);
  Ranks<kThreads, kRounds> ranks;
  const Last last = FindLast(session, order, ranks);
  if (session.left != nullptr) Tell<kThreads>(order, last, session.left + int64_t{lane} * session.drop);

  if (session.compacted == 0) {
    ranks.ForFours(order, [&](int32_t slot, const Four<uint32_t>& four) {
      bool leaves[4];
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) leaves[i] = last.IsReached(four.of[i], token + slot + i);
      FreeFour<kVectors>(token, slot, leaves);
      FreeFour<kVectors>(position, slot, leaves);
    });
    return;
  }

  int32_t* const freed = Digits<kThreads>::Counts();
  int32_t* const before = FreedBefore<kThreads>();  // each word of bits
  const int32_t live = session.live + session.tokens;
  constexpr int32_t kWindow = 32 * Digits<kThreads>::kCount;
  int32_t freed_before = 0;  // the window
  for (int32_t begin = 0; begin < live; begin += kWindow) {
    Digits<kThreads>::Zero();
    ranks.ForFours(order, [&](int32_t slot, const Four<uint32_t>& four) {
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        if (!last.IsReached(four.of[i], token + slot + i)) continue;
        const int32_t at = position[slot + i] - begin;
        if (at >= 0 && at < kWindow) AddShared(&freed[at / 32], static_cast<int32_t>(1U << at % 32));
      }
    });
    Barrier();
    Four<int32_t> own = Digits<kThreads>::Own();
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) own.of[i] = CountBits(static_cast<uint32_t>(own.of[i]));
    const Sums sums = SumBlock<kThreads>(own.of[0] + own.of[1] + own.of[2] + own.of[3]);
    int32_t count = freed_before + sums.before;
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t its = own.of[i];
      own.of[i] = count;
      count += its;
    }
    reinterpret_cast<Four<int32_t>*>(before)[ThreadIndex()] = own;
    Barrier();
    ForRounds<kThreads, 0>(session.slots, [&](int32_t, int32_t slot) {
      Four<int32_t> four = ReadFour<kVectors>(position, slot, session.slots, -1);
      bool leaves[4];
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        const int32_t at = four.of[i] - begin;
        leaves[i] = false;
        if (four.of[i] < 0 || at < 0 || at >= kWindow) continue;
        const auto word = static_cast<uint32_t>(freed[at / 32]);
        leaves[i] = (word >> at % 32 & 1U) != 0;
        four.of[i] = leaves[i] ? -1 : four.of[i] - before[at / 32] - CountBits(word & ((1U << at % 32) - 1));
      }
      FreeFour<kVectors>(token, slot, leaves);
      WriteFour<kVectors>(position, slot, session.slots, four);
    });
    freed_before += sums.all;
    Barrier();  // freed and before are free again
  }
}

EBB_DEVICE bool IsLong(const SessionView& session) { return session.drop > 1 && session.slots > kFewSlots; }

template <bool kVectors>
EBB_DEVICE void EvictShort(const SessionView& session, int32_t begin, int32_t end) {
  if (session.drop == 1) return EvictOne<kFewThreads, kVectors>(session, begin, end);
  for (int32_t lane = begin; lane < end; ++lane) {
    EvictSeveral<kFewThreads, 0, kVectors>(session, lane);
    Barrier();  // whatever it shared is free again
  }
}

struct ShortArgs {
  CacheArgs cache = {};
  int32_t lanes_of_block = 0;
};

EBB_KERNEL_BESIDE(kFewThreads, kFewBlocks) EvictLane(ShortArgs a) {
  const SessionView& session = a.cache.sessions[BlockY()];
  if (session.drop == 0 || IsLong(session)) return;
  const int32_t begin = BlockX() * a.lanes_of_block;
  const int32_t end = begin + a.lanes_of_block < a.cache.lanes ? begin + a.lanes_of_block : a.cache.lanes;
  if (HasVectors(session)) return EvictShort<true>(session, begin, end);
  EvictShort<false>(session, begin, end);
}

EBB_KERNEL(kManyThreads) EvictLongLanes(EvictArgs a) {
  const auto is_long = [](const SessionView& session) { return IsLong(session); };
  ForSessions<kManyThreads>(a.cache, is_long, [](const SessionView& session) {
    if (!HasVectors(session)) return EvictSeveral<kManyThreads, 0, false>(session, BlockX());
    if (session.slots > kManyRounds * 4 * kManyThreads) return EvictSeveral<kManyThreads, 0, true>(session, BlockX());
    EvictSeveral<kManyThreads, kManyRounds, true>(session, BlockX());
  });
}

}  // namespace

void LaunchEvict(const EvictArgs& args, Stream stream) {
  const ShortArgs few = {.cache = args.cache, .lanes_of_block = LanesOfBlock(args.cache)};
  const int32_t blocks = few.lanes_of_block == 0 ? 0 : (args.cache.lanes + few.lanes_of_block - 1) / few.lanes_of_block;
  Launch(EvictLane, {blocks, args.cache.session_count}, kFewThreads, few, stream);
  if (args.cache.slots_max > kFewSlots) Launch(EvictLongLanes, {args.cache.lanes}, kManyThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
