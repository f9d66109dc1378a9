// Who leaves first, by a block of threads. Slots leave in the order of their ranks, those of one rank in the order of
// their tokens, as policies/select.cc has it in 64 bits:
//
//   rank   the score, in the order of floats as integers; NaN is 0. By age: the token
//          all ones: free or protected, which no score's rank is
//
// One victim is the smallest of all, found in one pass. Of several the last one's rank is found digit by digit from the
// top: a pass counts, for each digit, the ranks that begin as found so far; the digit in which the `drop`-th lies is
// the next. Where all that begin so leave, no more needs to be known. Where those of one rank leave in part, the same
// is done with their tokens. Tokens differ, so exactly `drop` slots leave.
//
// Slots go to threads four by four, round after round, so that a thread reads and writes them as one vector. With
// kRounds > 0 a thread keeps its ranks, of so many rounds, and scores are read once; with 0 it reads them in each pass.
//
//   of 128 threads    slot  0-3  4-7  ...  508-511 | 512-515 ...
//                  thread    0    1            127 |    0
//                   round    0                     |    1

#ifndef EBB_ENGINE_OPS_GPU_SELECT_H_
#define EBB_ENGINE_OPS_GPU_SELECT_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {

inline constexpr uint32_t kStays = ~0U;

template <typename T>
struct alignas(16) Four {
  T of[4];
};
template <int32_t kThreads>
EBB_DEVICE int32_t FourAt(int32_t round) {
  return 4 * (round * kThreads + ThreadIndex());
}
// Whether all lanes of a session begin where vectors do. REQUIRES of what follows, with kVectors: they do.
EBB_DEVICE bool HasVectors(const SessionView& session) {
  const auto address = [](const void* of) { return reinterpret_cast<uintptr_t>(of); };
  const uintptr_t all = address(session.token) | address(session.position) | address(session.score) |
                        address(session.keep) | static_cast<uintptr_t>(session.capacity) * sizeof(float);
  return all % sizeof(Four<float>) == 0;
}
// Slots slot .. slot + 3 of a lane, `missing` past its end. A vector may go past `slots`, where all are free.
template <bool kVectors, typename T>
EBB_DEVICE Four<T> ReadFour(const T* lane, int32_t slot, int32_t slots, T missing) {
  Four<T> four = {{missing, missing, missing, missing}};
  if constexpr (kVectors) {
    if (slot < slots) four = *reinterpret_cast<const Four<T>*>(lane + slot);
  } else {
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      if (slot + i < slots) four.of[i] = lane[slot + i];
    }
  }
  return four;
}
template <bool kVectors, typename T>
EBB_DEVICE void WriteFour(T* lane, int32_t slot, int32_t slots, const Four<T>& four) {
  if constexpr (kVectors) {
    if (slot < slots) *reinterpret_cast<Four<T>*>(lane + slot) = four;
  } else {
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      if (slot + i < slots) lane[slot + i] = four.of[i];
    }
  }
}
// -1 for those that leave.
template <bool kVectors>
EBB_DEVICE void FreeFour(int32_t* lane, int32_t slot, const bool (&leaves)[4]) {
  if (kVectors && leaves[0] && leaves[1] && leaves[2] && leaves[3]) {
    *reinterpret_cast<Four<int32_t>*>(lane + slot) = {{-1, -1, -1, -1}};
    return;
  }
  EBB_UNROLL
  for (int32_t i = 0; i < 4; ++i) {
    if (leaves[i]) lane[slot + i] = -1;
  }
}

// Calls use(session) for those of a step of which is(session), by all threads of a block.
template <int32_t kThreads, typename Is, typename Use>
EBB_DEVICE void ForSessions(const CacheArgs& cache, const Is& is, const Use& use) {
  EBB_SHARED int32_t chosen[kThreads];
  for (int32_t begin = 0; begin < cache.session_count; begin += kThreads) {
    const int32_t own = begin + ThreadIndex();
    chosen[ThreadIndex()] = own < cache.session_count && is(cache.sessions[own]) ? 1 : 0;
    Barrier();
    for (int32_t i = 0; i < kThreads && begin + i < cache.session_count; ++i) {
      if (chosen[i] == 0) continue;
      use(cache.sessions[begin + i]);
      Barrier();  // whatever it shared is free again
    }
    Barrier();
  }
}

