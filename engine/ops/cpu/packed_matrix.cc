#include "engine/ops/cpu/packed_matrix.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "engine/model/k_block.h"
#include "engine/model/quantization.h"
#include "engine/ops/cpu/pack_file.h"
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
    case DType::kQ4_K:
      return Element::kQ4K;
    case DType::kQ5_K:
      return Element::kQ5K;
    case DType::kQ6_K:
      return Element::kQ6K;
    default:
      return ElementOf(WidenedType(type));
  }
}

// The rows of one group, widened into `memory` where kernels do not know their type.
TensorView RowsOf(const TensorView& tensor, int64_t group, std::vector<std::byte>& memory) {
  const int64_t first = group * kGroupRows;
  const int64_t from_bytes = RowBytes(tensor.type, tensor.cols);
  const std::byte* const from = tensor.data.data() + first * from_bytes;
  TensorView rows = {.name = tensor.name,
                     .type = WidenedType(tensor.type),
                     .rows = std::min<int64_t>(kGroupRows, tensor.rows - first),
                     .cols = tensor.cols};
  if (rows.type == tensor.type) {
    rows.data = {from, static_cast<size_t>(rows.rows * from_bytes)};
    return rows;
  }
  const int64_t bytes = RowBytes(rows.type, rows.cols);
  memory.resize(static_cast<size_t>(rows.rows * bytes));
  for (int64_t row = 0; row < rows.rows; ++row) {
    WidenRow(tensor.type, from + row * from_bytes, rows.cols, memory.data() + row * bytes);
  }
  rows.data = memory;
  return rows;
}

// Puts a row's block into the eight chunks and the head of its group at `to`, which are zero there.
void PackKRow(Element type, const KBlock& block, int64_t row, std::byte* to) {
  const bool six = type == Element::kQ6K;
  std::memcpy(to + 2 * row, &block.d, 2);
  if (!six) std::memcpy(to + 2 * (kGroupRows + row), &block.dmin, 2);
  const int64_t lane = 4 * (row % kPanelRows);
  for (int64_t chunk = 0; chunk < kSuperChunks; ++chunk) {
    std::byte* const at = to + KHeadBytes(type) + chunk * KChunkBytes(type);
    const auto scale = [&](int64_t i) { return static_cast<std::byte>(block.scale[static_cast<size_t>(i)]); };
    at[row] = scale(six ? 2 * chunk : chunk);
    at[kGroupRows + row] =
        six ? scale(2 * chunk + 1) : static_cast<std::byte>(block.minimum[static_cast<size_t>(chunk)]);
    std::byte* const low = at + 2 * kGroupRows + row / kPanelRows * KPanelBytes(type);
    std::byte* const upper = low + 256;
    for (int64_t k = 0; k < kChunk; ++k) {
      const int code = block.code[static_cast<size_t>(chunk * kChunk + k)] + (six ? 32 : 0);
      const int64_t step = k / 4;
      low[64 * (step / 2) + lane + k % 4] |= static_cast<std::byte>((code & 15) << (step % 2 == 0 ? 0 : 4));
      if (type == Element::kQ5K) upper[lane + k % 4] |= static_cast<std::byte>(code >> 4 << step);
      if (six) upper[64 * (step / 4) + lane + k % 4] |= static_cast<std::byte>(code >> 4 << 2 * (step % 4));
    }
  }
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

int64_t PackedBytes(const TensorView& tensor) {
  const int64_t groups = (tensor.rows + kGroupRows - 1) / kGroupRows;
  const int64_t chunks = (tensor.cols + kChunk - 1) / kChunk;
  return groups * chunks * ChunkBytes(ElementOf(tensor.type));
}

PackedPanels::PackedPanels(const TensorView& tensor, std::span<const float> bias, Parallel& parallel, PackFile* file)
    : type_(ElementOf(tensor.type)),
      rows_(tensor.rows),
      cols_(tensor.cols),
      memory_(PackedBytes(tensor)),
      bias_(bias.begin(), bias.end()) {
  EBB_CHECK(bias_.empty() || static_cast<int64_t>(bias_.size()) == rows_);
  EBB_CHECK(static_cast<int64_t>(tensor.data.size()) == rows_ * RowBytes(tensor.type, cols_));
  if (file != nullptr && file->Read(tensor, packed(), parallel)) return;
  parallel.For(groups(), [&](int64_t group, int32_t /*thread*/) {
    std::vector<std::byte> memory;
    const TensorView rows = RowsOf(tensor, group, memory);
    if (IsKType(type_)) return PackKGroup(rows, GroupAt(group));
    for (int64_t chunk = 0; chunk < chunks(); ++chunk) {
      PackChunk(rows, chunk, GroupAt(group) + chunk * ChunkBytes(type_));
    }
  });
  if (file != nullptr) file->Write(tensor, packed(), parallel);
}

LinearArgs PackedPanels::Group(int64_t group) const {
  return {.type = type_,
          .weights = GroupAt(group),
          .outputs = static_cast<int32_t>(std::min<int64_t>(kGroupRows, rows_ - group * kGroupRows)),
          .k = static_cast<int32_t>(cols_)};
}

void PackedPanels::AddBias(int64_t group, int64_t rows, float* y, int64_t y_stride) const {
  if (bias_.empty()) return;
  const int64_t outputs = std::min<int64_t>(kGroupRows, rows_ - group * kGroupRows);
  const float* const bias = bias_.data() + group * kGroupRows;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < outputs; ++i) y[row * y_stride + i] += bias[i];
  }
}

