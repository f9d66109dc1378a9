#include "tests/support/gguf_writer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <type_traits>

#include "engine/model/ggml_types.h"
#include "engine/model/quantization.h"
#include "policies/check.h"

namespace ebb {
namespace {

constexpr size_t kBlock = 32;

// In the order of GgufScalar's alternatives.
constexpr std::array<GgufType, 12> kScalarTypes = {
    GgufType::kUint8,   GgufType::kInt8, GgufType::kUint16, GgufType::kInt16,  GgufType::kUint32, GgufType::kInt32,
    GgufType::kFloat32, GgufType::kBool, GgufType::kString, GgufType::kUint64, GgufType::kInt64,  GgufType::kFloat64};

void Append(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void Pad(std::vector<std::byte>& out, uint64_t alignment) {
  while (out.size() % alignment != 0) out.push_back(std::byte{0});
}

std::vector<std::byte> ArrayHead(GgufType element, uint64_t count) {
  std::vector<std::byte> head;
  AppendBytes(head, static_cast<uint32_t>(element));
  AppendBytes(head, count);
  return head;
}

void EncodeQ8Block(std::vector<std::byte>& out, std::span<const float> x) {
  float peak = 0;
  for (const float value : x) peak = std::max(peak, std::fabs(value));
  const float d = peak / 127.0F;
  const float inverse = d == 0 ? 0 : 1.0F / d;
  AppendBytes(out, F16FromFloat(d));
  for (const float value : x) AppendBytes(out, static_cast<int8_t>(std::nearbyint(value * inverse)));
}

void EncodeQ4Block(std::vector<std::byte>& out, std::span<const float> x) {
  const float peak = *std::ranges::max_element(x, {}, [](float value) { return std::fabs(value); });
  const float d = peak / -8.0F;
  const float inverse = d == 0 ? 0 : 1.0F / d;
  const auto nibble = [&](size_t i) {
    return static_cast<uint8_t>(std::clamp(std::floor(x[i] * inverse + 8.5F), 0.0F, 15.0F));
  };
  AppendBytes(out, F16FromFloat(d));
  for (size_t i = 0; i < kBlock / 2; ++i) AppendBytes(out, static_cast<uint8_t>(nibble(i) | (nibble(i + 16) << 4)));
}

}  // namespace

void AppendString(std::vector<std::byte>& out, const std::string& text) {
  AppendBytes(out, static_cast<uint64_t>(text.size()));
  Append(out, std::as_bytes(std::span(text)));
}

std::vector<std::byte> EncodeValues(DType type, std::span<const float> values) {
  std::vector<std::byte> out;
  if (type == DType::kF32) {
    Append(out, std::as_bytes(values));
  } else if (type == DType::kF16) {
    for (const float value : values) AppendBytes(out, F16FromFloat(value));
  } else if (type == DType::kBf16) {
    for (const float value : values) AppendBytes(out, Bf16FromFloat(value));
  } else {
    EBB_CHECK(type == DType::kQ8_0 || type == DType::kQ4_0);
    EBB_CHECK(values.size() % kBlock == 0);
    for (size_t i = 0; i < values.size(); i += kBlock) {
      (type == DType::kQ8_0 ? EncodeQ8Block : EncodeQ4Block)(out, values.subspan(i, kBlock));
    }
  }
  return out;
}

void GgufWriter::AddRaw(const std::string& key, GgufType type, std::span<const std::byte> encoded) {
  AppendString(metadata_, key);
  AppendBytes(metadata_, static_cast<uint32_t>(type));
  Append(metadata_, encoded);
  ++pairs_;
}

void GgufWriter::Add(const std::string& key, const GgufScalar& value) {
  std::vector<std::byte> encoded;
  std::visit(
      [&](const auto& scalar) {
        if constexpr (std::is_same_v<std::decay_t<decltype(scalar)>, std::string>) {
          AppendString(encoded, scalar);
        } else {
          AppendBytes(encoded, scalar);
        }
      },
      value);
  AddRaw(key, kScalarTypes[value.index()], encoded);
}

void GgufWriter::AddArray(const std::string& key, const std::vector<std::string>& values) {
  std::vector<std::byte> encoded = ArrayHead(GgufType::kString, values.size());
  for (const std::string& value : values) AppendString(encoded, value);
  AddRaw(key, GgufType::kArray, encoded);
}

void GgufWriter::AddArray(const std::string& key, const std::vector<float>& values) {
  std::vector<std::byte> encoded = ArrayHead(GgufType::kFloat32, values.size());
  Append(encoded, std::as_bytes(std::span(values)));
  AddRaw(key, GgufType::kArray, encoded);
}

void GgufWriter::AddArray(const std::string& key, const std::vector<int32_t>& values) {
  std::vector<std::byte> encoded = ArrayHead(GgufType::kInt32, values.size());
  Append(encoded, std::as_bytes(std::span(values)));
  AddRaw(key, GgufType::kArray, encoded);
}

void GgufWriter::AddTensor(const std::string& name, DType type, int64_t rows, int64_t cols,
                           std::span<const float> values) {
  EBB_CHECK(static_cast<int64_t>(values.size()) == std::max<int64_t>(rows, 1) * cols);
  std::vector<uint64_t> shape = {static_cast<uint64_t>(cols)};
  if (rows > 0) shape.push_back(static_cast<uint64_t>(rows));
  AddRawTensor(name, GgmlTypeId(type), shape, EncodeValues(type, values));
}

void GgufWriter::AddRawTensor(const std::string& name, uint32_t type_id, const std::vector<uint64_t>& shape,
                              std::span<const std::byte> data) {
  Pad(data_, alignment_);
  AppendString(directory_, name);
  AppendBytes(directory_, static_cast<uint32_t>(shape.size()));
  for (const uint64_t extent : shape) AppendBytes(directory_, extent);
  AppendBytes(directory_, type_id);
  AppendBytes(directory_, static_cast<uint64_t>(data_.size()));
  Append(data_, data);
  ++tensors_;
}

std::vector<std::byte> GgufWriter::Bytes() const {
  std::vector<std::byte> file;
  Append(file, std::as_bytes(std::span("GGUF", 4)));
  AppendBytes(file, version_);
  AppendBytes(file, tensors_);
  AppendBytes(file, pairs_);
  Append(file, metadata_);
  Append(file, directory_);
  if (tensors_ > 0) Pad(file, alignment_);
  Append(file, data_);
  return file;
}

void GgufWriter::Write(const std::string& path) const {
  const std::vector<std::byte> bytes = Bytes();
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  EBB_CHECK(file.good());
}

}  // namespace ebb
