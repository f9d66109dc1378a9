// What the query heads of a KV head together make of a slot (kernels.h, ReduceArgs): policies/rank.cc on the device.
// Block (l, i): lane l of session i; of long lanes block l: lane l of all sessions. What is written of a slot is one
// thread's, in every pass.
//
// Of a union, each track in turn counts whom it would let go, by the rule that decides who leaves; whom all let go is
// wanted by none. Slots are lifted by a sum, so that those who are wanted keep their order. Where the threads of a
// block have room for all of a lane's slots, each score is read once.
//
//   from  [lanes, tracks, capacity] floats   track 0  | slot 0 | slot 1 | ...
//                                            track 1  | slot 0 | slot 1 | ...   a slot's thread reads its column
//   keep  [lanes, track 0, capacity]                  | slot 0 | slot 1 | ...   and writes what its heads make of it
//   scratch [lanes, capacity]                by how many tracks the slot was let go; where there is no room

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/reduce.h"
#include "engine/ops/gpu/select.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kFewThreads = 256;
constexpr int32_t kFewRounds = 4;  // whose slots a thread keeps
constexpr int32_t kFewSlots = kFewRounds * 4 * kFewThreads;
[[maybe_unused]] constexpr int32_t kFewBlocks = 3;
constexpr int32_t kManyThreads = 512;
constexpr int32_t kManyRounds = 8;

// sqrt(a^2 + b^2), without the underflow that float squares have below 1e-19.
EBB_DEVICE float Hypotenuse(float a, float b) {
  return static_cast<float>(Sqrt(static_cast<double>(a) * a + static_cast<double>(b) * b));
}

// The next float towards infinity.
EBB_DEVICE float NextUp(float x) {
  if (x != x || x == Infinity()) return x;
  if (x == 0) return FloatOf(1);
  return FloatOf(x > 0 ? BitsOf(x) + 1 : BitsOf(x) - 1);
}

// A lane's scores and what becomes of them.
struct Heads {
  const float* from;
  float* keep;
  int64_t capacity;
  int32_t tracks;

  EBB_DEVICE float operator()(int32_t track, int32_t slot) const { return from[track * capacity + slot]; }
  template <bool kVectors>
  EBB_DEVICE Order<kVectors> OfTrack(int32_t track, const Order<kVectors>& of_lane) const {
    Order<kVectors> order = of_lane;
    order.score = from + track * capacity;
    order.sign = 1;
    return order;
  }
};

// The smallest of the wanted and the largest of the unwanted; those who are wanted are lifted by so much.
struct Lift {
  float floor = Infinity();
  float ceiling = MinusInfinity();

  EBB_DEVICE void See(float mean, bool is_wanted) {
    if (!is_wanted && mean > ceiling) ceiling = mean;
    if (is_wanted && mean < floor) floor = mean;
  }
  template <int32_t kThreads>
  EBB_DEVICE Lift OfBlock() const {
    Lift lift;
    lift.ceiling = ReduceBlock<kThreads>(ceiling, Largest());
    lift.floor = ReduceBlock<kThreads>(floor, Smallest());
    return lift;
  }
  EBB_DEVICE bool IsNone() const { return floor > ceiling; }  // as they are; or nobody is unwanted
  EBB_DEVICE float Of(float wanted) const { return wanted == Infinity() ? wanted : NextUp(ceiling + (wanted - floor)); }
};

