// Sums over the values of a lane, by a block of kValueThreads: d / 8 threads, of eight components each, share a row,
// and as many rows go by at once as there are threads for.
//
//   d = 128     thread  0    1   ...  15  |  16   17   ...
//               slot    0    0         0  |   1    1          then those 16 further on
//               V       0-7  8-15  120-127|  0-7  8-15        components

#ifndef EBB_ENGINE_OPS_GPU_VALUES_H_
#define EBB_ENGINE_OPS_GPU_VALUES_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"
#include "engine/ops/gpu/numbers.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {

inline constexpr int32_t kValueThreads = 256;

template <typename E>
struct ValueLane {
  const CacheArgs* cache = nullptr;
  const SessionView* session = nullptr;
  int32_t lane = 0;
  int32_t chunks = 0;  // d / 8

  EBB_DEVICE void Read(int32_t slot, int32_t chunk, float (&v)[8]) const {
    const SlotRows<E> rows = RowsOf<E>(cache->arena, *session, lane, slot);
    ReadNumbers<E>(rows.v + 8 * chunk, rows.Scales().v, v);
  }
};

// to [d] = sum of weight(slot) (v[slot] - from [d]); a slot of weight 0 is not read. Both in shared memory, and not the
// same.
template <typename E, typename Weight>
EBB_DEVICE void AddDifferences(const ValueLane<E>& l, const Weight& weight, const float* from, float* to) {
  EBB_SHARED float sums[kValueThreads][8];
  const int32_t stripes = kValueThreads / l.chunks;
  const int32_t chunk = ThreadIndex() % l.chunks;
  const int32_t stripe = ThreadIndex() / l.chunks;
  float sum[8] = {};
  if (stripe < stripes) {
    float origin[8];
    EBB_UNROLL
    for (int32_t c = 0; c < 8; ++c) origin[c] = from[8 * chunk + c];
    for (int32_t slot = stripe; slot < l.session->slots; slot += stripes) {
      const float weighs = weight(slot);
      if (weighs == 0) continue;
      float v[8];
      l.Read(slot, chunk, v);
      EBB_UNROLL
      for (int32_t c = 0; c < 8; ++c) sum[c] += weighs * (v[c] - origin[c]);
    }
  }
  EBB_UNROLL
  for (int32_t c = 0; c < 8; ++c) sums[ThreadIndex()][c] = sum[c];
  Barrier();
  for (int32_t c = ThreadIndex(); c < 8 * l.chunks; c += kValueThreads) {
    float total = 0;
    for (int32_t s = 0; s < stripes; ++s) total += sums[s * l.chunks + c / 8][c % 8];
    to[c] = total;
  }
  Barrier();
}

// average [d], in shared memory, = sum of share(slot) v[slot], for shares that sum to 1; zeros where all shares are 0.
// Sums differences from one of the values, so that what all have in common is not rounded.
template <typename E, typename Share>
EBB_DEVICE void Average(const ValueLane<E>& l, const Share& share, float* average) {
  EBB_SHARED float origin[kHeadDimMax];
  const int32_t slots = l.session->slots;
  int32_t first = slots;
  for (int32_t slot = ThreadIndex(); slot < slots && first == slots; slot += kValueThreads) {
    if (share(slot) != 0) first = slot;
  }
  first = ReduceBlock<kValueThreads>(first, Smallest());
  if (ThreadIndex() < l.chunks) {
    float v[8] = {};
    if (first < slots) l.Read(first, ThreadIndex(), v);
    EBB_UNROLL
    for (int32_t c = 0; c < 8; ++c) origin[8 * ThreadIndex() + c] = v[c];
  }
  Barrier();
  AddDifferences(l, share, origin, average);
  for (int32_t c = ThreadIndex(); c < 8 * l.chunks; c += kValueThreads) average[c] += origin[c];
  Barrier();
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_VALUES_H_
