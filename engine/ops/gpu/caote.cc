// What a lane's output loses with each of its tokens (kernels.h, CaoteArgs): policies/caote.cc on the device. Block
// (t, i): a track of session i, all tracks of a lane side by side. Where there is no choice, nothing is read.
//
// V is read twice, for what values are compared with (values.h draws it) and for how far they are from it: in teams
// that have a row each, d / 8 threads or the power of two above.
//
// 1 - a loses everything where one slot holds nearly all: of a slot that holds more than half, what the others hold is
// added up, and it is compared with the output that they leave.
//
//   second pass, d = 128    thread  0    1   ...  15  |  16   17   ...
//                           slot    0    0         0  |   1    1          then those 16 further on
//                           V       0-7  8-15  120-127|  0-7  8-15        a team's threads past d / 8 read nothing
//   keep [lanes, tracks, capacity] floats   what a slot weighs, then its cost: thread 0 of the team

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/reduce.h"
#include "engine/ops/gpu/values.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = kValueThreads;

// |center - v| of a slot, known to its whole team; 0 where there is nothing to read.
template <typename E>
EBB_DEVICE float Distance(const ValueLane<E>& l, int32_t slot, bool exists, int32_t width, const float* center) {
  const int32_t chunk = ThreadIndex() % width;
  float sum = 0;
  if (exists && chunk < l.chunks) {
    float v[8];
    l.Read(slot, chunk, v);
    EBB_UNROLL
    for (int32_t c = 0; c < 8; ++c) {
      const float difference = v[c] - center[8 * chunk + c];
      sum += difference * difference;
    }
  }
  return Sqrt(ReduceTeam(sum, Plus(), width));
}

template <typename E>
EBB_KERNEL(kThreads)
WeighLane(CaoteArgs a) {
  EBB_SHARED float center[kHeadDimMax];
  EBB_SHARED float left[kHeadDimMax];  // the output that the largest leaves
  const SessionView& session = a.cache.sessions[BlockY()];
  const int32_t lane = BlockX() / a.tracks;
  const int32_t track = BlockX() % a.tracks;
  if (session.modifier == ScoreModifier::kNone || track >= session.tracks || !HasChoice(session)) return;
  const ValueLane<E> l = {&a.cache, &session, lane, a.cache.arena.head_dim / 8};
  const int32_t* const token = session.token + int64_t{lane} * session.capacity;
  const float* const score = TrackOf(session, lane, track);
  float* const keep = session.keep + TrackAt(session, lane, track);
  const int32_t slots = session.slots;

  // keep: what each weighs.
  double total = 0;
  float most = 0;
  for (int32_t slot = ThreadIndex(); slot < slots; slot += kThreads) {
    const float weight = token[slot] >= 0 && score[slot] > 0 ? score[slot] : 0.0F;
    keep[slot] = weight;
    total += weight;
    most = Larger(weight, most);
  }
  total = ReduceBlock<kThreads>(total, Plus());
  most = ReduceBlock<kThreads>(most, Largest());
  const int32_t live = session.live + session.tokens;
  if (!(total > 0)) {
    for (int32_t slot = ThreadIndex(); slot < slots; slot += kThreads) keep[slot] = token[slot] >= 0 ? 1.0F : 0.0F;
    total = live;
    most = 1;
  }
  Barrier();

  const bool is_fast = session.modifier == ScoreModifier::kFastCaote;
  const float equal = 1 / static_cast<float>(live);
  Average(
      l,
      [=](int32_t slot) {
        if (is_fast) return token[slot] >= 0 ? equal : 0.0F;
        return static_cast<float>(keep[slot] / total);
      },
      center);

  const int32_t width = TeamFor(l.chunks);
  int32_t largest = slots;  // that holds more than half, if there is one
  float cost_of_largest = 0;
  if (2 * static_cast<double>(most) > total) {
    for (int32_t slot = ThreadIndex(); slot < slots && largest == slots; slot += kThreads) {
      if (keep[slot] == most) largest = slot;
    }
    largest = ReduceBlock<kThreads>(largest, Smallest());
    double rest = 0;
    for (int32_t slot = ThreadIndex(); slot < slots; slot += kThreads) rest += slot == largest ? 0.0F : keep[slot];
    rest = ReduceBlock<kThreads>(rest, Plus());
    if (rest <= 0) {
      cost_of_largest = Infinity();
    } else if (is_fast) {
      cost_of_largest = static_cast<float>(most / rest * Distance(l, largest, true, width, center));
    } else {
      Average(
          l, [=](int32_t slot) { return slot == largest ? 0.0F : static_cast<float>(keep[slot] / rest); }, left);
      cost_of_largest = static_cast<float>(most / total) * Distance(l, largest, true, width, left);
    }
  }

  // A slot has one team, which reads its weight before it writes its cost.
  const int32_t team = ThreadIndex() / width;
  for (int32_t begin = 0; begin < slots; begin += kThreads / width) {
    const int32_t slot = begin + team;
    const float weight = slot < slots ? keep[slot] : 0.0F;
    const float distance = Distance(l, slot, weight != 0, width, center);
    if (weight == 0 || ThreadIndex() % width != 0) continue;
    keep[slot] = slot == largest ? cost_of_largest : static_cast<float>(weight / (total - weight)) * distance;
  }
}

}  // namespace

void LaunchCaote(const CaoteArgs& args, Stream stream) {
  const Grid grid = {int64_t{args.cache.lanes} * args.tracks, args.cache.session_count};
  WithElement(args.cache.arena.type,
              [&](auto element) { Launch(WeighLane<decltype(element)>, grid, kThreads, args, stream); });
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