// Calls use(round, slot) for the rounds that there are, by all threads. REQUIRES: slots <= kRounds * 4 * kThreads,
// where these are not 0.
template <int32_t kThreads, int32_t kRounds, typename Use>
EBB_DEVICE void ForRounds(int32_t slots, const Use& use) {
  if constexpr (kRounds == 0) {
    for (int32_t round = 0; round * 4 * kThreads < slots; ++round) use(round, FourAt<kThreads>(round));
  } else {
    EBB_UNROLL
    for (int32_t round = 0; round < kRounds; ++round) {
      if (round * 4 * kThreads < slots) use(round, FourAt<kThreads>(round));
    }
  }
}

// --- digits ------------------------------------------------------------------------------------------------------

// As many as make four for each thread to sum: with 128 threads nine bits, with 512 eleven. The last digit of 32 bits
// is shorter. Of scores two digits nearly always do.
template <int32_t kThreads>
struct Digits {
  static constexpr int32_t kCount = 4 * kThreads;
  static constexpr int32_t kBits = kThreads == 128 ? 9 : kThreads == 256 ? 10 : 11;
  static constexpr int32_t kTop = 32 - kBits;  // where the top digit begins
  static_assert(1 << kBits == kCount);

  // [kCount], to be read and written by fours.
  static EBB_DEVICE int32_t* Counts() {
    alignas(16) EBB_SHARED int32_t counts[kCount];
    return counts;
  }
  static EBB_DEVICE Four<int32_t>& Own() { return reinterpret_cast<Four<int32_t>*>(Counts())[ThreadIndex()]; }
  // Before anybody counts.
  static EBB_DEVICE void Zero() {
    Own() = {};
    Barrier();
  }
  static EBB_DEVICE void Count(uint32_t digit) { AddShared(Counts() + digit, 1); }
  static EBB_DEVICE void CountTop(uint32_t word) { Count(word >> kTop); }
};

struct Digit {
  int32_t digit, count, before;
};
// The digit in which the count-th lies, from 1, how many have it, and how many a smaller one. Counts are zero again.
template <int32_t kThreads>
EBB_DEVICE Digit FindDigit(int32_t count) {
  EBB_SHARED Digit found;
  Barrier();  // everybody has counted
  const Four<int32_t> own = Digits<kThreads>::Own();
  Digits<kThreads>::Own() = {};
  const int32_t sum = own.of[0] + own.of[1] + own.of[2] + own.of[3];
  int32_t before = SumBefore<kThreads>(sum);
  if (before < count && count <= before + sum) {
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      if (before < count && count <= before + own.of[i]) found = {4 * ThreadIndex() + i, own.of[i], before};
      before += own.of[i];
    }
  }
  Barrier();
  return found;
}

// Which words are the first `count`: those up to `last`, of which some may be equal to it.
struct Bound {
  uint32_t last;
  int32_t part;  // how many that are equal to it; 0: all
};
// Of words whose top digits are counted. again(use) calls use(word) for each of a thread's words.
template <int32_t kThreads, typename Again>
EBB_DEVICE Bound FindBound(int32_t count, const Again& again) {
  uint32_t found = 0;
  for (int32_t shift = Digits<kThreads>::kTop;;) {
    const Digit next = FindDigit<kThreads>(count);
    found |= static_cast<uint32_t>(next.digit) << shift;
    count -= next.before;
    if (count == next.count) return {found | ((1U << shift) - 1), 0};
    if (shift == 0) return {found, count};
    const int32_t known = shift;
    shift = shift > Digits<kThreads>::kBits ? shift - Digits<kThreads>::kBits : 0;
    again([=](uint32_t word) {
      const uint32_t rest = word ^ found;
      if (rest >> known == 0) Digits<kThreads>::Count(rest >> shift);
    });
  }
}

// --- who may leave -----------------------------------------------------------------------------------------------