template <int32_t kThreads>
EBB_DEVICE void UniteAgain(const SessionView& session, int32_t lane, const Heads& heads) {
  int32_t* const let_go = session.scratch + int64_t{lane} * session.capacity;  // by how many tracks
  Order<false> order = OrderOf<false>(session, lane);
  const int32_t* const token = order.token;
  if (IsChecked(session)) order.unprotected = FindUnprotected<kThreads>(session, token);
  for (int32_t slot = ThreadIndex(); slot < session.slots; slot += kThreads) let_go[slot] = 0;
  const int32_t leaving = CandidatesOf(session) - session.best;
  for (int32_t track = 0; track < heads.tracks && leaving > 0; ++track) {
    Leaving leaves = {.order = heads.OfTrack(track, order), .last = {}};
    Ranks<kThreads, 0> ranks;
    Digits<kThreads>::Zero();
    ranks.Read(leaves.order, [](int32_t, uint32_t rank) {
      if (rank != kStays) Digits<kThreads>::CountTop(rank);
    });
    leaves.last = FindLast(leaves.order, ranks, leaving);
    for (int32_t slot = ThreadIndex(); slot < session.slots; slot += kThreads) let_go[slot] += leaves(slot) ? 1 : 0;
  }
  Lift lift;
  for (int32_t slot = ThreadIndex(); slot < session.slots; slot += kThreads) {
    if (token[slot] < 0) continue;
    float mean = 0;
    for (int32_t track = 0; track < heads.tracks; ++track)
      mean += heads(track, slot) / static_cast<float>(heads.tracks);
    heads.keep[slot] = mean;
    lift.See(mean, let_go[slot] < heads.tracks);
  }
  lift = lift.OfBlock<kThreads>();
  if (lift.IsNone()) return;
  for (int32_t slot = ThreadIndex(); slot < session.slots; slot += kThreads) {
    if (token[slot] >= 0 && let_go[slot] < heads.tracks) heads.keep[slot] = lift.Of(heads.keep[slot]);
  }
}

// REQUIRES: HasVectors(session), slots <= kRounds * 4 * kThreads.
template <int32_t kThreads, int32_t kRounds>
EBB_DEVICE void Unite(const SessionView& session, int32_t lane, const Heads& heads) {
  static_assert(4 * kRounds <= 32 && kGroupMax < 256);
  Order<true> order = OrderOf<true>(session, lane);
  const bool guesses = IsChecked(session);
  uint32_t exist = 0;  // bit 4 round + i
  uint32_t may_leave = 0;
  for (bool is_found = !guesses;;) {
    exist = may_leave = 0;
    Protected is = {};
    ForRounds<kThreads, kRounds>(session.slots, [&](int32_t round, int32_t slot) {
      const Four<int32_t> tokens = order.Tokens(slot);
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        if (guesses) is.Count(tokens.of[i], order.unprotected);
        exist |= (tokens.of[i] >= 0 ? 1U : 0U) << (4 * round + i);
        may_leave |= (order.unprotected.Has(tokens.of[i]) ? 1U : 0U) << (4 * round + i);
      }
    });
    if (is_found || SumOf<kThreads>(is).AreOf(session)) break;
    order.unprotected = FindUnprotected<kThreads>(session, order.token);
    is_found = true;
  }

  Four<float> mean[kRounds] = {};
  uint32_t let_go[kRounds] = {};  // by how many tracks, a byte a slot
  const int32_t leaving = CandidatesOf(session) - session.best;
  const auto tracks = static_cast<float>(heads.tracks);
  const bool is_exact = (heads.tracks & (heads.tracks - 1)) == 0;  // what dividing and multiplying give is the same
  const float share = 1 / tracks;
  for (int32_t track = 0; track < heads.tracks; ++track) {
    const Order<true> of_track = heads.OfTrack(track, order);
    Ranks<kThreads, kRounds> ranks;
    Four<float> scores[2];  // of this round, and of the next, which are on their way
    if (leaving > 0) Digits<kThreads>::Zero();
    scores[0] = of_track.Scores(FourAt<kThreads>(0));
    ForRounds<kThreads, kRounds>(session.slots, [&](int32_t round, int32_t) {
      if (round + 1 < kRounds) scores[(round + 1) % 2] = of_track.Scores(FourAt<kThreads>(round + 1));
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        const float score = scores[round % 2].of[i];
        mean[round].of[i] += is_exact ? score * share : score / tracks;
        if (leaving <= 0) continue;
        const bool counts = (may_leave >> (4 * round + i) & 1U) != 0;
        const uint32_t rank = counts ? RankOf(score) : kStays;
        ranks.Keep(round, i, rank);
        if (counts) Digits<kThreads>::CountTop(rank);
      }
    });
    if (leaving <= 0) continue;
    const Last last = FindLast(of_track, ranks, leaving);
    ForRounds<kThreads, kRounds>(session.slots, [&](int32_t round, int32_t slot) {
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i)
        let_go[round] += last.IsReached(ranks.Of(round, i), order.token + slot + i) ? 1U << 8 * i : 0U;
    });
  }

  const auto is_wanted = [&](int32_t round, int32_t i) {
    return (let_go[round] >> 8 * i & 0xFFU) < static_cast<uint32_t>(heads.tracks);
  };
  Lift lift;
  ForRounds<kThreads, kRounds>(session.slots, [&](int32_t round, int32_t) {
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      if ((exist >> (4 * round + i) & 1U) != 0) lift.See(mean[round].of[i], is_wanted(round, i));
    }
  });
  lift = lift.OfBlock<kThreads>();
  const bool is_none = lift.IsNone();
  ForRounds<kThreads, kRounds>(session.slots, [&](int32_t round, int32_t slot) {
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      if (!is_none && is_wanted(round, i)) mean[round].of[i] = lift.Of(mean[round].of[i]);
    }
    WriteFour<true>(heads.keep, slot, session.slots, mean[round]);
  });
}

