// K and V as a lane's pages hold them (engine/ops.h, KvFormat), for kernels: element types and addresses.

#ifndef EBB_ENGINE_OPS_CPU_KV_H_
#define EBB_ENGINE_OPS_CPU_KV_H_

#include <cstddef>
#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/vec.h"
#include "engine/ops/cpu/vec_math.h"

namespace ebb::cpu::EBB_KERNEL_ISA {

// Read: 16 elements as floats. ReadTwo: 32, in whatever order costs least; StoreTwo writes such floats back in order.
// kScaled: what Read yields is in units of the slot's scale, and Write takes what floats are to be multiplied by first,
// which makes +-kLargest of the largest; kUnit times that float is the scale.
struct KvF32 {
  static constexpr bool kScaled = false;
  using Type = float;
  static EBB_INLINE Floats Read(const float* p) { return Load(p); }
  static EBB_INLINE Floats ReadFirst(const float* p, int n) { return LoadFirst(p, n); }
  static EBB_INLINE FloatPair ReadTwo(const float* p) { return {Load(p), Load(p + 16)}; }
  static EBB_INLINE void StoreTwo(FloatPair a, float* p) {
    Store(a.low, p);
    Store(a.high, p + 16);
  }
  static EBB_INLINE void Write(Floats a, float* p) { Store(a, p); }
};

struct KvBf16 {
  static constexpr bool kScaled = false;
  using Type = uint16_t;
  static EBB_INLINE Floats Read(const uint16_t* p) { return LoadBf16(p); }
  static EBB_INLINE Floats ReadFirst(const uint16_t* p, int n) { return LoadBf16First(p, n); }
  static EBB_INLINE FloatPair ReadTwo(const uint16_t* p) { return LoadBf16Alternate(p); }
  static EBB_INLINE void StoreTwo(FloatPair a, float* p) { StoreAlternate(a, p); }
  static EBB_INLINE void Write(Floats a, uint16_t* p) { StoreBf16(RoundBf16(a), p); }
};

struct KvF16 {
  static constexpr bool kScaled = false;
  using Type = uint16_t;
  static EBB_INLINE Floats Read(const uint16_t* p) { return LoadF16(p); }
  static EBB_INLINE Floats ReadFirst(const uint16_t* p, int n) { return LoadF16First(p, n); }
  static EBB_INLINE FloatPair ReadTwo(const uint16_t* p) { return {LoadF16(p), LoadF16(p + 16)}; }
  static EBB_INLINE void StoreTwo(FloatPair a, float* p) { KvF32::StoreTwo(a, p); }
  static EBB_INLINE void Write(Floats a, uint16_t* p) { StoreF16(a, p); }
};

struct KvInt8 {
  static constexpr bool kScaled = true;
  static constexpr float kLargest = 127;
  static constexpr float kUnit = 1.0F / 127.0F;
  using Type = int8_t;
  static EBB_INLINE Floats Read(const int8_t* p) { return LoadInt8(p); }
  static EBB_INLINE Floats ReadFirst(const int8_t* p, int n) {
    int8_t lane[16] = {};
    for (int i = 0; i < n; ++i) lane[i] = p[i];
    return LoadInt8(lane);
  }
  static EBB_INLINE FloatPair ReadTwo(const int8_t* p) { return {LoadInt8(p), LoadInt8(p + 16)}; }
  static EBB_INLINE void StoreTwo(FloatPair a, float* p) { KvF32::StoreTwo(a, p); }
  static EBB_INLINE void Write(Floats a, Floats units, int8_t* p) {
    const Floats rounder = Splat(0x1.8p23F);  // leaves the nearest integer, ties to even, in the low bits
    StoreLowBytes(ShiftRightSigned<24>(ShiftLeft<24>(Bits(Fma(a, units, rounder)))), p);
  }
};

struct KvFp8 {
  static constexpr bool kScaled = true;
  static constexpr float kLargest = 448;
  static constexpr float kUnit = 0x1p8F / 448.0F;  // Read yields 2^-8 of what E4M3 is
  using Type = uint8_t;
  static EBB_INLINE Floats Read(const uint8_t* p) { return LoadE4M3(p); }
  static EBB_INLINE Floats ReadFirst(const uint8_t* p, int n) {
    uint8_t lane[16] = {};
    for (int i = 0; i < n; ++i) lane[i] = p[i];
    return LoadE4M3(lane);
  }
  static EBB_INLINE FloatPair ReadTwo(const uint8_t* p) { return LoadE4M3Alternate(p); }
  static EBB_INLINE void StoreTwo(FloatPair a, float* p) { StoreAlternate(a, p); }
  // To nearest, ties to even: next to 2^20 times the power of two below a number, or below the smallest that is normal,
  // floats are as far apart as E4M3 is, so the sum's low bits count what of it fits in, 16 at most. What is more than
  // the largest, or not a number, becomes the largest.
  static EBB_INLINE void Write(Floats a, Floats units, uint8_t* p) {
    const Floats size = Min(FromBits(Bits(a * units) & Splat(0x7FFFFFFF)), Splat(kLargest));
    const Floats power = Max(FromBits(Bits(size) & Splat(0x7F800000)), Splat(0x1p-6F));
    const Ints above = Bits(power) + Splat(20 << 23);
    const Ints count = Bits(size + FromBits(above)) - above;
    const Ints sign = ShiftLeft<7>(ShiftRight<31>(Bits(a)));
    StoreLowBytes(count + ShiftRight<20>(Bits(power)) + sign - Splat((127 - 6) << 3), p);
  }
};

// 16 elements that rest in units of a scale, as numbers.
template <typename E>
EBB_INLINE Floats Scaled(Floats elements, Floats scale) {
  if constexpr (E::kScaled) return elements * scale;
  return elements;
}

template <typename E>
EBB_INLINE void Write(Floats a, Floats units, typename E::Type* p) {
  if constexpr (E::kScaled) {
    E::Write(a, units, p);
  } else {
    E::Write(a, p);
  }
}

// Where the parts of a tile begin. rk is null where the format has none; scales [2][16], K's and V's, are there in
// formats with scales alone.
template <typename T>
struct TileView {
  T* k;
  T* rk;
  T* v;
  float* scales;
};

template <typename T>
EBB_INLINE TileView<T> TileAt(const KvArgs& kv, int32_t tile) {
  const int64_t part = int64_t{kv.head_dim} * 16;
  const int64_t parts = kv.rk ? 3 : 2;
  const int64_t scales = sizeof(T) == 1 ? 2 * 16 * 4 : 0;  // their bytes
  const int64_t tile_bytes = parts * part * static_cast<int64_t>(sizeof(T)) + scales;
  std::byte* at = kv.pages[tile / kv.page_tiles] + (tile % kv.page_tiles) * tile_bytes;
  T* base = reinterpret_cast<T*>(at);
  return {base, kv.rk ? base + part : nullptr, base + (parts - 1) * part,
          reinterpret_cast<float*>(at + tile_bytes - scales)};
}

// The two components that pair i turns together.
struct Pair {
  int32_t first, second;
};
EBB_INLINE Pair PairAt(const RopeArgs& rope, int32_t i) {
  return rope.halves ? Pair{i, i + rope.rotary_dims / 2} : Pair{2 * i, 2 * i + 1};
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA

#endif  // EBB_ENGINE_OPS_CPU_KV_H_
