// The arithmetic of linear_amx.cc and linear_amx_bf16.cc over plain loops in place of tiles (tiles.h), as any processor
// runs it: which byte meets which, and in which order what follows is added. Where a processor has tiles, dispatch.cc
// holds the instructions to the bits of these loops before it offers them.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/model/quantization.h"
#include "engine/ops/cpu/dispatch.h"
#include "engine/ops/cpu/packed_matrix.h"
#include "engine/ops/cpu/tiles_check.h"
#include "engine/parallel.h"
#include "gtest/gtest.h"
#include "policies/hash_random.h"

namespace ebb::cpu {

namespace scalar {
void LinearByTiles(const LinearArgs& args);
void LinearByPairTiles(const LinearArgs& args);
}  // namespace scalar

namespace {

struct Rounded {
  std::vector<int8_t> bytes;
  std::vector<float> scales;
  std::vector<int32_t> offsets, halves;
  RoundedRows rows = {};

  Rounded(const Kernels& kernels, int32_t count, int32_t k, uint64_t seed) {
    const int64_t chunks = (k + kChunk - 1) / kChunk, blocks = (k + kRoundedBlock - 1) / kRoundedBlock;
    bytes.resize(static_cast<size_t>(count * chunks * kChunk));
    scales.resize(static_cast<size_t>(count * blocks));
    offsets.resize(static_cast<size_t>(count * chunks));
    halves.resize(offsets.size());
    rows = {.bytes = bytes.data(), .scales = scales.data(), .offsets = offsets.data(), .halves = halves.data()};
    HashRandom random(seed);
    std::vector<float> x(static_cast<size_t>(k));
    for (int32_t row = 0; row < count; ++row) {
      for (float& value : x) value = 4 * random.UniformFloat() - 2;
      kernels.round_to_bytes(x.data(), k,
                             {.bytes = rows.bytes + row * chunks * kChunk,
                              .scales = rows.scales + row * blocks,
                              .offsets = rows.offsets + row * chunks,
                              .halves = rows.halves + row * chunks});
    }
  }
};

std::vector<std::byte> RandomWeights(DType type, int64_t rows, int64_t cols) {
  std::vector<std::byte> data(static_cast<size_t>(rows * RowBytes(type, cols)));
  HashRandom random(3);
  for (size_t at = 0; at < data.size(); at += static_cast<size_t>(BlockBytes(type))) {
    for (int64_t i = 0; i < BlockBytes(type); ++i) {
      data[at + static_cast<size_t>(i)] = static_cast<std::byte>(random.Next64());
    }
    const uint16_t scale = F16FromFloat(0.01F + random.UniformFloat());
    std::memcpy(data.data() + at + (type == DType::kQ6_K ? 208 : 0), &scale, sizeof scale);
    if (type == DType::kQ4_K || type == DType::kQ5_K) std::memcpy(data.data() + at + 2, &scale, sizeof scale);  // dmin
  }
  return data;
}

TEST(LinearByTiles, HasTheBitsOfDotProducts) {
  const Kernels& reference = *AvailableKernels().front();
  ASSERT_STREQ(reference.name, "scalar");
  Parallel parallel(1);
  for (const DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    const bool has_super_blocks = BlockValues(type) == 256;
    for (const int32_t k : {256, 512, has_super_blocks ? 768 : 32, has_super_blocks ? 1280 : 1120}) {
      for (const int32_t outputs : {32, 33, 16, 7}) {
        const std::vector<std::byte> data = RandomWeights(type, outputs, k);
        const PackedPanels w({.name = "w", .type = type, .rows = outputs, .cols = k, .data = data}, {}, parallel);
        for (const int32_t rows : {1, 15, 16, 17, 32, 47, 48}) {
          const Rounded x(reference, rows, k, 5);
          for (const bool add : {false, true}) {
            std::vector<float> by_tiles(static_cast<size_t>(rows * outputs), 0.25F), expected = by_tiles;
            for (int64_t group = 0; group < w.groups(); ++group) {
              LinearArgs args = w.Group(group);
              args.rounded = x.rows;
              args.rows = rows;
              args.y_stride = outputs;
              args.add = add;
              args.y = expected.data() + group * kGroupRows;
              reference.linear_fast(args);
              args.y = by_tiles.data() + group * kGroupRows;
              scalar::LinearByTiles(args);
            }
            EXPECT_EQ(by_tiles, expected) << absl::StrCat(rows, " rows, ", outputs, " outputs, k ", k);
            EXPECT_NE(expected.back(), 0.25F);
            EXPECT_TRUE(std::isfinite(expected.front()));
          }
        }
      }
    }
  }
}

// Largest and smallest bytes on both sides: sums that would saturate, or signs that would be taken for each other.
TEST(LinearByTiles, IsExactAtTheEnds) {
  const Kernels& reference = *AvailableKernels().front();
  Parallel parallel(1);
  for (const int fill : {0x80, 0x7F, 0xFF, 0x00}) {
    std::vector<std::byte> data(static_cast<size_t>(32 * RowBytes(DType::kQ8_0, 32)), static_cast<std::byte>(fill));
    const uint16_t one = F16FromFloat(1);
    for (size_t at = 0; at < data.size(); at += 34) std::memcpy(data.data() + at, &one, sizeof one);
    const PackedPanels w({.name = "w", .type = DType::kQ8_0, .rows = 32, .cols = 32, .data = data}, {}, parallel);
    Rounded x(reference, 16, 32, 1);
    for (int row = 0; row < 16; ++row) {
      const int8_t value = row % 2 == 0 ? -127 : 127;
      for (int k = 0; k < 32; ++k) x.bytes[static_cast<size_t>(row * 32 + k)] = value;
      x.offsets[static_cast<size_t>(row)] = -128 * 32 * value;
      x.scales[static_cast<size_t>(row)] = 1;
    }
    std::vector<float> y(16 * 32);
    LinearArgs args = w.Group(0);
    args.rounded = x.rows;
    args.rows = 16;
    args.y = y.data();
    args.y_stride = 32;
    scalar::LinearByTiles(args);
    for (int row = 0; row < 16; ++row) {
      const int expected = 32 * (row % 2 == 0 ? -127 : 127) * static_cast<int8_t>(fill);
      for (int i = 0; i < 32; ++i) EXPECT_EQ(y[static_cast<size_t>(row * 32 + i)], static_cast<float>(expected));
    }
  }
}

constexpr float kTiniest = std::numeric_limits<float>::min();  // that is not subnormal

float Flushed(float a) { return std::abs(a) < kTiniest ? std::copysign(0.0F, a) : a; }

// Rows of floats that are BF16, and the same as the kernel reads them: pairs in the first half of each chunk.
struct Pairs {
  std::vector<float> x;
  std::vector<float> chunks;