// Indices of tokens between the sinks and the recent tokens, both included.
struct Unprotected {
  int32_t oldest, newest;

  EBB_DEVICE bool Has(int32_t token) const { return token >= oldest && token <= newest; }  // a free one is -1
};

// Nobody evicts the protected, so both ends of a lane are nearly always without gaps: guess, and check by counting.
EBB_DEVICE Unprotected GuessUnprotected(const SessionView& session) {
  if (session.recent == 0) return {session.sinks, INT32_MAX};
  return {session.sinks, session.first_token + session.tokens - 1 - session.recent};
}
struct Protected {
  int32_t sinks;
  int32_t recent;

  EBB_DEVICE void Count(int32_t token, const Unprotected& guess) {
    sinks += token >= 0 && token < guess.oldest ? 1 : 0;
    recent += token > guess.newest ? 1 : 0;
  }
  EBB_DEVICE bool AreOf(const SessionView& session) const { return sinks == session.sinks && recent == session.recent; }
};
EBB_DEVICE bool IsChecked(const SessionView& session) { return session.sinks + session.recent > 0; }

// Of all threads.
template <int32_t kThreads>
EBB_DEVICE Protected SumOf(const Protected& own) {
  EBB_SHARED Protected of_team[kThreads / kTeam];
  const Protected team = {SumOfTeam(own.sinks), SumOfTeam(own.recent)};
  if (ThreadIndex() % kTeam == 0) of_team[ThreadIndex() / kTeam] = team;
  Barrier();
  const int32_t lane = ThreadIndex() % kTeam;
  const Protected one = lane < kThreads / kTeam ? of_team[lane] : Protected{0, 0};
  const Protected all = {SumOfTeam(one.sinks), SumOfTeam(one.recent)};
  Barrier();  // of_team is free again
  return all;
}

// No smaller than the token of the count-th by age, and smaller than the next one's.
template <int32_t kThreads>
EBB_DEVICE int32_t FindAge(const SessionView& session, const int32_t* token, int32_t count) {
  const auto ages = [=, slots = session.slots](const auto& use) {
    for (int32_t slot = ThreadIndex(); slot < slots; slot += kThreads) {
      if (token[slot] >= 0) use(static_cast<uint32_t>(token[slot]));
    }
  };
  Digits<kThreads>::Zero();
  ages([](uint32_t age) { Digits<kThreads>::CountTop(age); });
  return static_cast<int32_t>(FindBound<kThreads>(count, ages).last);
}
// Where the guess was wrong.
template <int32_t kThreads>
EBB_DEVICE Unprotected FindUnprotected(const SessionView& session, const int32_t* token) {
  const int32_t live = session.live + session.tokens;
  Unprotected found = {0, INT32_MAX};
  if (session.sinks > 0) found.oldest = FindAge<kThreads>(session, token, session.sinks) + 1;
  if (session.recent > 0) found.newest = FindAge<kThreads>(session, token, live - session.recent);
  return found;
}

// --- who leaves --------------------------------------------------------------------------------------------------

// Positive floats order like their bits, negative ones the other way round; -0 equals 0, NaN comes first.
EBB_DEVICE uint32_t RankOf(float score) {
  const uint32_t bits = BitsOf(score + 0.0F);
  const uint32_t turned = bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000U);
  return score == score ? turned : 0;
}

template <bool kVectors>
struct Order {
  const int32_t* token;
  const float* score;
  float sign;  // 0: by age
  int32_t slots;
  Unprotected unprotected;

  EBB_DEVICE Four<int32_t> Tokens(int32_t slot) const { return ReadFour<kVectors>(token, slot, slots, -1); }
  EBB_DEVICE Four<float> Scores(int32_t slot) const {
    if (sign == 0) return {};
    return ReadFour<kVectors>(score, slot, slots, 0.0F);
  }
  EBB_DEVICE uint32_t Rank(int32_t its_token, float its_score) const {
    if (!unprotected.Has(its_token)) return kStays;
    return sign == 0 ? static_cast<uint32_t>(its_token) : RankOf(sign * its_score);
  }
};
template <bool kVectors>
EBB_DEVICE Order<kVectors> OrderOf(const SessionView& session, int32_t lane) {
  return {.token = NotShared(session.token) + int64_t{lane} * session.capacity,
          .score = NotShared(session.keep != nullptr ? session.keep : session.score) + TrackAt(session, lane, 0),
          .sign = session.rule == ScoreRule::kAge         ? 0.0F
                  : session.rule == ScoreRule::kShortKeys ? -1.0F
                                                          : 1.0F,
          .slots = session.slots,
          .unprotected = GuessUnprotected(session)};
}

