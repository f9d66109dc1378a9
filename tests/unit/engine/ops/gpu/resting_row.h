// A row of K or V as a device's page holds it, of every type of cache.

#ifndef EBB_TESTS_UNIT_ENGINE_OPS_GPU_RESTING_ROW_H_
#define EBB_TESTS_UNIT_ENGINE_OPS_GPU_RESTING_ROW_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "engine/model/quantization.h"
#include "engine/ops/gpu/kernels.h"
#include "tests/support/e4m3.h"

namespace ebb::gpu {

inline constexpr Element kCacheTypes[] = {Element::kF32, Element::kF16, Element::kBf16, Element::kQ8, Element::kFp8};

// A row of K or V as it rests in the cache, and the numbers that it then is.
struct Resting {
  std::vector<std::byte> bytes = {};
  float scale = 1;  // of bytes
  std::vector<float> numbers = {};
};
template <typename T>
void AppendBytes(T element, std::vector<std::byte>& to) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&element);
  to.insert(to.end(), bytes, bytes + sizeof(T));
}
inline Resting Rest(Element type, std::span<const float> row) {
  Resting resting;
  float largest = 0;
  for (const float x : row) largest = std::max(largest, std::abs(x));
  if (type == Element::kQ8) resting.scale = largest * (1.0F / 127);
  if (type == Element::kFp8) resting.scale = largest * (256.0F / 448);
  for (const float x : row) {
    if (type == Element::kF32) {
      AppendBytes(x, resting.bytes);
      resting.numbers.push_back(x);
    } else if (type == Element::kQ8) {
      const auto code = static_cast<int8_t>(std::nearbyint(double{x} * (127.0F / largest)));
      AppendBytes(code, resting.bytes);
      resting.numbers.push_back(static_cast<float>(code) * resting.scale);
    } else if (type == Element::kFp8) {
      const uint8_t code = E4M3Code(x * (448.0F / largest));
      AppendBytes(code, resting.bytes);
      resting.numbers.push_back(static_cast<float>(E4M3Number(code) * 0x1p-8) * resting.scale);
    } else {
      const bool is_bf16 = type == Element::kBf16;
      const uint16_t bits = is_bf16 ? Bf16FromFloat(x) : F16FromFloat(x);
      AppendBytes(bits, resting.bytes);
      resting.numbers.push_back(is_bf16 ? FloatFromBf16(bits) : FloatFromF16(bits));
    }
  }
  return resting;
}

enum class Part { kKeys, kValues };

// Writes a row where a slot of its page has it, as kernels.h draws the page.
inline void WriteRow(Element type, std::span<const float> row, int32_t slot, Part part, std::byte* page) {
  const Resting resting = Rest(type, row);
  const auto row_bytes = static_cast<int64_t>(resting.bytes.size());
  const int64_t part_bytes = kPageSlots * row_bytes;
  const int64_t at = slot % kPageSlots;
  std::ranges::copy(resting.bytes, page + (part == Part::kValues ? part_bytes : 0) + at * row_bytes);
  if (!IsScaled(type)) return;
  std::memcpy(page + 2 * part_bytes + 4 * (at + (part == Part::kValues ? kPageSlots : 0)), &resting.scale, 4);
}

}  // namespace ebb::gpu

#endif  // EBB_TESTS_UNIT_ENGINE_OPS_GPU_RESTING_ROW_H_