  Pairs(int32_t rows, int32_t k, float scale) : x(static_cast<size_t>(rows * k)) {
    const int32_t padded = (k + kChunk - 1) / kChunk * kChunk;
    chunks.assign(static_cast<size_t>(rows * padded), std::nanf(""));  // no half but the first is read
    HashRandom random(6);
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t i = 0; i < padded; ++i) {
        const float value = i < k ? scale * (2 * random.UniformFloat() - 1) : 0;
        const auto bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16U);
        if (i < k) x[static_cast<size_t>(row * k + i)] = std::bit_cast<float>(uint32_t{bits} << 16U);
        auto* const chunk = reinterpret_cast<std::byte*>(chunks.data() + row * padded + i / kChunk * kChunk);
        std::memcpy(chunk + 2 * (i % kChunk), &bits, sizeof bits);
      }
    }
  }
};

// A matrix of BF16, row after row, as files have it.
struct Bf16Matrix {
  std::vector<uint16_t> bits;
  int32_t cols;

  Bf16Matrix(int32_t rows, int32_t k, float scale) : bits(static_cast<size_t>(rows * k)), cols(k) {
    HashRandom random(7);
    for (uint16_t& value : bits) {
      value = static_cast<uint16_t>(std::bit_cast<uint32_t>(scale * (2 * random.UniformFloat() - 1)) >> 16U);
    }
  }
  float at(int32_t row, int32_t k) const {
    return std::bit_cast<float>(uint32_t{bits[static_cast<size_t>(row * cols + k)]} << 16U);
  }
};

// What tiles.h says that a product of tiles is, chunk after chunk of one row and one output, from `sum` on.
float ByPairs(const float* x, const Bf16Matrix& w, int32_t output, float sum) {
  for (int32_t chunk = 0; chunk < w.cols; chunk += kChunk) {
    float even = 0, odd = 0;
    for (int32_t k = chunk; k < std::min(chunk + kChunk, w.cols); ++k) {
      float& part = k % 2 == 0 ? even : odd;
      part = Flushed(std::fma(x[k], w.at(output, k), part));
    }
    sum = Flushed(sum + Flushed(even + odd));
  }
  return sum;
}

std::vector<float> LinearByPairs(const PackedPanels& w, const Pairs& x, int32_t rows, bool add, float before) {
  std::vector<float> y(static_cast<size_t>(rows * w.rows()), before);
  for (int64_t group = 0; group < w.groups(); ++group) {
    LinearArgs args = w.Group(group);
    std::vector<float> chunks = x.chunks;
    args.rounded.pairs = chunks.data();
    args.rows = rows;
    args.y = y.data() + group * kGroupRows;
    args.y_stride = w.rows();
    args.add = add;
    scalar::LinearByPairTiles(args);
  }
  return y;
}

