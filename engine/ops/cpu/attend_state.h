// What rows of attention have made of some slots: begun, merged with what they made of others, and turned into outputs
// and observations (kernels.h, AttendState).

#ifndef EBB_ENGINE_OPS_CPU_ATTEND_STATE_H_
#define EBB_ENGINE_OPS_CPU_ATTEND_STATE_H_

#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/vec.h"
#include "engine/ops/cpu/vec_math.h"

namespace ebb::cpu::EBB_KERNEL_ISA {

inline constexpr float kNone = -__builtin_inff();

EBB_INLINE int32_t Width(int32_t head_dim) { return (head_dim + 15) / 16 * 16; }

EBB_INLINE bool IsObserved(const AttendArgs& a) {
  return a.column_sums != nullptr || a.last_row != nullptr || a.window_rows > 0;
}

// Logits of a row: of one block, or, where they are reported, of all.
EBB_INLINE int64_t LogitsStride(const AttendArgs& a) {
  return IsObserved(a) ? (int64_t{a.slots} + kBlockSlots - 1) / kBlockSlots * kBlockSlots : kBlockSlots;
}

// Nothing seen yet.
inline void Reset(const AttendArgs& a, const AttendState& state) {
  const int32_t rows = a.tokens * a.group;
  for (int64_t i = 0; i < int64_t{rows} * Width(a.kv.head_dim); i += 16) Store(Zero(), state.sums + i);
  for (int32_t r = 0; r < rows; ++r) {
    state.peak[r] = kNone;
    Store(Zero(), state.weight + int64_t{16} * r);
  }
}

// Adds a part to those before it. Where a row saw nothing of either, the other stays bit for bit.
inline void MergeState(const AttendArgs& a, const AttendState& part, const AttendState& all) {
  const int32_t width = Width(a.kv.head_dim);
  for (int32_t r = 0; r < a.tokens * a.group; ++r) {
    const float here = part.peak[r], former = all.peak[r];
    if (here == kNone) continue;
    const float peak = here > former ? here : former;
    const Floats shrink = Exp(Splat(former - peak));
    const Floats share = Exp(Splat(here - peak));
    const auto merge = [&](const float* from, float* into) __attribute__((always_inline)) {
      Store(former == kNone ? Load(from) : Fma(Load(from), share, Load(into) * shrink), into);
    };
    merge(part.weight + int64_t{16} * r, all.weight + int64_t{16} * r);
    for (int64_t c = int64_t{r} * width; c < int64_t{r + 1} * width; c += 16) merge(part.sums + c, all.sums + c);
    all.peak[r] = peak;
  }
}

// out[s] = sum over rows first, first + step, .. below `end` of P[row, s], times `share`.
inline void SumEveryRow(const AttendArgs& a, const AttendState& all, int32_t first, int32_t end, int32_t step,
                        Floats share, int64_t stride, float* out) {
  for (int32_t s = 0; s < a.slots; s += 16) {
    Floats sum = Zero();
    for (int32_t r = first; r < end; r += step) {
      const Floats x = Load(a.scratch.logits + r * stride + s) - Splat(all.peak[r]);
      sum = Fma(Exp(x), Splat(all.weight[int64_t{16} * r]), sum);
    }
    StoreFirst(sum * share, out + s, a.slots - s < 16 ? a.slots - s : 16);
  }
}

// out[s] = sum over the rows of tokens first .. last-1 of P[row, s]: divided by the group, or each query head's own.
inline void SumRows(const AttendArgs& a, const AttendState& all, int32_t first, int32_t last, int64_t stride,
                    float* out) {
  if (a.head_stride != 0) {
    for (int32_t g = 0; g < a.group; ++g) {
      SumEveryRow(a, all, first * a.group + g, last * a.group, a.group, Splat(1.0F), stride, out + g * a.head_stride);
    }
    return;
  }
  const Floats share = Splat(1.0F) / Splat(static_cast<float>(a.group));
  SumEveryRow(a, all, first * a.group, last * a.group, 1, share, stride, out);
}

inline void Observe(const AttendArgs& a, const AttendState& all) {
  const int64_t stride = LogitsStride(a);
  if (a.column_sums != nullptr) SumRows(a, all, 0, a.tokens, stride, a.column_sums);
  if (a.last_row != nullptr) SumRows(a, all, a.tokens - 1, a.tokens, stride, a.last_row);
  for (int32_t w = 0; w < a.window_rows; ++w) {
    const int32_t token = a.tokens - a.window_rows + w;
    SumRows(a, all, token, token + 1, stride, a.window + int64_t{w} * a.slots);
  }
}

// out = sums / weight, and the observations; leaves 1 / weight in weight[row][0].
template <typename E>
void Finish(const AttendArgs& a, const AttendState& all) {
  const int32_t d = a.kv.head_dim;
  const int32_t width = Width(d);
  for (int32_t r = 0; r < a.tokens * a.group; ++r) {
    float* weight = all.weight + int64_t{16} * r;
    const float total = Sum(Load(weight));
    weight[0] = total > 0 ? 1.0F / total : 0.0F;
    const float* sums = all.sums + int64_t{r} * width;
    float* out = a.out + r / a.group * a.out_stride + r % a.group * d;
    const Floats share = Splat(weight[0]);
    int32_t c = 0;
    for (; c + 32 <= d; c += 32) E::StoreTwo({Load(sums + c) * share, Load(sums + c + 16) * share}, out + c);
    for (; c < d; c += 16) StoreFirst(Load(sums + c) * share, out + c, d - c < 16 ? d - c : 16);
  }
  if (IsObserved(a)) Observe(a, all);
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA

#endif  // EBB_ENGINE_OPS_CPU_ATTEND_STATE_H_
