// Weights of any type as floats, sixteen columns of a row at a time (kernels.h, Matrix).

#ifndef EBB_ENGINE_OPS_GPU_WEIGHTS_H_
#define EBB_ENGINE_OPS_GPU_WEIGHTS_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/numbers.h"

namespace ebb::gpu::EBB_GPU_TARGET {

inline constexpr int32_t kColumns = 16;

EBB_DEVICE float CodeAt(uint32_t word, int32_t byte) {
  return static_cast<float>(static_cast<int8_t>(word >> (8 * byte) & 0xFFU));
}

template <Element kType>
struct Weights;

// Of types without scales, as components of K and V are read (numbers.h).
template <typename Kv>
struct PlainWeights {
  static EBB_DEVICE void Read(const Matrix& w, int64_t row, int32_t column, float* to) {
    const auto* const from = static_cast<const typename Kv::Type*>(w.values) + row * w.cols + column;
    Kv::ReadEight(from, to);
    Kv::ReadEight(from + 8, to + 8);
  }
};
template <>
struct Weights<Element::kF32> : PlainWeights<KvF32> {};
template <>
struct Weights<Element::kF16> : PlainWeights<KvF16> {};
template <>
struct Weights<Element::kBf16> : PlainWeights<KvBf16> {};
template <>
struct Weights<Element::kQ8> {
  static EBB_DEVICE void Read(const Matrix& w, int64_t row, int32_t column, float* to) {
    const int64_t at = row * w.cols + column;
    const Vector16 codes = *reinterpret_cast<const Vector16*>(static_cast<const int8_t*>(w.values) + at);
    const float scale = FromF16(w.scales[at / kWeightBlock]);
    EBB_UNROLL
    for (int i = 0; i < kColumns; ++i) to[i] = scale * CodeAt(codes.word[i / 4], i % 4);
  }
};
template <>
struct Weights<Element::kQ4> {
  static EBB_DEVICE void Read(const Matrix& w, int64_t row, int32_t column, float* to) {
    const int64_t at = row * w.cols + column;
    const uint32_t* const codes = reinterpret_cast<const uint32_t*>(static_cast<const uint8_t*>(w.values) + at / 2);
    const uint32_t word[2] = {codes[0], codes[1]};
    const float scale = FromF16(w.scales[at / kWeightBlock]);
    EBB_UNROLL
    for (int i = 0; i < 8; ++i) {
      const uint32_t byte = word[i / 4] >> (8 * (i % 4));
      to[i] = scale * (static_cast<float>(byte & 0xFU) - 8.0F);
      to[8 + i] = scale * (static_cast<float>(byte >> 4 & 0xFU) - 8.0F);
    }
  }
};

template <Element kType>
inline constexpr bool kIsAffine = kType == Element::kQ4K || kType == Element::kQ5K;

// Of a block of 32 columns of a K type: what its codes are to be multiplied by, by halves, and what is then taken off.
struct KScales {
  float of_half[2];
  float minimum;
};
template <Element kType>
EBB_DEVICE KScales ReadKScales(const Matrix& w, int64_t row, int32_t column) {
  const int64_t at = row * w.cols + column;
  const uint32_t super = w.supers[at / kSuperBlock];
  const uint32_t scales = w.scales[at / kWeightBlock];
  const float d = FromF16(super & 0xFFFFU);
  if constexpr (kIsAffine<kType>) {
    const float scale = d * static_cast<float>(scales & 0xFFU);
    return {{scale, scale}, FromF16(super >> 16) * static_cast<float>(scales >> 8)};
  } else {
    return {{d * CodeAt(scales, 0), d * CodeAt(scales, 1)}, 0};
  }
}

// Of code `i` of sixteen columns: the low four bits, of eight bytes; those and the upper two, which a word holds; those
// and the fifth, of a word whose lower byte of each half is that of these columns (Matrix).
EBB_DEVICE uint32_t FourBitCode(const uint32_t (&low)[2], int32_t i) {
  return low[i % 8 / 4] >> (8 * (i % 4) + i / 8 * 4) & 0xFU;
}
EBB_DEVICE int32_t SixBitCode(const uint32_t (&low)[2], uint32_t upper, int32_t i) {
  return static_cast<int32_t>(FourBitCode(low, i) | (upper >> (2 * i) & 3U) << 4) - 32;
}
EBB_DEVICE uint32_t FiveBitCode(const uint32_t (&low)[2], uint32_t upper, int32_t i) {
  const int32_t bit = i / 2 % 2 * 16 + i / 4 % 2 * 4 + i / 8 * 2 + i % 2;
  return FourBitCode(low, i) | (upper >> bit & 1U) << 4;
}

template <Element kType>
struct AffineWeights {
  static EBB_DEVICE void Read(const Matrix& w, int64_t row, int32_t column, float* to) {
    const int64_t at = row * w.cols + column;
    const uint32_t* const codes = reinterpret_cast<const uint32_t*>(static_cast<const uint8_t*>(w.values) + at / 2);
    const uint32_t word[2] = {codes[0], codes[1]};
    uint32_t upper = 0;
    if constexpr (kType == Element::kQ5K) upper = w.upper[at / kWeightBlock] >> (column % kWeightBlock / 16 * 8);
    const KScales scales = ReadKScales<kType>(w, row, column);
    EBB_UNROLL
    for (int i = 0; i < kColumns; ++i) {  // exact products; the sum is rounded once
      const uint32_t code = kType == Element::kQ5K ? FiveBitCode(word, upper, i) : FourBitCode(word, i);
      to[i] = scales.of_half[0] * static_cast<float>(code) - scales.minimum;
    }
  }
};
template <>
struct Weights<Element::kQ4K> : AffineWeights<Element::kQ4K> {};
template <>
struct Weights<Element::kQ5K> : AffineWeights<Element::kQ5K> {};
template <>
struct Weights<Element::kQ6K> {
  static EBB_DEVICE void Read(const Matrix& w, int64_t row, int32_t column, float* to) {
    const int64_t at = row * w.cols + column;
    const uint32_t* const codes = reinterpret_cast<const uint32_t*>(static_cast<const uint8_t*>(w.values) + at / 2);
    const uint32_t word[2] = {codes[0], codes[1]};
    const uint32_t upper = w.upper[at / 16];
    const float scale = ReadKScales<Element::kQ6K>(w, row, column).of_half[column % kWeightBlock / 16];
    EBB_UNROLL
    for (int i = 0; i < kColumns; ++i) to[i] = scale * static_cast<float>(SixBitCode(word, upper, i));
  }
};

// The product of a row of W, of a type with minima, and one of x, by weights and not by codes: for where a number of x
// is infinite, whose code and whose minimum are infinite both, and together NaN, where the weight makes it one of the
// two. Slow, and over at the first NaN.
template <Element kType>
EBB_DEVICE float MultiplyByWeights(const Matrix& w, int64_t row, const float* x) {
  float sum = 0;
  for (int32_t column = 0; column < w.cols && sum == sum; column += kColumns) {
    float of_w[kColumns];
    Weights<kType>::Read(w, row, column, of_w);
    EBB_UNROLL
    for (int i = 0; i < kColumns; ++i) sum = MultiplyAdd(x[column + i], of_w[i], sum);
  }
  return sum;
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_WEIGHTS_H_
