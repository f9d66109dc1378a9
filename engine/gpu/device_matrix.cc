#include "engine/gpu/device_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <span>
#include <string>

#include "absl/strings/str_format.h"
#include "engine/model/k_block.h"
#include "engine/model/quantization.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

uint16_t ScaleAt(const std::byte* block) {
  uint16_t scale = 0;
  std::memcpy(&scale, block, sizeof(scale));
  return scale;
}

void SplitQ8(std::span<const std::byte> blocks, DeviceLayout& to) {
  for (size_t at = 0; at < blocks.size(); at += 34) {
    to.scales.push_back(ScaleAt(&blocks[at]));
    to.values.insert(to.values.end(), blocks.begin() + at + 2, blocks.begin() + at + 34);
  }
}

// The file pairs code j with code j + 16; sixteen neighbours in eight bytes pair j with j + 8.
void SplitQ4(std::span<const std::byte> blocks, DeviceLayout& to) {
  for (size_t at = 0; at < blocks.size(); at += 18) {
    to.scales.push_back(ScaleAt(&blocks[at]));
    for (const int half : {0, 4}) {  // low nibbles hold codes 0..15 of the block, high ones 16..31
      for (size_t j = 0; j < 8; ++j) {
        const std::byte low = blocks[at + 2 + j] >> half & std::byte{15};
        const std::byte high = blocks[at + 2 + j + 8] >> half & std::byte{15};
        to.values.push_back(low | high << 4);
      }
    }
  }
}

// Sixteen codes: their low four bits, as SplitQ4 has them.
void PutNibbles(const int8_t* codes, DeviceLayout& to) {
  for (int j = 0; j < 8; ++j) to.values.push_back(static_cast<std::byte>((codes[j] & 15) | (codes[j + 8] & 15) << 4));
}

// What is above them, of 32 codes of Q5_K and of sixteen of Q6_K, as Matrix has it.
uint32_t FifthBits(const int8_t* codes) {
  uint32_t upper = 0;
  for (int i = 0; i < 32; ++i) {
    const int bit = i / 2 % 2 * 16 + i / 16 * 8 + i / 4 % 2 * 4 + i / 8 % 2 * 2 + i % 2;
    upper |= static_cast<uint32_t>(codes[i] >> 4) << bit;
  }
  return upper;
}
uint32_t UpperTwoBits(const int8_t* codes) {
  uint32_t upper = 0;
  for (int i = 0; i < 16; ++i) upper |= static_cast<uint32_t>((codes[i] + 32) >> 4) << (2 * i);
  return upper;
}

void SplitK(DType type, std::span<const std::byte> blocks, DeviceLayout& to) {
  const auto bytes = static_cast<size_t>(BlockBytes(type));
  const bool is_affine = type != DType::kQ6_K;
  for (size_t at = 0; at < blocks.size(); at += bytes) {
    const KBlock block = ReadKBlock(type, &blocks[at]);
    to.supers.push_back(block.d | static_cast<uint32_t>(block.dmin) << 16);
    for (int i = 0; i < kSuperBlock / gpu::kWeightBlock; ++i) {
      const int low = is_affine ? block.scale[i] : block.scale[2 * i];
      const int high = is_affine ? block.minimum[i] : block.scale[2 * i + 1];
      to.scales.push_back(static_cast<uint16_t>((low & 255) | (high & 255) << 8));
    }
    for (int64_t i = 0; i < kSuperBlock; i += 16) {  // the 32 that codes of Q6_K lack has none of the low four
      PutNibbles(&block.code[i], to);
      if (type == DType::kQ5_K && i % 32 == 0) to.upper.push_back(FifthBits(&block.code[i]));
      if (type == DType::kQ6_K) to.upper.push_back(UpperTwoBits(&block.code[i]));
    }
  }
}

absl::Status Unsupported(const TensorView& tensor, const std::string& what) {
  return Refuse(absl::StatusCode::kFailedPrecondition,
                absl::StrFormat("%s: %s, which a GPU does not read yet", std::string(tensor.name), what),
                {.reason = "UNSUPPORTED_TENSOR_TYPE"});
}

// What a type of the file becomes on a device.
struct DeviceForm {
  DType from = DType::kF32;
  gpu::Element type = gpu::Element::kF32;
  int64_t bytes = 0;  // of kSuperBlock numbers: values, scales, supers and upper (DeviceLayout)

  int64_t BytesOf(const TensorView& tensor) const { return tensor.rows * tensor.cols * bytes / kSuperBlock; }
};
constexpr DeviceForm kForms[] = {{DType::kF32, gpu::Element::kF32, 1024},
                                 {DType::kF16, gpu::Element::kF16, 512},
                                 {DType::kBf16, gpu::Element::kBf16, 512},
                                 {DType::kQ8_0, gpu::Element::kQ8, 256 + 16},
                                 {DType::kQ4_0, gpu::Element::kQ4, 128 + 16},
                                 {DType::kQ4_K, gpu::Element::kQ4K, 128 + 16 + 4},
                                 {DType::kQ5_K, gpu::Element::kQ5K, 128 + 16 + 4 + 32},
                                 {DType::kQ6_K, gpu::Element::kQ6K, 128 + 16 + 4 + 64}};

