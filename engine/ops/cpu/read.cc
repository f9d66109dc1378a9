// Reads rows of K and V back as floats, for scorers that look at them.

#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/kv.h"
#include "engine/ops/cpu/vec.h"

namespace ebb::cpu::EBB_KERNEL_ISA {
namespace {

// V rests row by row.
template <typename E>
void ReadValues(const ReadArgs& a) {
  const int32_t d = a.kv.head_dim;
  for (int32_t i = 0; i < a.count; ++i) {
    const int32_t slot = a.first + i;
    const auto tile = TileAt<typename E::Type>(a.kv, slot / 16);
    const auto* row = tile.v + int64_t{slot % 16} * d;
    const Floats scale = E::kScaled ? Splat(tile.scales[16 + slot % 16]) : Zero();
    float* out = a.out + int64_t{i} * d;
    int32_t c = 0;
    for (; c + 16 <= d; c += 16) Store(Scaled<E>(E::Read(row + c), scale), out + c);
    if (c < d) StoreFirst(Scaled<E>(E::ReadFirst(row + c, d - c), scale), out + c, d - c);
  }
}

using Eight = float __attribute__((vector_size(32), may_alias));

template <int... kAt>
struct Places {};
using AllPlaces = Places<0, 1, 2, 3, 4, 5, 6, 7>;

// Of every 2 kStep neighbours, a's second half and b's first half change places.
template <int kStep, int... kAt>
EBB_INLINE void ExchangeHalves(Eight& a, Eight& b, Places<kAt...> /*places*/) {
  const Eight low = __builtin_shufflevector(a, b, ((kAt & kStep) == 0 ? kAt : kAt + 8 - kStep)...);
  b = __builtin_shufflevector(a, b, ((kAt & kStep) == 0 ? kAt + kStep : kAt + 8)...);
  a = low;
}

// Exchanges the quarters of every square of 2 kStep rows and columns.
template <int kStep>
EBB_INLINE void ExchangeQuarters(Eight (&rows)[8]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    if ((i & kStep) == 0) ExchangeHalves<kStep>(rows[i], rows[i + kStep], AllPlaces());
  }
}

// Rows of a square become its columns.
EBB_INLINE void Transpose(const float (&square)[16][16], float (&columns)[16][16]) {
#pragma GCC unroll 4
  for (int quarter = 0; quarter < 4; ++quarter) {
    const int row = quarter / 2 * 8, column = quarter % 2 * 8;
    Eight rows[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) rows[i] = *reinterpret_cast<const Eight*>(&square[row + i][column]);
    ExchangeQuarters<1>(rows);
    ExchangeQuarters<2>(rows);
    ExchangeQuarters<4>(rows);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) *reinterpret_cast<Eight*>(&columns[column + i][row]) = rows[i];
  }
}

// K rests component by component of 16 slots: sixteen components at a time become parts of 16 rows.
template <typename E>
void ReadKeys(const ReadArgs& a) {
  const int32_t d = a.kv.head_dim;
  const int32_t end = a.first + a.count;
  for (int32_t tile = a.first / 16; 16 * tile < end; ++tile) {
    const auto view = TileAt<typename E::Type>(a.kv, tile);
    const auto* k = view.k;
    const Floats scale = E::kScaled ? Load(view.scales) : Zero();
    const int32_t from = a.first > 16 * tile ? a.first - 16 * tile : 0;
    const int32_t to = end < 16 * tile + 16 ? end - 16 * tile : 16;
    float* out = a.out + (int64_t{16} * tile - a.first) * d;
    for (int32_t c = 0; c < d; c += 16) {
      const int32_t width = d - c < 16 ? d - c : 16;
      alignas(64) float square[16][16];
      for (int32_t i = 0; i < width; ++i) Store(Scaled<E>(E::Read(k + int64_t{16} * (c + i)), scale), square[i]);
      alignas(64) float columns[16][16];
      if (to - from > 1) Transpose(square, columns);
      for (int32_t s = from; s < to; ++s) {
        float* const row = out + int64_t{s} * d + c;
        if (to - from == 1) {
          for (int32_t i = 0; i < width; ++i) row[i] = square[i][s];
        } else if (width == 16) {
          Store(Load(columns[s]), row);
        } else {
          StoreFirst(Load(columns[s]), row, width);
        }
      }
    }
  }
}

template <typename E>
void ReadRows(const ReadArgs& a) {
  if (a.values) {
    ReadValues<E>(a);
  } else {
    ReadKeys<E>(a);
  }
}

}  // namespace

void Read(const ReadArgs& args) {
  switch (args.kv.type) {
    case Element::kF32:
      return ReadRows<KvF32>(args);
    case Element::kF16:
      return ReadRows<KvF16>(args);
    case Element::kInt8:
      return ReadRows<KvInt8>(args);
    case Element::kFp8:
      return ReadRows<KvFp8>(args);
    default:
      return ReadRows<KvBf16>(args);
  }
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
