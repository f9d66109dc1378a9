// Weights as linear_rows_small.cc takes them: what a thread reads of a chunk of 32 columns well before it multiplies
// them, and the pairs of BF16 that it then makes of it, in a few operations for two codes.
//
// A small integer is put into the low bits of a BF16 of 128: that is 128 + code, and a sum of two BF16 takes the 128
// off, exactly. Which columns are a thread's, and in which order, is what comes cheapest; x
// is laid out alike (ReadX).

#ifndef EBB_ENGINE_OPS_GPU_ROW_CODES_H_
#define EBB_ENGINE_OPS_GPU_ROW_CODES_H_

#include <cstdint>

#include "engine/ops/gpu/codes.h"
#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"
#include "engine/ops/gpu/weights.h"

namespace ebb::gpu::EBB_GPU_TARGET {

// Four floats, aligned as a vector of them.
EBB_DEVICE void ReadFour(const float* from, float (&to)[4]) {
  const Vector16 four = *reinterpret_cast<const Vector16*>(from);
  EBB_UNROLL
  for (int32_t i = 0; i < 4; ++i) to[i] = FloatOf(four.word[i]);
}
EBB_DEVICE void Swap(float& a, float& b) {
  const float was = a;
  a = b;
  b = was;
}

inline constexpr uint32_t kMinus136 = 0xC308C308U;
inline constexpr uint32_t kMinus160 = 0xC320C320U;

// What scales four chunks of a row, as it is stored.
struct StoredScales {
  uint32_t word[2];  // four of Matrix::scales
  uint32_t super;
};
EBB_DEVICE uint32_t StoredScale(const StoredScales& stored, int32_t i) {
  return stored.word[i / 2] >> (16 * (i % 2)) & 0xFFFFU;
}

// Chunks ahead, where the compiler has tensor cores. Where it has none, multiplying takes far longer than reading does
// (tensor.h), and each chunk ahead is one more copy of all that for the compiler.
constexpr int32_t Ahead(int32_t chunks) {
#if defined(__HIPCC__)
  return 2;
#else
  return chunks;
#endif
}

// kAhead: chunks that a thread reads before it needs the first; the more rows, the fewer registers are left. kScales:
// floats that a chunk of a row has to scale its sums: one; one and a minimum; or one for each half. From: where a
// thread's part of the chunk that begins with value `at` of all of W is; and Read, of a chunk so many further on.
// ReadX: the columns of a tile, in the order of its two words, which are Pairs. kHasMinimum: weights of kElement, which
// have minima.
template <Element kType>
struct RowCodes;

// Where a thread has one vector of a chunk, and its three neighbours have those beside it.
template <typename Vector>
struct OneVector {
  using Raw = Vector;
  using Place = const Vector*;
  static constexpr int32_t kStep = 4;  // of a place from chunk to chunk
  static EBB_DEVICE Raw Read(const Place& place, int32_t chunk) { return ReadOnce(place + chunk * kStep); }
  static EBB_DEVICE void GoOn(Place& place, int32_t chunks) { place += chunks * kStep; }
};

template <>
struct RowCodes<Element::kQ8> : OneVector<Vector8> {
  template <int32_t kRows>
  static constexpr int32_t kAhead = Ahead(kRows > 16 ? 2 : 4);
  static constexpr int32_t kScales = 1;
  static constexpr bool kHasMinimum = false;
  static constexpr bool kByHalves = false;
  static EBB_DEVICE Place From(const Matrix& w, int64_t at, int32_t t) {
    return reinterpret_cast<const Vector8*>(static_cast<const int8_t*>(w.values) + at) + t;
  }
  // Bytes 0 and 2, 1 and 3.
  static EBB_DEVICE void Pairs(const Raw& raw, int32_t tile, int32_t /*t*/, uint32_t (&to)[2]) {
    EBB_UNROLL
    for (int32_t i = 0; i < 2; ++i) to[i] = Bf16PairOfBytes(raw.word[tile], i);
  }
  static EBB_DEVICE void ReadX(const float* x, int32_t t, int32_t tile, float (&to)[4]) {
    ReadFour(x + 8 * t + 4 * tile, to);
    Swap(to[1], to[2]);
  }
  static EBB_DEVICE void Scale(const StoredScales& stored, int32_t i, float (&to)[kScales]) {
    to[0] = FromF16(StoredScale(stored, i));
  }
};

// Thread t has one word: low nibbles of four columns, and high ones of those eight further on.
template <uint32_t kMinusZero>
struct RowNibbles : OneVector<uint32_t> {
  template <int32_t kRows>
  static constexpr int32_t kAhead = Ahead(kRows > 16 ? 4 : 8);
  static constexpr bool kByHalves = false;
  static EBB_DEVICE Place From(const Matrix& w, int64_t at, int32_t t) {
    return static_cast<const uint32_t*>(w.values) + at / 8 + t;
  }
  // Low nibbles of bytes 0 and 2, of bytes 1 and 3; then high ones.
  static EBB_DEVICE void Pairs(const Raw& raw, int32_t tile, int32_t /*t*/, uint32_t (&to)[2]) {
    EBB_UNROLL
    for (int32_t i = 0; i < 2; ++i) {
      to[i] = AddBf16Pairs(BitsAnd(raw >> (8 * i + 4 * tile), 0x000F000FU, k128), kMinusZero);
    }
  }
  static EBB_DEVICE void ReadX(const float* x, int32_t t, int32_t tile, float (&to)[4]) {
    ReadFour(x + t / 2 * 16 + t % 2 * 4 + tile * 8, to);
    Swap(to[1], to[2]);
  }
};
template <>
struct RowCodes<Element::kQ4> : RowNibbles<kMinus136> {
  static constexpr int32_t kScales = 1;
  static constexpr bool kHasMinimum = false;
  static EBB_DEVICE void Scale(const StoredScales& stored, int32_t i, float (&to)[kScales]) {
    to[0] = FromF16(StoredScale(stored, i));
  }
};
template <>
struct RowCodes<Element::kQ4K> : RowNibbles<kMinus128> {
  static constexpr Element kElement = Element::kQ4K;
  static constexpr int32_t kScales = 2;
  static constexpr bool kHasMinimum = true;
  static EBB_DEVICE void Scale(const StoredScales& stored, int32_t i, float (&to)[kScales]) {
    const uint32_t scales = StoredScale(stored, i);
    to[0] = FromF16(stored.super & 0xFFFFU) * static_cast<float>(scales & 0xFFU);
    to[1] = FromF16(stored.super >> 16) * static_cast<float>(scales >> 8);
  }
};

// The same, and thread t has the fifth bits of its columns at 4 t .. of both halves of a word that all four read.
template <>
struct RowCodes<Element::kQ5K> : RowCodes<Element::kQ4K> {
  template <int32_t kRows>
  static constexpr int32_t kAhead = Ahead(kRows > 16 ? 2 : 4);
  static constexpr Element kElement = Element::kQ5K;
  struct Raw {
    uint32_t low;
    uint32_t upper;
  };
  struct Place {  // of a thread's outputs, all but the number are the same: pointers to each would spill registers
    const uint32_t* low;
    const uint32_t* upper;
    int32_t chunk;
  };
  static EBB_DEVICE Place From(const Matrix& w, int64_t at, int32_t t) {
    return {static_cast<const uint32_t*>(w.values) + t, w.upper, static_cast<int32_t>(at / kChunk)};
  }
  static EBB_DEVICE Raw Read(const Place& place, int32_t chunk) {
    return {ReadOnce(place.low + int64_t{4} * place.chunk + 4 * chunk), (place.upper + place.chunk)[chunk]};
  }
  static EBB_DEVICE void GoOn(Place& place, int32_t chunks) { place.chunk += chunks; }
  static EBB_DEVICE void Pairs(const Raw& raw, int32_t tile, int32_t t, uint32_t (&to)[2]) {
    const uint32_t upper = raw.upper >> (4 * t);
    EBB_UNROLL
    for (int32_t i = 0; i < 2; ++i) {
      const uint32_t above = BitsAnd(upper << (4 - 2 * tile - i), 0x00100010U, k128);
      to[i] = AddBf16Pairs(BitsAnd(raw.low >> (8 * i + 4 * tile), 0x000F000FU, above), kMinus128);
    }
  }
};

// Sixteen columns share a scale and make a tile: thread t has 2 t and 2 t + 8 of each, then 2 t + 1 and 2 t + 9.
template <>
struct RowCodes<Element::kQ6K> {
  template <int32_t kRows>
  static constexpr int32_t kAhead = 2;
  static constexpr int32_t kScales = 2;
  static constexpr bool kHasMinimum = false;
  static constexpr bool kByHalves = true;
  struct Raw {
    uint32_t low[2];
    Vector8 upper;
  };
  struct Place {
    const uint32_t* low;
    const Vector8* upper;
  };
  static EBB_DEVICE Place From(const Matrix& w, int64_t at, int32_t t) {
    return {static_cast<const uint32_t*>(w.values) + at / 8 + t / 2,
            reinterpret_cast<const Vector8*>(w.upper + at / 16)};
  }
  static EBB_DEVICE Raw Read(const Place& place, int32_t chunk) {
    return {{ReadOnce(place.low + 4 * chunk), ReadOnce(place.low + 4 * chunk + 2)}, place.upper[chunk]};
  }
  static EBB_DEVICE void GoOn(Place& place, int32_t chunks) {
    place.low += 4 * chunks;
    place.upper += chunks;
  }
  static EBB_DEVICE void Pairs(const Raw& raw, int32_t tile, int32_t t, uint32_t (&to)[2]) {
    const uint32_t byte = 0x4400U + 0x1111U * (2 * t % 4);  // of the word and of it shifted
    const uint32_t low = raw.low[tile];
    const uint32_t upper = raw.upper.word[tile] >> (4 * t);
    EBB_UNROLL
    for (int32_t i = 0; i < 2; ++i) {
      const uint32_t nibbles = PickBytes(low, low >> 4, byte + 0x1111U * i);
      const uint32_t above = BitsAnd(upper << (4 - 2 * i), 0x00300030U, k128);
      to[i] = AddBf16Pairs(BitsAnd(nibbles, 0x000F000FU, above), kMinus160);
    }
  }
  static EBB_DEVICE void ReadX(const float* x, int32_t t, int32_t tile, float (&to)[4]) {
    EBB_UNROLL
    for (int32_t i = 0; i < 2; ++i) {  // two neighbours, and those eight further on
      const Vector8 two = *reinterpret_cast<const Vector8*>(x + 16 * tile + 8 * i + 2 * t);
      to[i] = FloatOf(two.word[0]);
      to[i + 2] = FloatOf(two.word[1]);
    }
  }
  static EBB_DEVICE void Scale(const StoredScales& stored, int32_t i, float (&to)[kScales]) {
    const uint32_t scales = StoredScale(stored, i);
    const float d = FromF16(stored.super & 0xFFFFU);
    to[0] = d * CodeAt(scales, 0);
    to[1] = d * CodeAt(scales, 1);
  }
};

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_ROW_CODES_H_
