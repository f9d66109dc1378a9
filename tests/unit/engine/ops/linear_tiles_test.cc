// The arithmetic of linear_amx.cc in plain loops, as any processor runs it: which byte meets which, and in which order
// what follows is added. Where a processor has tiles, linear_test.cc holds the instructions to the same bits.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/model/quantization.h"
#include "engine/ops/cpu/dispatch.h"
#include "engine/ops/cpu/packed_matrix.h"
#include "engine/parallel.h"
#include "gtest/gtest.h"
#include "policies/hash_random.h"

namespace ebb::cpu {

namespace scalar {
void LinearByTiles(const LinearArgs& args);
}

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
    std::memcpy(data.data() + at, &scale, sizeof scale);
    if (type == DType::kQ4_K) std::memcpy(data.data() + at + 2, &scale, sizeof scale);  // dmin
  }
  return data;
}

TEST(LinearByTiles, HasTheBitsOfDotProducts) {
  const Kernels& reference = *AvailableKernels().front();
  ASSERT_STREQ(reference.name, "scalar");
  Parallel parallel(1);
  for (const DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K}) {
    for (const int32_t k : {256, 512, 768 + 256, type == DType::kQ4_K ? 256 : 32, type == DType::kQ4_K ? 256 : 1120}) {
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

}  // namespace
}  // namespace ebb::cpu
