// What a lane's scores learn of a prompt's block: a second pass over queries and keys, since a row's weights are known
// only when all its slots were seen. A team keeps the K of 16 slots in registers and meets the rows in order, 16 at a
// time, so that a slot's sum has one owner: no atomics, and no logits in memory. Block (x, h, i): slots 64 x .. of KV
// head h of session i. By the last query alone, that token's rows are all there is to meet. Query heads with tracks of
// their own are met one after another.
//
//              slots 0 .. 15 | 16 .. 31 | 32 .. 47 | 48 .. 63   of a stage of 64
//   team             0       |    1     |    2     |    3
//   tile of 16 rows x 16 slots: thread (g, t) = (i / 4, i % 4) of a team has rows g, g + 8 and slots 2 t, 2 t + 1,
//   8 + 2 t, 8 + 2 t + 1; the eight g of a slot are added by exchange, and g = 0 writes its score

#include <cstdint>

#include "engine/ops/gpu/block.h"
#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = kStageSlots / kStripSlots * kTeam;
constexpr float kLog2E = 1.44269504F;

template <int32_t kTerms, int32_t kUnits>
EBB_KERNEL(kThreads)
ObserveStage(BlockArgs args) {
  const AttendArgs& a = args.attend;
  const BlockLane l = LaneOf<kTerms>(args, BlockZ(), BlockY());
  const SessionView& session = *l.session;
  if (!GoesByAttention(session) || BlockX() * kStageSlots >= session.slots) return;
  const int32_t strip = BlockX() * (kStageSlots / kStripSlots) + ThreadIndex() / kTeam;
  const int32_t g = ThreadIndex() % kTeam / 4;
  const int32_t t = ThreadIndex() % 4;
  const Vector16* const keys = reinterpret_cast<const Vector16*>(l.kv + int64_t{strip} * 2 * l.words);
  int32_t position[4];  // of this thread's columns 2 t, 2 t + 1, 8 + 2 t, 8 + 2 t + 1
  EBB_UNROLL
  for (int32_t i = 0; i < 4; ++i) position[i] = l.position[strip * kStripSlots + 8 * (i / 2) + 2 * t + i % 2];

  const int32_t first = session.rule == ScoreRule::kLast ? l.rows - a.group : 0;
  const int32_t each = session.tracks == 1 ? a.group : 1;  // query heads of a track
  for (int32_t track = 0; track < session.tracks; ++track) {
    float received[4] = {};
    for (int32_t tile = first / kTileRows * kTileRows; tile < l.rows; tile += kTileRows) {
      uint32_t q[1][kTerms][kUnits][4] = {};
      ReadQueries<false>(l, tile, q[0]);
      SyncTeam();
      float logits[1][2][4] = {};
      MultiplyKeys<false>(l, q, keys, logits);
      EBB_UNROLL
      for (int32_t half = 0; half < 2; ++half) {
        const int32_t m = tile + g + 8 * half;
        if (m < first || m >= l.rows || m % a.group / each != track) continue;
        const int32_t query = PositionOf(l, m);
        const float* const stats = a.stats + 2 * StepRow(l, m);
        EBB_UNROLL
        for (int32_t i = 0; i < 4; ++i) {
          if (position[i] > query) continue;
          const float p = Exp2(MultiplyAdd(logits[0][i / 2][2 * half + i % 2], kLog2E, -(stats[0] * kLog2E)));
          received[i] = MultiplyAdd(p, stats[1], received[i]);
        }
      }
    }
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      EBB_UNROLL
      for (int32_t mask = 16; mask >= 4; mask /= 2) received[i] += ShuffleXor(received[i], mask);
      const int32_t slot = strip * kStripSlots + 8 * (i / 2) + 2 * t + i % 2;
      if (g != 0 || slot >= session.slots) continue;
      float* const score = TrackOf(session, a.layer * a.cache.kv_heads + l.head, track) + slot;
      const float mean = received[i] / static_cast<float>(each);
      *score = session.rule == ScoreRule::kLast ? mean : *score + mean;
    }
  }
}

template <int32_t kTerms>
void LaunchOf(const BlockArgs& args, Stream stream) {
  const CacheArgs& cache = args.attend.cache;
  const Grid grid = {args.strips * kStripSlots / kStageSlots, cache.kv_heads, cache.session_count};
  const int32_t d = cache.arena.head_dim;
  if (d <= 64) return Launch(ObserveStage<kTerms, 4>, grid, kThreads, args, stream);
  if (d <= 128) return Launch(ObserveStage<kTerms, 8>, grid, kThreads, args, stream);
  Launch(ObserveStage<kTerms, 16>, grid, kThreads, args, stream);
}

}  // namespace

void LaunchObserveBlock(const BlockArgs& args, Stream stream) {
  if (LaidTerms(args.attend.cache.arena.type) == 1) return LaunchOf<1>(args, stream);
  LaunchOf<kBf16Terms>(args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
