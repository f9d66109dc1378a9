// Who leaves first, by a block of kSelectThreads. A slot's turn packs the order of leaving into 64 bits, as
// policies/select.cc does:
//
//   63                     32 31                      0
//   | score, in the order of | index of the token in   |      NaN is 0; free and protected slots are all ones
//   | floats as integers     | the log                 |
//
// One victim is the smallest turn. Of several the last one's turn is found digit by digit from the top, eight bits at a
// time: a pass counts, for each digit, the turns that begin as found so far; the digit in which the `drop`-th lies is
// the next. Where but one turn begins so, it is the one. Turns differ, so exactly `drop` slots are at or below it, for
// any `drop` in at most eight passes over the slots, and four or five where scores differ.

#ifndef EBB_ENGINE_OPS_GPU_SELECT_H_
#define EBB_ENGINE_OPS_GPU_SELECT_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {

inline constexpr int32_t kDigitBits = 8;
inline constexpr int32_t kSelectThreads = 1 << kDigitBits;
inline constexpr uint64_t kStays = ~uint64_t{0};

// Positive floats order like their bits, negative ones the other way round; -0 equals 0, NaN comes first.
EBB_DEVICE uint64_t RankOf(float score) {
  if (score != score) return 0;
  const uint32_t bits = BitsOf(score + 0.0F);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
}

// The count-th smallest key(slot) over slots 0 .. slots - 1, counting from 1; those that are kStays do not count.
// REQUIRES: there are as many.
template <typename Key>
EBB_DEVICE uint64_t Find(int32_t slots, int32_t count, const Key& key) {
  if (count == 1) {
    uint64_t least = kStays;
    for (int32_t slot = ThreadIndex(); slot < slots; slot += kSelectThreads) least = Smallest()(key(slot), least);
    return ReduceBlock<kSelectThreads>(least, Smallest());
  }
  EBB_SHARED int32_t counts[kSelectThreads];  // of a digit each
  EBB_SHARED int32_t digit, before_digit;
  uint64_t found = 0;
  uint64_t fixed = 0;  // the bits of `found` that are known
  for (int32_t shift = 64 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    counts[ThreadIndex()] = 0;
    Barrier();
    for (int32_t slot = ThreadIndex(); slot < slots; slot += kSelectThreads) {
      const uint64_t candidate = key(slot);
      if (candidate != kStays && (candidate & fixed) == found)
        AddShared(&counts[candidate >> shift & (kSelectThreads - 1)], 1);
    }
    Barrier();
    const int32_t own = counts[ThreadIndex()];
    const int32_t before = SumBefore<kSelectThreads>(own);
    if (before < count && count <= before + own) {
      digit = ThreadIndex();
      before_digit = before;
    }
    Barrier();
    found |= static_cast<uint64_t>(digit) << shift;
    fixed |= static_cast<uint64_t>(kSelectThreads - 1) << shift;
    count -= before_digit;
    const bool is_alone = counts[digit] == 1;
    Barrier();  // digit and counts are free again
    if (is_alone) break;
  }
  uint64_t least = kStays;
  for (int32_t slot = ThreadIndex(); slot < slots; slot += kSelectThreads) {
    const uint64_t candidate = key(slot);
    if ((candidate & fixed) == found) least = Smallest()(candidate, least);
  }
  return ReduceBlock<kSelectThreads>(least, Smallest());
}

// Indices of tokens between the sinks and the recent tokens, both included.
struct Unprotected {
  int32_t oldest, newest;
};

// Nobody evicts the protected, so both ends of a lane are nearly always without gaps: guess, and check by counting.
EBB_DEVICE Unprotected FindUnprotected(const SessionView& session, const int32_t* token) {
  int32_t newest = -1;
  for (int32_t slot = ThreadIndex(); slot < session.slots; slot += kSelectThreads)
    newest = Largest()(token[slot], newest);
  const Unprotected guess = {session.sinks, ReduceBlock<kSelectThreads>(newest, Largest()) - session.recent};
  int32_t sinks = 0;
  int32_t recent = 0;
  for (int32_t slot = ThreadIndex(); slot < session.slots; slot += kSelectThreads) {
    sinks += token[slot] >= 0 && token[slot] < guess.oldest ? 1 : 0;
    recent += token[slot] > guess.newest ? 1 : 0;
  }
  sinks = ReduceBlock<kSelectThreads>(sinks, Plus());
  recent = ReduceBlock<kSelectThreads>(recent, Plus());
  if (sinks == session.sinks && recent == session.recent) return guess;
  const auto age = [token](int32_t slot) { return token[slot] < 0 ? kStays : static_cast<uint64_t>(token[slot]); };
  const int32_t live = session.live + session.tokens;
  return {static_cast<int32_t>(Find(session.slots, session.sinks + 1, age)),
          static_cast<int32_t>(Find(session.slots, live - session.recent, age))};
}

EBB_DEVICE uint64_t TurnOf(int32_t token, float score, const Unprotected& unprotected) {
  if (token < unprotected.oldest || token > unprotected.newest) return kStays;  // a free one is -1
  return RankOf(score) << 32 | static_cast<uint32_t>(token);
}

// Who leaves a lane: the slots of `drop` turns from the first.
struct Leaving {
  const int32_t* token;
  const float* score;
  float sign;  // 0: by age
  Unprotected unprotected;
  uint64_t last;

  EBB_DEVICE uint64_t Turn(int32_t slot) const {
    return TurnOf(token[slot], sign == 0 ? 0 : sign * score[slot], unprotected);
  }
  EBB_DEVICE bool operator()(int32_t slot) const { return Turn(slot) <= last; }
};

// By all threads of a block. REQUIRES: session.drop > 0.
EBB_DEVICE Leaving WhoLeaves(const SessionView& session, int32_t lane) {
  const int32_t* const token = session.token + int64_t{lane} * session.capacity;
  Leaving leaving = {.token = token,
                     .score = (session.keep != nullptr ? session.keep : session.score) + TrackAt(session, lane, 0),
                     .sign = session.rule == ScoreRule::kAge         ? 0.0F
                             : session.rule == ScoreRule::kShortKeys ? -1.0F
                                                                     : 1.0F,
                     .unprotected = FindUnprotected(session, token),
                     .last = 0};
  leaving.last = Find(session.slots, session.drop, [&](int32_t slot) { return leaving.Turn(slot); });
  return leaving;
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_SELECT_H_
