// Writes tokens' K (and its rotate-half) and V into their slots: a lane of each K row, one row of V.

#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/kv.h"
#include "engine/ops/cpu/vec.h"

namespace ebb::cpu::EBB_KERNEL_ISA {
namespace {

// One head in the element type; the slack lets the last vector be written whole.
template <typename E>
struct Row {
  typename E::Type at[kMaxHeadDim + 16];
};

template <typename E>
EBB_INLINE void Convert(const float* from, int32_t d, Row<E>& to) {
  int32_t c = 0;
  for (; c + 16 <= d; c += 16) E::Write(Load(from + c), to.at + c);
  E::Write(LoadFirst(from + c, d - c), to.at + c);
}

// Rotate-half: the first of a pair holds minus the second, the second the first; zero past rotary_dims.
EBB_INLINE void RotateHalf(const RopeArgs& rope, const float* k, int32_t d, float* rk) {
  for (int32_t c = rope.rotary_dims; c < d; ++c) rk[c] = 0;
  for (int32_t i = 0; i < rope.rotary_dims / 2; ++i) {
    const Pair pair = PairAt(rope, i);
    rk[pair.first] = -k[pair.second];
    rk[pair.second] = k[pair.first];
  }
}

template <typename E>
void StoreTokens(const StoreArgs& a) {
  using Type = typename E::Type;
  const int32_t d = a.kv.head_dim;
  Row<E> row;
  for (int32_t t = 0; t < a.tokens; ++t) {
    const TileView<Type> tile = TileAt<Type>(a.kv, a.slots[t] / 16);
    const int32_t lane = a.slots[t] % 16;
    const float* k = a.k + t * a.stride;
    // A token's K touches a line every component or two: the next token's are fetched meanwhile.
    const Type* next = TileAt<Type>(a.kv, a.slots[t + 1 < a.tokens ? t + 1 : t] / 16).k;
    Convert<E>(k, d, row);
    for (int32_t c = 0; c < d; ++c) {
      Prefetch(next + 16 * c);
      tile.k[16 * c + lane] = row.at[c];
    }
    if (tile.rk != nullptr) {
      float half[kMaxHeadDim];
      RotateHalf(a.rope, k, d, half);
      Convert<E>(half, d, row);
      for (int32_t c = 0; c < d; ++c) tile.rk[16 * c + lane] = row.at[c];
    }
    Convert<E>(a.v + t * a.stride, d, row);
    for (int32_t c = 0; c < d; ++c) tile.v[lane * d + c] = row.at[c];
  }
}

}  // namespace

void Store(const StoreArgs& args) {
  switch (args.kv.type) {
    case Element::kF32:
      return StoreTokens<KvF32>(args);
    case Element::kF16:
      return StoreTokens<KvF16>(args);
    default:
      return StoreTokens<KvBf16>(args);
  }
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
