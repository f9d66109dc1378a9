#include "engine/ops/cpu/tiles_check.h"

#include <vector>

namespace ebb::cpu {
namespace {

constexpr int32_t kCheckedRows = 33;
constexpr int32_t kCheckedColumns = kSuperChunks * kChunk;

// Bytes without a pattern.
class Bytes {
 public:
  uint8_t Next() { return static_cast<uint8_t>((state_ = state_ * 1664525 + 1013904223) >> 24U); }
  // Byte `i` of numbers of two bytes, F16 or BF16, whose products neither overflow nor vanish.
  uint8_t NextOfNumber(size_t i) {
    const uint8_t byte = Next();
    return i % 2 == 0 ? byte : static_cast<uint8_t>(0x30 + byte % 8 + (Next() & 0x80));
  }

 private:
  uint32_t state_ = 1;
};

std::vector<std::byte> GroupOf(Element type, Bytes& random) {
  std::vector<std::byte> group(static_cast<size_t>(kSuperChunks * ChunkBytes(type)));
  for (size_t i = 0; i < group.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const bool of_scale = IsKType(type) ? at < KHeadBytes(type) : at % ChunkBytes(type) < 64;
    group[i] = static_cast<std::byte>(of_scale || type == Element::kBf16 ? random.NextOfNumber(i) : random.Next());
  }
  return group;
}

}  // namespace

bool TilesAreRight(Element type, LinearKernel by_tiles, LinearKernel in_loops) {
  Bytes random;
  const std::vector<std::byte> group = GroupOf(type, random);
  std::vector<int8_t> bytes(kCheckedRows * kCheckedColumns);
  std::vector<int32_t> offsets(kCheckedRows * kSuperChunks), halves(offsets.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<int8_t>(random.Next());
    offsets[i / kChunk] -= 128 * bytes[i];
    if (i % kChunk < kChunk / 2) halves[i / kChunk] -= 128 * bytes[i];
  }
  std::vector<float> scales(kCheckedRows * kCheckedColumns / kRoundedBlock, 0.75F);
  std::vector<float> pairs(kCheckedRows * kCheckedColumns);
  auto* const of_pairs = reinterpret_cast<uint8_t*>(pairs.data());
  for (size_t i = 0; i < pairs.size() * sizeof(float); ++i) of_pairs[i] = random.NextOfNumber(i);
  const auto run = [&](LinearKernel kernel) {
    std::vector<float> y(kCheckedRows * kGroupRows);
    LinearArgs args = {.type = type, .weights = group.data(), .outputs = kGroupRows, .k = kCheckedColumns};
    args.rounded = {.bytes = bytes.data(),
                    .scales = scales.data(),
                    .offsets = offsets.data(),
                    .halves = halves.data(),
                    .pairs = pairs.data()};
    args.rows = kCheckedRows;
    args.y = y.data();
    args.y_stride = kGroupRows;
    kernel(args);
    return y;
  };
  return run(by_tiles) == run(in_loops);
}

}  // namespace ebb::cpu
