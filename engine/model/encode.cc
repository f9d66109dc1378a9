#include "engine/model/encode.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "engine/model/quantization.h"
#include "policies/check.h"

namespace ebb {
namespace {

constexpr int64_t kBlock = 32;
constexpr DType kEncodable[] = {DType::kF32,  DType::kF16,  DType::kBf16, DType::kQ8_0,
                                DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1};

using Codes = std::array<uint8_t, kBlock>;

// 0 where there is nothing to divide by, or too little.
float Inverse(float d) {
  const float inverse = d == 0 ? 0.0F : 1.0F / d;
  return std::isfinite(inverse) ? inverse : 0.0F;
}

void PutHalf(float value, std::byte* out) {
  const uint16_t bits = F16FromFloat(value);
  std::memcpy(out, &bits, sizeof(bits));
}

void PutNibbles(const Codes& codes, std::byte* out) {
  for (size_t i = 0; i < kBlock / 2; ++i) {
    out[i] = static_cast<std::byte>((codes[i] & 15) | ((codes[i + kBlock / 2] & 15) << 4));
  }
}

void PutFifthBits(const Codes& codes, std::byte* out) {
  uint32_t bits = 0;
  for (size_t i = 0; i < codes.size(); ++i) bits |= static_cast<uint32_t>(codes[i] >> 4) << i;
  std::memcpy(out, &bits, sizeof(bits));
}

void EncodeQ8(const float* x, std::byte* out) {
  float peak = 0;
  for (int64_t i = 0; i < kBlock; ++i) peak = std::max(peak, std::fabs(x[i]));
  const float d = peak / 127.0F;
  const float inverse = Inverse(d);
  PutHalf(d, out);
  for (int64_t i = 0; i < kBlock; ++i)
    out[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::round(x[i] * inverse)));
}

// Codes 0 .. 2 * middle - 1, of which `middle` is 0. Returns d.
float SignedCodes(const float* x, int middle, Codes& codes) {
  const float peak = *std::max_element(x, x + kBlock, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  const float d = peak / static_cast<float>(-middle);
  const float inverse = Inverse(d);
  const float half = static_cast<float>(middle) + 0.5F;
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<uint8_t>(std::min(2 * middle - 1, static_cast<int>(x[i] * inverse + half)));
  }
  return d;
}

struct Affine {
  float d = 0, m = 0;
};

Affine AffineCodes(const float* x, int most, Codes& codes) {
  const auto [low, high] = std::minmax_element(x, x + kBlock);
  const float d = (*high - *low) / static_cast<float>(most);
  const float inverse = Inverse(d);
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = inverse == 0 ? uint8_t{0}
                            : static_cast<uint8_t>(std::min(most, static_cast<int>((x[i] - *low) * inverse + 0.5F)));
  }
  return {d, *low};
}

void EncodeBlock(DType type, const float* x, std::byte* out) {
  Codes codes;
  if (type == DType::kQ8_0) return EncodeQ8(x, out);
  const bool five = type == DType::kQ5_0 || type == DType::kQ5_1;
  if (type == DType::kQ4_0 || type == DType::kQ5_0) {
    PutHalf(SignedCodes(x, five ? 16 : 8, codes), out);
    out += 2;
  } else {
    const Affine affine = AffineCodes(x, five ? 31 : 15, codes);
    PutHalf(affine.d, out);
    PutHalf(affine.m, out + 2);
    out += 4;
  }
  if (five) PutFifthBits(codes, out);
  PutNibbles(codes, five ? out + 4 : out);
}

}  // namespace

std::span<const DType> EncodableTypes() { return kEncodable; }

void EncodeRow(DType type, const float* row, int64_t cols, std::byte* out) {
  EBB_CHECK(std::ranges::find(kEncodable, type) != std::end(kEncodable));
  const int64_t bytes = RowBytes(type, cols);
  if (type == DType::kF32) {
    std::memcpy(out, row, static_cast<size_t>(bytes));
  } else if (type == DType::kF16 || type == DType::kBf16) {
    for (int64_t i = 0; i < cols; ++i) {
      const uint16_t bits = type == DType::kF16 ? F16FromFloat(row[i]) : Bf16FromFloat(row[i]);
      std::memcpy(out + 2 * i, &bits, sizeof(bits));
    }
  } else {
    for (int64_t i = 0; i < cols; i += kBlock, out += BlockBytes(type)) EncodeBlock(type, row + i, out);
  }
}

}  // namespace ebb