// For any number of rows the same, so a row's bits do not tell how many there are; and as near to the exact sum as dot
// products of pairs are.
TEST(LinearByPairTiles, AddsEvenAndOddColumnsOfEachChunkApart) {
  Parallel parallel(1);
  for (const int32_t k : {32, 40, 544, 1100}) {
    for (const int32_t outputs : {32, 33, 16, 7}) {
      const Bf16Matrix matrix(outputs, k, 1);
      const PackedPanels w({.name = "w",
                            .type = DType::kBf16,
                            .rows = outputs,
                            .cols = k,
                            .data = std::as_bytes(std::span(matrix.bits))},
                           {}, parallel);
      for (const int32_t rows : {1, 2, 15, 16, 17, 31, 32, 33, 70}) {
        const Pairs x(rows, k, 2);
        for (const bool add : {false, true}) {
          const std::vector<float> y = LinearByPairs(w, x, rows, add, 0.25F);
          for (int32_t row = 0; row < rows; ++row) {
            for (int32_t output = 0; output < outputs; ++output) {
              const float* const of = x.x.data() + row * k;
              const float found = y[static_cast<size_t>(row * outputs + output)];
              ASSERT_EQ(found, ByPairs(of, matrix, output, add ? 0.25F : 0))
                  << absl::StrCat("row ", row, " of ", rows, ", output ", output, " of ", outputs, ", k ", k);
              double exact = add ? 0.25 : 0, size = exact;
              for (int32_t i = 0; i < k; ++i) {
                exact += double{of[i]} * matrix.at(output, i);
                size += std::abs(double{of[i]} * matrix.at(output, i));
              }
              ASSERT_NEAR(found, exact, size * k * 0x1p-24);
            }
          }
        }
      }
    }
  }
}

TEST(LinearByPairTiles, TakesWhatIsSubnormalForZero) {
  Parallel parallel(1);
  for (const float scale : {0x1p-70F, 0x1p-130F}) {  // products that are, and weights
    const Bf16Matrix matrix(32, 32, scale);
    const PackedPanels w(
        {.name = "w", .type = DType::kBf16, .rows = 32, .cols = 32, .data = std::as_bytes(std::span(matrix.bits))}, {},
        parallel);
    const std::vector<float> y = LinearByPairs(w, Pairs(3, 32, scale < 0x1p-126F ? 0x1p60F : 0x1p-70F), 3, false, 0);
    for (const float value : y) EXPECT_EQ(value, 0);
  }
}

// Where the processor has what rounds for it, that lies as the tests above have it.
TEST(LinearByPairTiles, TakesPairsAsDotProductsDo) {
  for (const Kernels* kernels : AvailableKernels()) {
    if (std::string_view(kernels->name) != "avx512bf16") continue;
    for (const int32_t k : {32, 40, 100}) {
      const Pairs expected(1, k, 3);
      std::vector<float> found(expected.chunks.size());
      kernels->round_to_bf16(expected.x.data(), k, {.pairs = found.data()});
      for (size_t chunk = 0; chunk < found.size(); chunk += kChunk) {
        EXPECT_EQ(std::memcmp(found.data() + chunk, expected.chunks.data() + chunk, 2 * kChunk), 0) << k;
      }
    }
  }
}

TEST(TilesAreRight, TakesWhatIsRightAndNothingElse) {
  const LinearKernel dots = AvailableKernels().front()->linear_fast;
  for (const Element type : {Element::kQ8, Element::kQ4, Element::kQ4K, Element::kQ5K, Element::kQ6K}) {
    EXPECT_TRUE(TilesAreRight(type, scalar::LinearByTiles, dots));
  }
  EXPECT_TRUE(TilesAreRight(Element::kBf16, scalar::LinearByPairTiles, scalar::LinearByPairTiles));
  EXPECT_FALSE(TilesAreRight(Element::kBf16, dots, scalar::LinearByPairTiles));  // other order, other layout of x
  // One row, one weight: as if one line of a tile came from elsewhere.
  const auto strays = [](const LinearArgs& args) {
    scalar::LinearByTiles(args);
    LinearArgs row = args;
    std::vector<int8_t> bytes(args.rounded.bytes, args.rounded.bytes + args.k);
    bytes[5] = static_cast<int8_t>(bytes[5] ^ 1);
    row.rounded.bytes = bytes.data();
    row.rows = 1;
    scalar::LinearByTiles(row);
  };
  EXPECT_FALSE(TilesAreRight(Element::kQ8, strays, dots));
}

}  // namespace
}  // namespace ebb::cpu