// The ranks of a thread's slots.
template <int32_t kThreads, int32_t kRounds>
class Ranks {
 public:
  // use(token, rank). Whatever is kept is read here.
  template <bool kVectors, typename Use>
  EBB_DEVICE void Read(const Order<kVectors>& order, const Use& use) {
    if constexpr (kRounds == 0) {
      ForRounds<kThreads, 0>(order.slots, [&](int32_t, int32_t slot) {
        const Four<int32_t> tokens = order.Tokens(slot);
        const Four<float> scores = order.Scores(slot);
        EBB_UNROLL
        for (int32_t i = 0; i < 4; ++i) use(tokens.of[i], order.Rank(tokens.of[i], scores.of[i]));
      });
    } else {
      // Some rounds ahead, for as much to be on its way from memory as there is room for.
      constexpr int32_t kAhead = kRounds < 3 ? kRounds : 3;
      Four<int32_t> tokens[kAhead];
      Four<float> scores[kAhead];
      EBB_UNROLL
      for (int32_t round = 0; round < kAhead; ++round) {
        tokens[round] = order.Tokens(FourAt<kThreads>(round));
        scores[round] = order.Scores(FourAt<kThreads>(round));
      }
      ForRounds<kThreads, kRounds>(order.slots, [&](int32_t round, int32_t) {
        const Four<int32_t> own = tokens[round % kAhead];
        EBB_UNROLL
        for (int32_t i = 0; i < 4; ++i) kept_[4 * round + i] = order.Rank(own.of[i], scores[round % kAhead].of[i]);
        if (round + kAhead < kRounds) {
          scores[round % kAhead] = order.Scores(FourAt<kThreads>(round + kAhead));
          tokens[round % kAhead] = order.Tokens(FourAt<kThreads>(round + kAhead));
        }
        EBB_UNROLL
        for (int32_t i = 0; i < 4; ++i) use(own.of[i], kept_[4 * round + i]);
      });
    }
  }
  // What was read otherwise, and is kept.
  EBB_DEVICE void Keep(int32_t round, int32_t i, uint32_t rank) { kept_[4 * round + i] = rank; }
  EBB_DEVICE uint32_t Of(int32_t round, int32_t i) const { return kept_[4 * round + i]; }
  // use(slot, the ranks from there on), of as many rounds for all threads.
  template <bool kVectors, typename Use>
  EBB_DEVICE void ForFours(const Order<kVectors>& order, const Use& use) const {
    ForRounds<kThreads, kRounds>(order.slots, [&](int32_t round, int32_t slot) {
      Four<uint32_t> ranks;
      if constexpr (kRounds == 0) {
        const Four<int32_t> tokens = order.Tokens(slot);
        const Four<float> scores = order.Scores(slot);
        EBB_UNROLL
        for (int32_t i = 0; i < 4; ++i) ranks.of[i] = order.Rank(tokens.of[i], scores.of[i]);
      } else {
        EBB_UNROLL
        for (int32_t i = 0; i < 4; ++i) ranks.of[i] = kept_[4 * round + i];
      }
      use(slot, ranks);
    });
  }

 private:
  uint32_t kept_[kRounds == 0 ? 1 : 4 * kRounds] = {};
};

// Who leaves last: all of lower rank do, and of its own rank those up to its token.
struct Last {
  uint32_t rank;
  uint32_t token;  // all ones: all of the rank

  EBB_DEVICE bool IsReached(uint32_t its_rank, const int32_t* its_token) const {
    return its_rank < rank || (its_rank == rank && (token == kStays || static_cast<uint32_t>(*its_token) <= token));
  }
};

