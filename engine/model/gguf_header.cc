#include "engine/model/gguf_header.h"

#include <array>

namespace ebb {
namespace {

// In the order of GgufNumber's alternatives.
constexpr std::array<GgufType, 5> kTypeOfValue = {GgufType::kUint16, GgufType::kUint32, GgufType::kInt32,
                                                  GgufType::kFloat32, GgufType::kBool};

template <typename T>
void Append(std::vector<std::byte>& out, T value) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(value));
}

void AppendString(std::vector<std::byte>& out, std::string_view text) {
  Append(out, static_cast<uint64_t>(text.size()));
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

void GgufHeader::Begin(std::string_view key, GgufType type) {
  AppendString(metadata_, key);
  Append(metadata_, static_cast<uint32_t>(type));
  ++pairs_;
}

void GgufHeader::Add(std::string_view key, GgufNumber value) {
  Begin(key, kTypeOfValue[value.index()]);
  std::visit([this](const auto number) { Append(metadata_, number); }, value);
}

void GgufHeader::AddText(std::string_view key, std::string_view text) {
  Begin(key, GgufType::kString);
  AppendString(metadata_, text);
}

void GgufHeader::BeginArray(std::string_view key, GgufType element, size_t count) {
  Begin(key, GgufType::kArray);
  Append(metadata_, static_cast<uint32_t>(element));
  Append(metadata_, static_cast<uint64_t>(count));
}

void GgufHeader::AddTexts(std::string_view key, std::span<const std::string> texts) {
  BeginArray(key, GgufType::kString, texts.size());
  for (const std::string& text : texts) AppendString(metadata_, text);
}

void GgufHeader::AddInts(std::string_view key, std::span<const int32_t> numbers) {
  BeginArray(key, GgufType::kInt32, numbers.size());
  for (const int32_t number : numbers) Append(metadata_, number);
}

void GgufHeader::AddFloats(std::string_view key, std::span<const float> numbers) {
  BeginArray(key, GgufType::kFloat32, numbers.size());
  for (const float number : numbers) Append(metadata_, number);
}

void GgufHeader::AddPair(const GgufValue& value) {
  Begin(value.key, value.type);
  if (value.type == GgufType::kString) {
    Append(metadata_, static_cast<uint64_t>(value.bytes.size()));
  } else if (value.type == GgufType::kArray) {
    Append(metadata_, static_cast<uint32_t>(value.element));
    Append(metadata_, value.count);
  }
  metadata_.insert(metadata_.end(), value.bytes.begin(), value.bytes.end());
}

void GgufHeader::AddTensor(std::string_view name, uint32_t type_id, std::span<const int64_t> shape, int64_t offset) {
  AppendString(directory_, name);
  Append(directory_, static_cast<uint32_t>(shape.size()));
  for (const int64_t extent : shape) Append(directory_, extent);
  Append(directory_, type_id);
  Append(directory_, offset);
  ++tensors_;
}

std::vector<std::byte> GgufHeader::Bytes() const {
  std::vector<std::byte> bytes;
  for (const char letter : std::string_view("GGUF")) bytes.push_back(static_cast<std::byte>(letter));
  Append(bytes, uint32_t{3});
  Append(bytes, tensors_);
  Append(bytes, pairs_);
  bytes.insert(bytes.end(), metadata_.begin(), metadata_.end());
  bytes.insert(bytes.end(), directory_.begin(), directory_.end());
  return bytes;
}

}  // namespace ebb