EBB_DEVICE bool IsReduced(const SessionView& session) { return session.tracks > 1 && HasChoice(session); }
// One long lane takes all registers, as in evict.cc.
EBB_DEVICE bool IsLongUnion(const SessionView& session) {
  return session.reduction == HeadReduction::kUnion && session.slots > kFewSlots;
}
EBB_DEVICE Heads HeadsOf(const SessionView& session, int32_t lane) {
  const int64_t at = TrackAt(session, lane, 0);
  return {.from = NotShared(session.modifier == ScoreModifier::kNone ? session.score : session.keep) + at,
          .keep = NotShared(session.keep) + at,
          .capacity = session.capacity,
          .tracks = session.tracks};
}

EBB_KERNEL(kManyThreads) UniteLongLanes(ReduceArgs a) {
  const auto is_long = [](const SessionView& session) { return IsReduced(session) && IsLongUnion(session); };
  ForSessions<kManyThreads>(a.cache, is_long, [](const SessionView& session) {
    const Heads heads = HeadsOf(session, BlockX());
    const bool has_room = session.slots <= kManyRounds * 4 * kManyThreads;
    if (has_room && HasVectors(session)) return Unite<kManyThreads, kManyRounds>(session, BlockX(), heads);
    UniteAgain<kManyThreads>(session, BlockX(), heads);
  });
}

EBB_KERNEL_BESIDE(kFewThreads, kFewBlocks) ReduceLane(ReduceArgs a) {
  const SessionView& session = a.cache.sessions[BlockY()];
  if (!IsReduced(session) || IsLongUnion(session)) return;
  const Heads score = HeadsOf(session, BlockX());
  if (session.reduction == HeadReduction::kUnion) {
    if (HasVectors(session)) return Unite<kFewThreads, kFewRounds>(session, BlockX(), score);
    return UniteAgain<kFewThreads>(session, BlockX(), score);
  }
  const bool squares = session.reduction == HeadReduction::kL2;
  for (int32_t slot = ThreadIndex(); slot < session.slots; slot += kFewThreads) {
    float all = score(0, slot);
    for (int32_t track = 1; track < score.tracks; ++track) {
      const float one = score(track, slot);
      if (squares) {
        all = Hypotenuse(one, all);
      } else if (one > all || one != one) {
        all = one;
      }
    }
    score.keep[slot] = all;
  }
}

}  // namespace

void LaunchReduce(const ReduceArgs& args, Stream stream) {
  Launch(ReduceLane, {args.cache.lanes, args.cache.session_count}, kFewThreads, args, stream);
  if (args.cache.slots_max > kFewSlots) Launch(UniteLongLanes, {args.cache.lanes}, kManyThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
