#include "engine/ops/cpu/packed_matrix.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>

#include "engine/model/k_block.h"
#include "engine/model/quantization.h"
#include "policies/check.h"

namespace ebb::cpu {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

Element ElementOf(DType type) {
  switch (type) {
    case DType::kF32:
      return Element::kF32;
    case DType::kF16:
      return Element::kF16;
    case DType::kBf16:
      return Element::kBf16;
    case DType::kQ8_0:
      return Element::kQ8;
    case DType::kQ4_0:
      return Element::kQ4;
    case DType::kQ4_K:  // exact, but five to seven times the file's size
    case DType::kQ5_K:
    case DType::kQ6_K:
      return Element::kF32;
  }
  return Element::kF32;
}

}  // namespace

AlignedBytes::AlignedBytes(int64_t size) : size_(size) {
  const int64_t alignment = size >= kHugePage ? kHugePage : 64;
  const int64_t rounded = std::max(alignment, (size + alignment - 1) / alignment * alignment);
  void* memory = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(rounded));
  if (memory == nullptr) throw std::bad_alloc();
  // Weights are read end to end at every step: large pages spare the walks. Advice only; failure changes nothing.
  if (alignment == kHugePage) madvise(memory, static_cast<size_t>(rounded), MADV_HUGEPAGE);
  data_.reset(static_cast<std::byte*>(memory));
}

void AlignedBytes::Free::operator()(std::byte* data) const { std::free(data); }

PackedPanels::PackedPanels(const TensorView& tensor, Parallel& parallel)
    : type_(ElementOf(tensor.type)),
      rows_(tensor.rows),
      cols_(tensor.cols),
      memory_(panels() * chunks() * PanelBytes(type_)) {
  EBB_CHECK(static_cast<int64_t>(tensor.data.size()) == rows_ * RowBytes(tensor.type, cols_));
  parallel.For(groups(), [&](int64_t group, int32_t /*thread*/) {
    const LinearArgs args = Group(group);
    auto* to = const_cast<std::byte*>(args.weights);
    for (int64_t chunk = 0; chunk < chunks(); ++chunk) {
      for (int64_t p = 0; p < args.panels; ++p, to += PanelBytes(type_)) {
        PackPanelChunk(tensor, group * kGroupPanels + p, chunk, to);
      }
    }
  });
}

LinearArgs PackedPanels::Group(int64_t group) const {
  const int64_t first = group * kGroupPanels;
  const int64_t count = std::min<int64_t>(kGroupPanels, panels() - first);
  return {.type = type_,
          .weights = memory_.data() + first * chunks() * PanelBytes(type_),
          .chunk_stride = count * PanelBytes(type_),
          .panels = static_cast<int32_t>(count),
          .outputs = static_cast<int32_t>(std::min(count * kPanelRows, rows_ - first * kPanelRows)),
          .k = static_cast<int32_t>(cols_)};
}

void PackedPanels::PackPanelChunk(const TensorView& tensor, int64_t panel, int64_t chunk, std::byte* to) const {
  std::memset(to, 0, static_cast<size_t>(PanelBytes(type_)));
  if (IsKType(tensor.type)) return PackDequantized(tensor, panel, chunk, to);
  const int64_t row_bytes = RowBytes(tensor.type, cols_);
  const int64_t first = chunk * RowBytes(tensor.type, kChunk);  // of this chunk in a row
  const int64_t lanes = std::min<int64_t>(kPanelRows, rows_ - panel * kPanelRows);
  const int64_t count = std::min<int64_t>(kChunk, cols_ - chunk * kChunk);
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const std::byte* from = tensor.data.data() + (panel * kPanelRows + lane) * row_bytes + first;
    switch (type_) {
      case Element::kF32:
        for (int64_t k = 0; k < count; ++k) std::memcpy(to + 4 * (16 * k + lane), from + 4 * k, 4);
        break;
      case Element::kF16:
      case Element::kBf16:
        for (int64_t k = 0; k < count; ++k) std::memcpy(to + 2 * (16 * k + lane), from + 2 * k, 2);
        break;
      case Element::kQ8:
        std::memcpy(to + 2 * lane, from, 2);
        for (int64_t k = 0; k < kChunk; ++k) to[32 + 16 * k + lane] = from[2 + k];
        break;
      case Element::kQ4:
        std::memcpy(to + 2 * lane, from, 2);
        for (int64_t j = 0; j < kChunk / 2; ++j) to[32 + 16 * j + lane] = from[2 + j];
        break;
    }
  }
}

// A K type's panel, as F32.
void PackedPanels::PackDequantized(const TensorView& tensor, int64_t panel, int64_t chunk, std::byte* to) const {
  const int64_t row_bytes = RowBytes(tensor.type, cols_);
  const int64_t lanes = std::min<int64_t>(kPanelRows, rows_ - panel * kPanelRows);
  const int64_t block = chunk * kChunk / kSuperBlock;
  const int64_t first = chunk * kChunk % kSuperBlock;  // of this chunk in its block
  std::array<float, kSuperBlock> values = {};
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const std::byte* const row = tensor.data.data() + (panel * kPanelRows + lane) * row_bytes;
    DequantizeRow(tensor.type, row + block * BlockBytes(tensor.type), kSuperBlock, values.data());
    for (int64_t k = 0; k < kChunk; ++k) std::memcpy(to + 4 * (16 * k + lane), values.data() + first + k, 4);
  }
}

}  // namespace ebb::cpu