// The count-th to leave, the top digits of whose ranks are counted.
template <int32_t kThreads, int32_t kRounds, bool kVectors>
EBB_DEVICE Last FindLast(const Order<kVectors>& order, const Ranks<kThreads, kRounds>& ranks, int32_t count) {
  const Bound rank = FindBound<kThreads>(count, [&](const auto& use) {
    ranks.ForFours(order, [&](int32_t, const Four<uint32_t>& four) {
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) use(four.of[i]);
    });
  });
  // Where all that begin like the highest score leave, the digits not looked at are all ones: who stays begins so, too.
  if (rank.part == 0) return {rank.last == kStays ? kStays - 1 : rank.last, kStays};
  const auto tokens = [&](const auto& use) {
    ranks.ForFours(order, [&](int32_t slot, const Four<uint32_t>& four) {
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        if (four.of[i] == rank.last) use(static_cast<uint32_t>(order.token[slot + i]));
      }
    });
  };
  tokens([](uint32_t token) { Digits<kThreads>::CountTop(token); });
  return {rank.last, FindBound<kThreads>(rank.part, tokens).last};
}

// Who is the session.drop-th to leave; makes sure of order.unprotected.
template <int32_t kThreads, int32_t kRounds, bool kVectors>
EBB_DEVICE Last FindLast(const SessionView& session, Order<kVectors>& order, Ranks<kThreads, kRounds>& ranks) {
  const bool guesses = IsChecked(session);
  for (bool is_found = !guesses;;) {
    Digits<kThreads>::Zero();
    Protected is = {};
    ranks.Read(order, [&](int32_t token, uint32_t rank) {
      if (guesses) is.Count(token, order.unprotected);
      if (rank != kStays) Digits<kThreads>::CountTop(rank);
    });
    if (is_found || SumOf<kThreads>(is).AreOf(session)) break;
    order.unprotected = FindUnprotected<kThreads>(session, order.token);
    is_found = true;
  }
  return FindLast(order, ranks, session.drop);
}

// What a thread reads of a lane at once: several rounds, for more to be on its way from memory. A lane of 1024 slots
// and one that just came is one stretch of 128 threads.
template <int32_t kThreads, bool kVectors>
struct Stretch {
  static constexpr int32_t kRounds = kVectors ? 3 : 1;
  Four<int32_t> tokens[kRounds];
  Four<float> scores[kRounds];

  static EBB_DEVICE Stretch Read(const Order<kVectors>& order, int32_t round) {
    Stretch stretch;
    EBB_UNROLL
    for (int32_t i = 0; i < kRounds; ++i) {
      stretch.tokens[i] = order.Tokens(FourAt<kThreads>(round + i));
      stretch.scores[i] = order.Scores(FourAt<kThreads>(round + i));
    }
    return stretch;
  }
};

// Who leaves first of a thread's slots.
struct Least {
  uint64_t at = ~uint64_t{0};  // rank, then token
  int32_t slot = -1;
  Protected is = {};
};
template <int32_t kThreads, bool kVectors>
EBB_DEVICE void Take(const Order<kVectors>& order, const Stretch<kThreads, kVectors>& stretch, int32_t round,
                     bool guesses, Least& least) {
  EBB_UNROLL
  for (int32_t i = 0; i < 4 * stretch.kRounds; ++i) {
    const int32_t token = stretch.tokens[i / 4].of[i % 4];
    if (guesses) least.is.Count(token, order.unprotected);
    const uint64_t at =
        static_cast<uint64_t>(order.Rank(token, stretch.scores[i / 4].of[i % 4])) << 32 | static_cast<uint32_t>(token);
    if (at < least.at) {
      least.at = at;
      least.slot = FourAt<kThreads>(round + i / 4) + i % 4;
    }
  }
}
// `stretch` is the lane's first, which somebody may have read long before.
template <int32_t kThreads, bool kVectors>
EBB_DEVICE Least LeastOf(const SessionView& session, const Order<kVectors>& order,
                         const Stretch<kThreads, kVectors>& stretch) {
  const bool guesses = IsChecked(session);
  Least least;
  Take(order, stretch, 0, guesses, least);
  for (int32_t round = stretch.kRounds; round * 4 * kThreads < order.slots; round += stretch.kRounds) {
    Take(order, Stretch<kThreads, kVectors>::Read(order, round), round, guesses, least);
  }
  return least;
}

