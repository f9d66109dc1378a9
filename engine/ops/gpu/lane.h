// Where a lane's slots, K, V and scores lie (kernels.h, Arena, SessionView).

#ifndef EBB_ENGINE_OPS_GPU_LANE_H_
#define EBB_ENGINE_OPS_GPU_LANE_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"

namespace ebb::gpu::EBB_GPU_TARGET {

// launch(element), which is what reads and writes a cache of that type (numbers.h). REQUIRES: a type of cache.
template <typename F>
void WithElement(Element type, const F& launch) {
  switch (type) {
    case Element::kF32:
      return launch(KvF32());
    case Element::kF16:
      return launch(KvF16());
    case Element::kQ8:
      return launch(KvInt8());
    case Element::kFp8:
      return launch(KvFp8());
    default:
      return launch(KvBf16());
  }
}

// Lanes of one session that a block goes through, for a launch to have no more blocks than a large device has room for
// at once; where there are fewer lanes than that, one each.
constexpr int32_t LanesOfBlock(const CacheArgs& cache) {
  constexpr int32_t kBlocks = 6 * kMultiprocessors;
  const int32_t of_session =
      cache.session_count > 0 && cache.session_count < kBlocks ? kBlocks / cache.session_count : 1;
  return (cache.lanes + of_session - 1) / of_session;
}

struct SlotScales {
  float k, v;
};
template <typename E>
struct SlotRows {
  typename E::Type* k;
  typename E::Type* v;
  float* scales;  // of K; of V kPageSlots further; null unless E::kScaled

  EBB_DEVICE SlotScales Scales() const {
    if constexpr (E::kScaled) return {scales[0], scales[kPageSlots]};
    return {1, 1};
  }
};

// The rows of a slot whose page it is.
template <typename E>
EBB_DEVICE SlotRows<E> RowsIn(const Arena& arena, int64_t page, int32_t slot) {
  const int64_t d = arena.head_dim;
  using Type = typename E::Type;
  const int64_t elements = int64_t{2} * kPageSlots * d;
  const int64_t bytes = elements * sizeof(Type) + (E::kScaled ? 2 * kPageSlots * sizeof(float) : 0);
  Type* const k = reinterpret_cast<Type*>(static_cast<uint8_t*>(arena.base) + page * bytes);
  float* const scales = E::kScaled ? reinterpret_cast<float*>(k + elements) + slot % kPageSlots : nullptr;
  return {k + slot % kPageSlots * d, k + (kPageSlots + slot % kPageSlots) * d, scales};
}

// The rows of a slot. REQUIRES: slot < capacity.
template <typename E>
EBB_DEVICE SlotRows<E> RowsOf(const Arena& arena, const SessionView& session, int32_t lane, int32_t slot) {
  return RowsIn<E>(arena, session.page[int64_t{lane} * session.pages_per_lane + slot / kPageSlots], slot);
}

// Where the scores of a lane's track begin; those made of them lie alike.
EBB_DEVICE int64_t TrackAt(const SessionView& session, int32_t lane, int32_t track) {
  return (int64_t{lane} * session.tracks + track) * session.capacity;
}
EBB_DEVICE float* TrackOf(const SessionView& session, int32_t lane, int32_t track) {
  return session.score + TrackAt(session, lane, track);
}

EBB_DEVICE bool GoesByAttention(const SessionView& session) {
  return session.rule == ScoreRule::kSum || session.rule == ScoreRule::kLast;
}

// Tokens of a lane that sinks and recent do not protect, the step's own included.
EBB_DEVICE int32_t CandidatesOf(const SessionView& session) {
  return session.live + session.tokens - session.sinks - session.recent;
}
// Whether anybody leaves, and somebody who may leave stays: else scores change nothing.
EBB_DEVICE bool HasChoice(const SessionView& session) {
  return session.drop > 0 && session.drop < CandidatesOf(session);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_LANE_H_