absl::StatusOr<DeviceForm> FormOf(const TensorView& tensor) {
  if (tensor.cols % gpu::kWeightBlock != 0) {
    return Unsupported(tensor, absl::StrFormat("%d columns are no multiple of %d", tensor.cols, gpu::kWeightBlock));
  }
  const auto* const form = std::ranges::find(kForms, tensor.type, &DeviceForm::from);
  if (form == std::end(kForms)) return Unsupported(tensor, std::string(TypeName(tensor.type)));
  return *form;
}

}  // namespace

absl::StatusOr<int64_t> DeviceBytes(const TensorView& tensor) {
  EBB_ASSIGN(const DeviceForm form, FormOf(tensor));
  return form.BytesOf(tensor);
}

absl::StatusOr<DeviceLayout> ToDeviceLayout(const TensorView& tensor) {
  EBB_ASSIGN(const DeviceForm form, FormOf(tensor));
  DeviceLayout layout = {.type = form.type};
  switch (tensor.type) {
    case DType::kQ8_0:
      SplitQ8(tensor.data, layout);
      break;
    case DType::kQ4_0:
      SplitQ4(tensor.data, layout);
      break;
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
      SplitK(tensor.type, tensor.data, layout);
      break;
    default:
      layout.values.assign(tensor.data.begin(), tensor.data.end());
  }
  EBB_CHECK(layout.bytes() == form.BytesOf(tensor));
  return layout;
}

absl::StatusOr<DeviceMatrix> DeviceMatrix::Upload(StagedCopies& copies, const TensorView& tensor) {
  EBB_ASSIGN(const DeviceLayout layout, ToDeviceLayout(tensor));
  DeviceMatrix made;
  EBB_ASSIGN(made.values_, copies.Upload(std::span(layout.values), tensor.name));
  if (!layout.scales.empty()) {
    EBB_ASSIGN(made.scales_, copies.Upload(std::span(layout.scales), tensor.name));
  }
  if (!layout.supers.empty()) {
    EBB_ASSIGN(made.supers_, copies.Upload(std::span(layout.supers), tensor.name));
  }
  if (!layout.upper.empty()) {
    EBB_ASSIGN(made.upper_, copies.Upload(std::span(layout.upper), tensor.name));
  }
  made.matrix_ = {.type = layout.type,
                  .rows = static_cast<int32_t>(tensor.rows),
                  .cols = static_cast<int32_t>(tensor.cols),
                  .values = made.values_.as<void>(),
                  .scales = made.scales_.as<uint16_t>(),
                  .supers = made.supers_.as<uint32_t>(),
                  .upper = made.upper_.as<uint32_t>()};
  return made;
}

absl::StatusOr<DeviceMatrix> DeviceMatrix::Random(const Gpu& gpu, int32_t rows, int32_t cols, uint64_t seed,
                                                  gpu::Element type) {
  const int64_t count = int64_t{rows} * cols;
  const bool is_bf16 = type == gpu::Element::kBf16;
  const bool is_k = type == gpu::Element::kQ4K || type == gpu::Element::kQ5K || type == gpu::Element::kQ6K;
  EBB_CHECK(is_bf16 || type == gpu::Element::kQ8 || type == gpu::Element::kQ4 ||
            (is_k && cols % gpu::kSuperBlock == 0));
  DeviceMatrix made;
  const auto fill = [&](gpu::Element as, int64_t numbers, float scale, GpuMemory& to) -> absl::Status {
    EBB_ASSIGN(to, gpu.Allocate(numbers * gpu::KvBytes(as), "random weights"));
    gpu.table().random({.type = as, .values = to.as<void>(), .n = numbers, .scale = scale, .seed = seed++},
                       gpu.stream());
    return absl::OkStatus();
  };
  if (is_bf16) {
    EBB_TRY(fill(type, count, std::sqrt(3.0F / static_cast<float>(cols)), made.values_));
  } else {
    constexpr float kScale = 1.0F / 64;
    EBB_TRY(fill(gpu::Element::kF32, type == gpu::Element::kQ8 ? count / 4 : count / 8, 1, made.values_));
    EBB_TRY(fill(gpu::Element::kF16, count / gpu::kWeightBlock, kScale, made.scales_));
    if (is_k) EBB_TRY(fill(gpu::Element::kF16, 2 * count / gpu::kSuperBlock, kScale, made.supers_));
    if (type == gpu::Element::kQ5K) EBB_TRY(fill(gpu::Element::kF32, count / 32, 1, made.upper_));
    if (type == gpu::Element::kQ6K) EBB_TRY(fill(gpu::Element::kF32, count / 16, 1, made.upper_));
  }
  made.matrix_ = {.type = type,
                  .rows = rows,
                  .cols = cols,
                  .values = made.values_.as<void>(),
                  .scales = made.scales_.as<uint16_t>(),
                  .supers = made.supers_.as<uint32_t>(),
                  .upper = made.upper_.as<uint32_t>()};
  return made;
}

}  // namespace ebb
