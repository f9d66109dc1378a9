// Which experts rows go to, and the order in which experts multiply them (mixture.h, RouteArgs).
//
//   scores [T][experts]   a team of 32 a row: thread i looks at scores i, i + 32, ..., once for each choice, for the
//                         largest that comes behind the choice before; thread j keeps choice j
//   expert [T * used]     | a run of neighbours: a thread | a run | ... of 256 threads      a block for each expert
//
// A block counts all choices by expert, in an order that no count shows, and so learns where its own begin; a running
// sum over its threads' own, in the order of rows, gives each its place. Nothing is handed from block to block.

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kTeams = kThreads / kTeam;
static_assert(kExpertsUsedMax <= kTeam);

// Greater where it is chosen before: the score's rank, where NaN is above infinity and -0 is 0, then the first expert.
EBB_DEVICE uint64_t KeyOf(float score, int32_t expert) {
  const uint32_t bits = BitsOf(score != score ? FloatOf(0x7FC00000U) : score + 0.0F);
  const uint64_t rank = bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
  return rank << 32 | (0xFFFFFFFFU - static_cast<uint32_t>(expert));
}

EBB_KERNEL(kThreads) ChooseExperts(RouteArgs a) {
  const int32_t row = BlockX() * kTeams + ThreadIndex() / kTeam;
  const int32_t member = ThreadIndex() % kTeam;
  const bool is_row = row < a.rows;
  const float* const scores = a.scores + int64_t{is_row ? row : 0} * a.experts;  // all threads of a warp meet
  WaitForEarlier();
  LetLaterBegin();
  uint64_t before = ~uint64_t{0};
  int32_t own = 0;
  for (int32_t i = 0; i < a.used; ++i) {
    uint64_t largest = 0;
    for (int32_t e = member; e < a.experts; e += kTeam) {
      const uint64_t key = KeyOf(scores[e], e);
      if (key < before && key > largest) largest = key;
    }
    before = ReduceTeam(largest, Largest());
    if (member == i) own = static_cast<int32_t>(0xFFFFFFFFU - static_cast<uint32_t>(before));
  }
  const float score = scores[own];
  const float raised = Exp(score - Shuffle(score, 0));
  float sum = 0;
  int32_t place = 0;  // among the row's, by expert
  for (int32_t i = 0; i < a.used; ++i) {
    sum += Shuffle(raised, i);
    place += Shuffle(own, i) < own ? 1 : 0;
  }
  if (!is_row || member >= a.used) return;
  const int64_t at = int64_t{row} * a.used + place;
  a.expert[at] = own;
  a.weight[at] = raised / sum;
}

EBB_DEVICE int32_t TilesOf(int32_t rows) { return (rows + kExpertTileRows - 1) / kExpertTileRows; }

EBB_KERNEL(kThreads) SortByExpert(RouteArgs a) {
  EBB_SHARED int32_t count[kExpertsMax];  // of choices, by expert
  const int32_t expert = BlockX();
  const int32_t thread = ThreadIndex();
  const int32_t choices = a.rows * a.used;
  const int32_t run = (choices + kThreads - 1) / kThreads;
  const int32_t begin = thread * run;
  const int32_t end = begin + run < choices ? begin + run : choices;
  WaitForEarlier();
  LetLaterBegin();
  for (int32_t e = thread; e < a.experts; e += kThreads) count[e] = 0;
  Barrier();
  int32_t own = 0;
  for (int32_t i = begin; i < end; ++i) {
    AddShared(&count[a.expert[i]], 1);
    own += a.expert[i] == expert ? 1 : 0;
  }
  Barrier();
  int32_t choices_before = 0, tiles_before = 0;  // of experts before
  for (int32_t e = thread; e < expert; e += kThreads) {
    choices_before += count[e];
    tiles_before += TilesOf(count[e]);
  }
  const int32_t first = ReduceBlock<kThreads>(choices_before, Plus());
  const int32_t first_tile = ReduceBlock<kThreads>(tiles_before, Plus());
  int32_t place = first + SumBefore<kThreads>(own);
  for (int32_t i = begin; i < end; ++i) {
    if (a.expert[i] != expert) continue;
    a.row_of[place] = i / a.used;
    a.place[i] = place++;
  }
  const int32_t rows = count[expert];
  const int32_t tiles = TilesOf(rows);
  for (int32_t t = thread; t < tiles; t += kThreads) {
    const int32_t past = t * kExpertTileRows;
    const int32_t left = rows - past;
    a.tiles[first_tile + t] = {
        .expert = expert, .first = first + past, .rows = left < kExpertTileRows ? left : kExpertTileRows};
  }
  if (expert != a.experts - 1) return;
  const int32_t all = ExpertTiles(choices, a.experts);
  for (int32_t t = first_tile + tiles + thread; t < all; t += kThreads) a.tiles[t] = {};
}

}  // namespace

void LaunchRoute(const RouteArgs& args, Stream stream) {
  LaunchEarly(ChooseExperts, {(args.rows + kTeams - 1) / kTeams}, kThreads, args, stream);
  LaunchEarly(SortByExpert, {args.rows == 0 ? 0 : args.experts}, kThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
