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
    const auto* row = TileAt<typename E::Type>(a.kv, slot / 16).v + int64_t{slot % 16} * d;
    float* out = a.out + int64_t{i} * d;
    int32_t c = 0;
    for (; c + 16 <= d; c += 16) Store(E::Read(row + c), out + c);
    if (c < d) StoreFirst(E::ReadFirst(row + c, d - c), out + c, d - c);
  }
}

// K rests component by component of 16 slots: each vector is spread over 16 rows.
template <typename E>
void ReadKeys(const ReadArgs& a) {
  const int32_t d = a.kv.head_dim;
  const int32_t end = a.first + a.count;
  for (int32_t tile = a.first / 16; 16 * tile < end; ++tile) {
    const auto* k = TileAt<typename E::Type>(a.kv, tile).k;
    const int32_t from = a.first > 16 * tile ? a.first - 16 * tile : 0;
    const int32_t to = end < 16 * tile + 16 ? end - 16 * tile : 16;
    float* out = a.out + (int64_t{16} * tile - a.first) * d;
    for (int32_t c = 0; c < d; ++c) {
      alignas(64) float component[16];
      Store(E::Read(k + int64_t{16} * c), component);
      for (int32_t s = from; s < to; ++s) out[int64_t{s} * d + c] = component[s];
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
    default:
      return ReadRows<KvBf16>(args);
  }
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
