// K and V of the step's tokens into the slots where they were placed, as the cache's element type. Block (h, t): KV
// head h of row t; thread c takes components c, c + 128, ...
//
//   k, v row t of the step -> row slot % 64 of K and of V in page slot / 64 (kernels.h, Arena): two rows of d elements
//   are written, and nothing else of the cache is touched

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/numbers.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 128;

template <typename E>
EBB_KERNEL(kThreads)
StoreRow(StoreArgs a) {
  const int32_t head = BlockX();
  const int32_t row = BlockY();
  const SessionView& session = a.cache.sessions[a.cache.row_session[row]];
  const int32_t lane = a.layer * a.cache.kv_heads + head;
  const int32_t slot = session.placed[int64_t{lane} * session.block_max + row - session.first_row];
  const SlotRows<typename E::Type> to = RowsOf<typename E::Type>(a.cache.arena, session, lane, slot);
  const int32_t d = a.cache.arena.head_dim;
  const int64_t from = row * a.stride + int64_t{head} * d;
  for (int32_t c = ThreadIndex(); c < d; c += kThreads) {
    to.k[c] = E::Convert(a.k[from + c]);
    to.v[c] = E::Convert(a.v[from + c]);
  }
}

}  // namespace

void LaunchStore(const StoreArgs& args, Stream stream) {
  const Grid grid = {args.cache.kv_heads, args.cache.rows};
  switch (args.cache.arena.type) {
    case Element::kF32:
      return Launch(StoreRow<KvF32>, grid, kThreads, args, stream);
    case Element::kF16:
      return Launch(StoreRow<KvF16>, grid, kThreads, args, stream);
    default:
      return Launch(StoreRow<KvBf16>, grid, kThreads, args, stream);
  }
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