void PackedPanels::PackChunk(const TensorView& rows, int64_t chunk, std::byte* to) const {
  std::memset(to, 0, static_cast<size_t>(ChunkBytes(type_)));
  const int64_t row_bytes = RowBytes(rows.type, cols_);
  const int64_t first = chunk * RowBytes(rows.type, kChunk);  // of this chunk in a row
  const int64_t count = std::min<int64_t>(kChunk, cols_ - chunk * kChunk);
  for (int64_t row = 0; row < rows.rows; ++row) {
    const std::byte* from = rows.data.data() + row * row_bytes + first;
    const int64_t panel = row / kPanelRows;
    const int64_t lane = row % kPanelRows;
    switch (type_) {
      case Element::kF32:
        for (int64_t k = 0; k < count; ++k) std::memcpy(to + 4 * (512 * panel + 16 * k + lane), from + 4 * k, 4);
        break;
      case Element::kF16:
        for (int64_t k = 0; k < count; ++k) std::memcpy(to + 2 * (512 * panel + 16 * k + lane), from + 2 * k, 2);
        break;
      case Element::kBf16:
        for (int64_t k = 0; k < count; ++k) {
          std::memcpy(to + 1024 * panel + 64 * (k / 2) + 4 * lane + 2 * (k % 2), from + 2 * k, 2);
        }
        break;
      case Element::kQ8:
        std::memcpy(to + 2 * row, from, 2);
        for (int64_t k = 0; k < kChunk; ++k) {
          to[64 + 512 * panel + 64 * (k / 4) + 4 * lane + k % 4] = from[2 + k] ^ std::byte{0x80};
        }
        break;
      case Element::kQ4:  // the file has k = j in the low nibble of byte j, k = j + 16 in the high one
        std::memcpy(to + 2 * row, from, 2);
        for (int64_t k = 0; k < kChunk; ++k) {
          const std::byte nibble = (from[2 + k % 16] >> (k < 16 ? 0 : 4)) & std::byte{15};
          to[64 + 256 * panel + 64 * (k / 8) + 4 * lane + k % 4] |= nibble << (k / 4 % 2 == 0 ? 0 : 4);
        }
        break;
      case Element::kQ4K:
      case Element::kQ5K:
      case Element::kQ6K:
        break;  // PackKGroup
      case Element::kInt8:
      case Element::kFp8:
        break;  // no weights
    }
  }
}

void PackedPanels::PackKGroup(const TensorView& rows, std::byte* to) const {
  std::memset(to, 0, static_cast<size_t>(chunks() * ChunkBytes(type_)));
  const int64_t block_bytes = BlockBytes(rows.type);
  for (int64_t row = 0; row < rows.rows; ++row) {
    const std::byte* from = rows.data.data() + row * RowBytes(rows.type, cols_);
    for (int64_t chunk = 0; chunk < chunks(); chunk += kSuperChunks, from += block_bytes) {
      PackKRow(type_, ReadKBlock(rows.type, from), row, to + chunk * ChunkBytes(type_));
    }
  }
}

}  // namespace ebb::cpu
