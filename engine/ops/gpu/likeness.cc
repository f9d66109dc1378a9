// How unlike the others each key of a lane is (kernels.h, LikenessArgs): policies/key_likeness.cc on the device. Block
// (l, i): lane l of session i. K is read twice, for the mean direction and for each key's cosine with it, by teams that
// have a row each, d / 8 threads or the power of two above.
//
// Terms of the mean are rounded to multiples of 2^-28, of which up to 2^24 add up within float64's 53 bits: the sum is
// exact, and the same bits in whatever order threads add.
//
//   both passes, d = 128     thread  0    1   ...  15  |  16   17   ...
//                            slot    0    0         0  |   1    1          then those 16 further on
//                            K       0-7  8-15  120-127|  0-7  8-15        components, as they rest: not rotated
//   sums [threads, 8] float64, shared   each thread's part of the mean; component c of all teams: thread c
//   keep [lanes, capacity] floats       minus the cosine: thread 0 of the slot's team

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/numbers.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;
constexpr double kRounding = 0x1.8p24;  // adding and subtracting it rounds

// 1 / |k|, 0 where that is no number, of the row of which a team's threads have eight components each.
EBB_DEVICE double InverseLength(const float (&k)[8], int32_t width) {
  double squares = 0;
  EBB_UNROLL
  for (int32_t c = 0; c < 8; ++c) squares += static_cast<double>(k[c]) * k[c];
  const double length = Sqrt(ReduceTeam(squares, Plus(), width));
  return length > 0 && length < static_cast<double>(Infinity()) ? 1 / length : 0;
}

template <typename E>
EBB_KERNEL(kThreads)
LikenLane(LikenessArgs a) {
  EBB_SHARED double sums[kThreads][8];
  EBB_SHARED double sum[kHeadDimMax];
  const SessionView& session = a.cache.sessions[BlockY()];
  if (session.rule != ScoreRule::kKeyLikeness || !HasChoice(session)) return;
  const int64_t first = int64_t{BlockX()} * session.capacity;
  const int32_t* const token = session.token + first;
  float* const keep = session.keep + first;
  const int32_t chunks = a.cache.arena.head_dim / 8;
  const int32_t width = TeamFor(chunks);
  const int32_t chunk = ThreadIndex() % width;
  const int32_t team = ThreadIndex() / width;
  const int32_t teams = kThreads / width;
  // The thread's part of the slot's key, zeros where nobody sits; whether somebody does.
  const auto read = [&](int32_t slot, float(&k)[8]) {
    const bool exists = slot < session.slots && token[slot] >= 0;
    if (!exists || chunk >= chunks) return exists;
    const SlotRows<E> rows = RowsOf<E>(a.cache.arena, session, BlockX(), slot);
    ReadNumbers<E>(rows.k + 8 * chunk, rows.Scales().k, k);
    return exists;
  };

  double own[8] = {};
  for (int32_t begin = 0; begin < session.slots; begin += teams) {
    float k[8] = {};
    read(begin + team, k);
    const double inverse = InverseLength(k, width);
    EBB_UNROLL
    for (int32_t c = 0; c < 8 && inverse != 0; ++c) own[c] += (k[c] * inverse + kRounding) - kRounding;
  }
  EBB_UNROLL
  for (int32_t c = 0; c < 8; ++c) sums[ThreadIndex()][c] = own[c];
  Barrier();
  double squares = 0;
  for (int32_t c = ThreadIndex(); c < 8 * chunks; c += kThreads) {
    double total = 0;
    for (int32_t t = 0; t < teams; ++t) total += sums[t * width + c / 8][c % 8];
    sum[c] = total;
    squares += total * total;
  }
  const double length = Sqrt(ReduceBlock<kThreads>(squares, Plus()));
  const double scale = length > 0 ? 1 / length : 0;

  for (int32_t begin = 0; begin < session.slots; begin += teams) {
    const int32_t slot = begin + team;
    float k[8] = {};
    const bool exists = read(slot, k);
    const double inverse = InverseLength(k, width);
    double product = 0;
    EBB_UNROLL
    for (int32_t c = 0; c < 8 && chunk < chunks; ++c) product += k[c] * sum[8 * chunk + c];
    product = ReduceTeam(product, Plus(), width);
    if (exists && chunk == 0) keep[slot] = -static_cast<float>(product * inverse * scale);
  }
}

}  // namespace

void LaunchLikeness(const LikenessArgs& args, Stream stream) {
  const Grid grid = {args.cache.lanes, args.cache.session_count};
  WithElement(args.cache.arena.type,
              [&](auto element) { Launch(LikenLane<decltype(element)>, grid, kThreads, args, stream); });
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
