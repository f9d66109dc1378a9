// Writes tokens' K (and its rotate-half) and V into their slots: a lane of each K row, one row of V. Sixteen tokens
// that fill a tile in order, as those of a prompt do and the oldest of a window, are turned into whole K rows.

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

// Whether 16 tokens from t on fill a tile in order.
EBB_INLINE bool FillATile(const StoreArgs& a, int32_t t) {
  if (t + 16 > a.tokens || a.slots[t] % 16 != 0) return false;
  for (int32_t i = 1; i < 16; ++i) {
    if (a.slots[t + i] != a.slots[t] + i) return false;
  }
  return true;
}

// K of 16 tokens, `k` the first one's, as the whole of a tile's.
template <typename E>
void StoreTileKeys(const StoreArgs& a, const float* k, typename E::Type* to) {
  const int32_t d = a.kv.head_dim;
  for (int32_t c = 0; c < d; c += 16) {
    const int32_t n = d - c < 16 ? d - c : 16;
    Floats rows[16];
    for (int32_t i = 0; i < 16; ++i)
      rows[i] = n == 16 ? Load(k + i * a.stride + c) : LoadFirst(k + i * a.stride + c, n);
    Transpose(rows);
    for (int32_t i = 0; i < n; ++i) E::Write(rows[i], to + int64_t{16} * (c + i));
  }
}

// K, and its rotate-half, of one token in one lane of a tile; asks for the lines of the next one.
template <typename E>
void StoreKey(const StoreArgs& a, const float* k, const TileView<typename E::Type>& tile, int32_t lane,
              const typename E::Type* next) {
  const int32_t d = a.kv.head_dim;
  Row<E> row;
  Convert<E>(k, d, row);
  for (int32_t c = 0; c < d; ++c) {
    Prefetch(next + 16 * c);
    tile.k[16 * c + lane] = row.at[c];
  }
  if (tile.rk == nullptr) return;
  float half[kMaxHeadDim];
  RotateHalf(a.rope, k, d, half);
  Convert<E>(half, d, row);
  for (int32_t c = 0; c < d; ++c) tile.rk[16 * c + lane] = row.at[c];
}

template <typename E>
void StoreTokens(const StoreArgs& a) {
  using Type = typename E::Type;
  const int32_t d = a.kv.head_dim;
  int32_t stored_keys = 0;
  for (int32_t t = 0; t < a.tokens; ++t) {
    const TileView<Type> tile = TileAt<Type>(a.kv, a.slots[t] / 16);
    const int32_t lane = a.slots[t] % 16;
    if (t >= stored_keys && tile.rk == nullptr && FillATile(a, t)) {
      StoreTileKeys<E>(a, a.k + t * a.stride, tile.k);
      stored_keys = t + 16;
    }
    if (t >= stored_keys) {
      // A token's K touches a line every component or two: the next token's are fetched meanwhile.
      const Type* next = TileAt<Type>(a.kv, a.slots[t + 1 < a.tokens ? t + 1 : t] / 16).k;
      StoreKey<E>(a, a.k + t * a.stride, tile, lane, next);
    }
    Row<E> row;
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
