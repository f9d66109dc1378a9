// Weights as tensor cores take them, where they are exact in BF16: BF16 itself, and the codes of quantised types, whose
// scales meet a sum of products when it is complete.

#ifndef EBB_ENGINE_OPS_GPU_CODES_H_
#define EBB_ENGINE_OPS_GPU_CODES_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"
#include "engine/ops/gpu/weights.h"

namespace ebb::gpu::EBB_GPU_TARGET {

inline constexpr int32_t kChunk = 32;  // columns that are multiplied at a time; what shares a scale
static_assert(kChunk == kWeightBlock);

// Of a chunk that begins at `column`, the eight columns of thread t as pairs of BF16: 8 t .., or, by halves, 4 t .. and
// 16 + 4 t ..; and where kScaled, what their products are to be multiplied by, and what is then taken off, where
// kHasMinimum, of weights of kElement.
template <Element kType>
struct Codes;
template <>
struct Codes<Element::kBf16> {
  static constexpr bool kScaled = false;
  static constexpr bool kByHalves = false;
  static constexpr bool kHasMinimum = false;
  static EBB_DEVICE Vector16 Read(const Matrix& w, int64_t row, int32_t column, int32_t t) {
    return *reinterpret_cast<const Vector16*>(static_cast<const uint16_t*>(w.values) + row * w.cols + column + 8 * t);
  }
};
EBB_DEVICE uint32_t PairOfIntegers(int32_t low, int32_t high) {
  return BitsOf(static_cast<float>(low)) >> 16 | BitsOf(static_cast<float>(high));
}
template <>
struct Codes<Element::kQ8> {
  static constexpr bool kScaled = true;
  static constexpr bool kByHalves = false;
  static constexpr bool kHasMinimum = false;
  static EBB_DEVICE KScales Scales(const Matrix& w, int64_t row, int32_t column) {
    const float scale = FromF16(w.scales[(row * w.cols + column) / kWeightBlock]);
    return {{scale, scale}, 0};
  }
  static EBB_DEVICE Vector16 Read(const Matrix& w, int64_t row, int32_t column, int32_t t) {
    const uint32_t* const from =
        reinterpret_cast<const uint32_t*>(static_cast<const int8_t*>(w.values) + row * w.cols + column + 8 * t);
    Vector16 pairs;
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      const uint32_t word = from[i / 2] >> (16 * (i % 2));
      pairs.word[i] = PairOfIntegers(static_cast<int8_t>(word & 0xFFU), static_cast<int8_t>(word >> 8 & 0xFFU));
    }
    return pairs;
  }
};
// Nibbles less kZero: eight bytes have sixteen columns, low nibbles the first eight.
template <int32_t kZero>
struct NibbleCodes {
  static constexpr bool kScaled = true;
  static constexpr bool kByHalves = false;
  static EBB_DEVICE Vector16 Read(const Matrix& w, int64_t row, int32_t column, int32_t t) {
    const int32_t first = column + 8 * t;
    const int64_t at = (row * w.cols + first) / 16 * 8;
    const uint32_t* const from = reinterpret_cast<const uint32_t*>(static_cast<const uint8_t*>(w.values) + at);
    const int32_t half = first % 16 / 8 * 4;
    Vector16 pairs;
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      const uint32_t word = from[i / 2] >> (16 * (i % 2) + half);
      pairs.word[i] =
          PairOfIntegers(static_cast<int32_t>(word & 0xFU) - kZero, static_cast<int32_t>(word >> 8 & 0xFU) - kZero);
    }
    return pairs;
  }
};
template <>
struct Codes<Element::kQ4> : NibbleCodes<8> {
  static constexpr bool kHasMinimum = false;
  static EBB_DEVICE KScales Scales(const Matrix& w, int64_t row, int32_t column) {
    return Codes<Element::kQ8>::Scales(w, row, column);
  }
};
template <>
struct Codes<Element::kQ4K> : NibbleCodes<0> {
  static constexpr Element kElement = Element::kQ4K;
  static constexpr bool kHasMinimum = true;
  static EBB_DEVICE KScales Scales(const Matrix& w, int64_t row, int32_t column) {
    return ReadKScales<Element::kQ4K>(w, row, column);
  }
};
template <>
struct Codes<Element::kQ5K> : Codes<Element::kQ4K> {  // whose scales are alike
  static constexpr Element kElement = Element::kQ5K;
  static EBB_DEVICE Vector16 Read(const Matrix& w, int64_t row, int32_t column, int32_t t) {
    const int64_t sixteen = (row * w.cols + column) / 16 + t / 2;
    const uint32_t* const from = static_cast<const uint32_t*>(w.values) + 2 * sixteen;
    const int32_t half = t % 2 * 4;
    const uint32_t upper = w.upper[(row * w.cols + column) / kChunk] >> (t / 2 * 8 + t % 2 * 2);
    Vector16 pairs;
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      const uint32_t word = from[i / 2] >> (16 * (i % 2) + half);
      const uint32_t fifth = upper >> (16 * (i % 2) + i / 2 * 4);
      pairs.word[i] = PairOfIntegers(static_cast<int32_t>((word & 0xFU) | (fifth & 1U) << 4),
                                     static_cast<int32_t>((word >> 8 & 0xFU) | (fifth & 2U) << 3));
    }
    return pairs;
  }
};
template <>
struct Codes<Element::kQ6K> {
  static constexpr bool kScaled = true;
  static constexpr bool kByHalves = true;
  static constexpr bool kHasMinimum = false;
  static EBB_DEVICE KScales Scales(const Matrix& w, int64_t row, int32_t column) {
    return ReadKScales<Element::kQ6K>(w, row, column);
  }
  static EBB_DEVICE Vector16 Read(const Matrix& w, int64_t row, int32_t column, int32_t t) {
    Vector16 pairs;
    EBB_UNROLL
    for (int32_t half = 0; half < 2; ++half) {
      const int64_t sixteen = (row * w.cols + column) / 16 + half;
      const uint32_t* const from = static_cast<const uint32_t*>(w.values) + 2 * sixteen;
      const uint32_t low[2] = {from[0], from[1]};
      const uint32_t upper = w.upper[sixteen];
      EBB_UNROLL
      for (int32_t i = 0; i < 2; ++i) {
        const int32_t code = 4 * t + 2 * i;
        pairs.word[2 * half + i] = PairOfIntegers(SixBitCode(low, upper, code), SixBitCode(low, upper, code + 1));
      }
    }
    return pairs;
  }
};

// launch(codes), those of that type. REQUIRES: a type that is exact in BF16.
template <typename F>
void WithCodes(Element type, const F& launch) {
  switch (type) {
    case Element::kQ8:
      return launch(Codes<Element::kQ8>());
    case Element::kQ4:
      return launch(Codes<Element::kQ4>());
    case Element::kQ4K:
      return launch(Codes<Element::kQ4K>());
    case Element::kQ5K:
      return launch(Codes<Element::kQ5K>());
    case Element::kQ6K:
      return launch(Codes<Element::kQ6K>());
    default:
      return launch(Codes<Element::kBf16>());
  }
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_CODES_H_
