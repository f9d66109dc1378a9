// Blocks of quantised weights that another program decoded.

#ifndef EBB_TESTS_SUPPORT_DECODED_VALUES_H_
#define EBB_TESTS_SUPPORT_DECODED_VALUES_H_

#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/tensor.h"

namespace ebb {

struct DecodedValue {
  size_t index = 0;
  float value = 0;
};

// What tests/golden/reference.py decodes from 256 values, rounded to binary32. `sum` is that of (i + 1) times the bits
// of value i over all of them, modulo 2^64: it finds what the values beside it do not.
struct DecodedValues {
  DType type = DType::kF32;
  std::vector<DecodedValue> values = {};
  uint64_t sum = 0;
};

inline void ExpectDecoded(std::span<const float> found, const DecodedValues& expected) {
  for (const DecodedValue& one : expected.values) {
    EXPECT_EQ(std::bit_cast<uint32_t>(found[one.index]), std::bit_cast<uint32_t>(one.value))
        << one.index << ": " << found[one.index];
  }
  uint64_t sum = 0;
  for (size_t i = 0; i < found.size(); ++i) sum += (i + 1) * std::bit_cast<uint32_t>(found[i]);
  EXPECT_EQ(sum, expected.sum);
}

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_DECODED_VALUES_H_
