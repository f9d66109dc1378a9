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

// What a head of floats is multiplied by so that the largest becomes E::kLargest, and what its elements are to be
// multiplied by; not a number where a float is not finite.
struct Units {
  float units = 1;
  float scale = 1;
};

template <typename E>
EBB_INLINE Units UnitsOf(const float* x, int32_t d) {
  if constexpr (E::kScaled) {
    Floats largest = Zero();
    Floats doubt = Zero();  // not a number where anything is not finite
    for (int32_t c = 0; c < d; c += 16) {
      const Floats a = d - c >= 16 ? Load(x + c) : LoadFirst(x + c, d - c);
      largest = Max(FromBits(Bits(a) & Splat(0x7FFFFFFF)), largest);
      doubt = Fma(a, Zero(), doubt);
    }
    const float most = Largest(largest);
    return {most > 0x1p-100F ? E::kLargest / most : 0.0F,  // below, the quotient could overflow
            most * E::kUnit + Sum(doubt)};
  }
  return {};
}

template <typename E>
EBB_INLINE void Convert(const float* from, int32_t d, Units units, Row<E>& to) {
  const Floats by = Splat(units.units);
  int32_t c = 0;
  for (; c + 16 <= d; c += 16) Write<E>(Load(from + c), by, to.at + c);
  Write<E>(LoadFirst(from + c, d - c), by, to.at + c);
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
void StoreTileKeys(const StoreArgs& a, const float* k, const TileView<typename E::Type>& tile) {
  const int32_t d = a.kv.head_dim;
  float by[16] = {};
  if constexpr (E::kScaled) {
    for (int32_t i = 0; i < 16; ++i) {
      const Units units = UnitsOf<E>(k + i * a.stride, d);
      by[i] = units.units;
      tile.scales[i] = units.scale;
    }
  }
  const Floats units = Load(by);
  for (int32_t c = 0; c < d; c += 16) {
    const int32_t n = d - c < 16 ? d - c : 16;
    Floats rows[16];
    for (int32_t i = 0; i < 16; ++i)
      rows[i] = n == 16 ? Load(k + i * a.stride + c) : LoadFirst(k + i * a.stride + c, n);
    Transpose(rows);
    for (int32_t i = 0; i < n; ++i) Write<E>(rows[i], units, tile.k + int64_t{16} * (c + i));
  }
}

// K, and its rotate-half, of one token in one lane of a tile; asks for the lines of the next one.
template <typename E>
void StoreKey(const StoreArgs& a, const float* k, const TileView<typename E::Type>& tile, int32_t lane,
              const typename E::Type* next) {
  const int32_t d = a.kv.head_dim;
  Row<E> row;
  const Units units = UnitsOf<E>(k, d);
  if constexpr (E::kScaled) tile.scales[lane] = units.scale;
  Convert<E>(k, d, units, row);
  for (int32_t c = 0; c < d; ++c) {
    Prefetch(next + 16 * c);
    tile.k[16 * c + lane] = row.at[c];
  }
  if (tile.rk == nullptr) return;
  float half[kMaxHeadDim];
  RotateHalf(a.rope, k, d, half);
  Convert<E>(half, d, units, row);
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
      StoreTileKeys<E>(a, a.k + t * a.stride, tile);
      stored_keys = t + 16;
    }
    if (t >= stored_keys) {
      // A token's K touches a line every component or two: the next token's are fetched meanwhile.
      const Type* next = TileAt<Type>(a.kv, a.slots[t + 1 < a.tokens ? t + 1 : t] / 16).k;
      StoreKey<E>(a, a.k + t * a.stride, tile, lane, next);
    }
    Row<E> row;
    const Units units = UnitsOf<E>(a.v + t * a.stride, d);
    if constexpr (E::kScaled) tile.scales[16 + lane] = units.scale;
    Convert<E>(a.v + t * a.stride, d, units, row);
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
    case Element::kInt8:
      return StoreTokens<KvInt8>(args);
    case Element::kFp8:
      return StoreTokens<KvFp8>(args);
    default:
      return StoreTokens<KvBf16>(args);
  }
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