// Who leaves first of all.
struct First {
  uint32_t rank;
  int32_t token;
  int32_t slot;            // a thread that does not own it: -1
  bool is_checked = true;  // the guess of who is protected was right
};
// Of what each thread found. Its shared memory is free again after a Barrier.
template <int32_t kThreads>
EBB_DEVICE First FirstOf(const SessionView& session, const Least& least) {
  constexpr int32_t kTeams = kThreads / kTeam;
  EBB_SHARED uint32_t ranks[kTeams], tokens[kTeams];
  EBB_SHARED Protected protected_of[kTeams];
  const int32_t team = ThreadIndex() / kTeam;
  const int32_t lane = ThreadIndex() % kTeam;
  const auto own_rank = static_cast<uint32_t>(least.at >> 32);
  const auto own_token = static_cast<uint32_t>(least.at);
  const uint32_t team_rank = SmallestOfTeam(own_rank);
  const uint32_t team_token = SmallestOfTeam(own_rank == team_rank ? own_token : kStays);
  const Protected of_team = {SumOfTeam(least.is.sinks), SumOfTeam(least.is.recent)};
  if (lane == 0) {
    ranks[team] = team_rank;
    tokens[team] = team_token;
    protected_of[team] = of_team;
  }
  Barrier();
  uint32_t rank = kStays;
  uint32_t token = kStays;
  Protected is = {};
  if (lane < kTeams) {
    rank = ranks[lane];
    token = tokens[lane];
    is = protected_of[lane];
  }
  const uint32_t first_rank = SmallestOfTeam(rank);
  const uint32_t first_token = SmallestOfTeam(rank == first_rank ? token : kStays);
  is = {SumOfTeam(is.sinks), SumOfTeam(is.recent)};
  const bool is_own = own_rank == first_rank && own_token == first_token;
  return {first_rank, static_cast<int32_t>(first_token), is_own ? least.slot : -1,
          !IsChecked(session) || is.AreOf(session)};
}
// Where the guess was wrong.
template <int32_t kThreads, bool kVectors>
EBB_DEVICE First FindFirstAgain(const SessionView& session, Order<kVectors>& order) {
  order.unprotected = FindUnprotected<kThreads>(session, order.token);
  Barrier();  // what FirstOf shared is free
  return FirstOf<kThreads>(session, LeastOf(session, order, Stretch<kThreads, kVectors>::Read(order, 0)));
}
// Makes sure of order.unprotected.
template <int32_t kThreads, bool kVectors>
EBB_DEVICE First FindFirst(const SessionView& session, Order<kVectors>& order) {
  const First first = FirstOf<kThreads>(session, LeastOf(session, order, Stretch<kThreads, kVectors>::Read(order, 0)));
  return first.is_checked ? first : FindFirstAgain<kThreads>(session, order);
}

// Who leaves a lane.
struct Leaving {
  Order<false> order;
  Last last;

  EBB_DEVICE bool operator()(int32_t slot) const {
    const int32_t token = order.token[slot];
    return last.IsReached(order.Rank(token, order.sign == 0 ? 0 : order.score[slot]), &token);
  }
};
// By all threads of a block. REQUIRES: session.drop > 0.
template <int32_t kThreads>
EBB_DEVICE Leaving WhoLeaves(const SessionView& session, int32_t lane) {
  Leaving leaving = {.order = OrderOf<false>(session, lane), .last = {}};
  if (session.drop == 1) {
    const First first = FindFirst<kThreads>(session, leaving.order);
    leaving.last = {first.rank, static_cast<uint32_t>(first.token)};
    Barrier();
  } else {
    Ranks<kThreads, 0> ranks;
    leaving.last = FindLast(session, leaving.order, ranks);
  }
  return leaving;
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_SELECT_H_
