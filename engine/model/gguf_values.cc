// The getters of GgufFile: what was checked while opening is decoded here.

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/model/ggml_types.h"
#include "engine/model/gguf.h"
#include "engine/model/gguf_encoding.h"
#include "policies/check.h"
#include "policies/shortest.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr size_t kPrintableMax = 80;
constexpr size_t kFormatElementsMax = 8;

std::string_view ScalarName(GgufType type) {
  constexpr std::array<std::string_view, 13> kNames = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                                       "int32",  "float32", "bool",   "string", "array",
                                                       "uint64", "int64",   "float64"};
  return kNames[static_cast<size_t>(type)];
}

bool IsInteger(GgufType type) {
  return type <= GgufType::kInt32 || type == GgufType::kUint64 || type == GgufType::kInt64;
}

bool IsFloat(GgufType type) { return type == GgufType::kFloat32 || type == GgufType::kFloat64; }

// Absent where the number does not fit. REQUIRES: IsInteger(type).
std::optional<int64_t> DecodeInt(GgufType type, const std::byte* at) {
  switch (type) {
    case GgufType::kUint8:
      return DecodeScalar<uint8_t>(at);
    case GgufType::kInt8:
      return DecodeScalar<int8_t>(at);
    case GgufType::kUint16:
      return DecodeScalar<uint16_t>(at);
    case GgufType::kInt16:
      return DecodeScalar<int16_t>(at);
    case GgufType::kUint32:
      return DecodeScalar<uint32_t>(at);
    case GgufType::kInt32:
      return DecodeScalar<int32_t>(at);
    case GgufType::kInt64:
      return DecodeScalar<int64_t>(at);
    default:
      break;
  }
  EBB_CHECK(type == GgufType::kUint64);
  const auto number = DecodeScalar<uint64_t>(at);
  if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(number);
}

double DecodeFloat(GgufType type, const std::byte* at) {
  return type == GgufType::kFloat32 ? static_cast<double>(DecodeScalar<float>(at)) : DecodeScalar<double>(at);
}

std::string_view Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The first `count` strings of an array of strings.
std::vector<std::string_view> DecodeStrings(const GgufValue& value, uint64_t count) {
  std::vector<std::string_view> strings;
  strings.reserve(count);
  std::span<const std::byte> rest = value.bytes;
  for (uint64_t i = 0; i < count; ++i) {
    const auto length = DecodeScalar<uint64_t>(rest.data());
    strings.push_back(Text(rest.subspan(sizeof(length), length)));
    rest = rest.subspan(sizeof(length) + length);
  }
  return strings;
}

std::string FormatScalar(GgufType type, const std::byte* at) {
  if (type == GgufType::kBool) return DecodeScalar<uint8_t>(at) != 0 ? "true" : "false";
  if (type == GgufType::kFloat32) return Shortest(DecodeScalar<float>(at));
  if (IsFloat(type)) return Shortest(DecodeFloat(type, at));
  const std::optional<int64_t> number = DecodeInt(type, at);
  return number ? absl::StrFormat("%d", *number) : absl::StrFormat("%d", DecodeScalar<uint64_t>(at));
}

std::string FormatText(std::string_view text) { return absl::StrFormat("\"%s\"", Printable(text)); }

std::string FormatArray(const GgufValue& value) {
  const std::string head = absl::StrFormat("%d x %s", value.count, ScalarName(value.element));
  if (value.element == GgufType::kArray) return absl::StrFormat("[%s]", head);
  const uint64_t shown = std::min<uint64_t>(value.count, kFormatElementsMax);
  std::vector<std::string> parts;
  if (value.element == GgufType::kString) {
    for (const std::string_view text : DecodeStrings(value, shown)) parts.push_back(FormatText(text));
  } else {
    for (uint64_t i = 0; i < shown; ++i) {
      parts.push_back(FormatScalar(value.element, value.bytes.data() + i * EncodedBytesMin(value.element)));
    }
  }
  if (shown < value.count) parts.emplace_back("...");
  return absl::StrFormat("[%s: %s]", head, absl::StrJoin(parts, ", "));
}

}  // namespace

const GgufValue* GgufFile::FindValue(std::string_view key) const {
  const auto found = value_index_.find(key);
  return found == value_index_.end() ? nullptr : &metadata_[found->second];
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

absl::Status GgufFile::MissingKey(std::string_view key, const std::string& expected) const {
  return Damaged(metadata_end_, absl::StrFormat("metadata key %s (%s)", key, expected), "the end of the metadata");
}

absl::Status GgufFile::MissingTensor(std::string_view name, const std::string& expected) const {
  return Damaged(directory_end_, absl::StrFormat("tensor %s (%s)", name, expected), "the end of the tensor directory");
}

absl::StatusOr<int64_t> GgufFile::GetInt(std::string_view key) const {
  const GgufValue* const value = FindValue(key);
  if (value == nullptr) return MissingKey(key, "an integer");
  const std::optional<int64_t> number =
      IsInteger(value->type) ? DecodeInt(value->type, value->bytes.data()) : std::nullopt;
  if (!number) return WrongType(*value, "an integer below 2^63");
  return *number;
}

absl::StatusOr<double> GgufFile::GetDouble(std::string_view key) const {
  const GgufValue* const value = FindValue(key);
  if (value == nullptr) return MissingKey(key, "a number");
  if (IsFloat(value->type)) return DecodeFloat(value->type, value->bytes.data());
  if (!IsInteger(value->type)) return WrongType(*value, "a number");
  EBB_ASSIGN(const int64_t number, GetInt(key));
  return static_cast<double>(number);
}

absl::StatusOr<bool> GgufFile::GetBool(std::string_view key) const {
  const GgufValue* const value = FindValue(key);
  if (value == nullptr) return MissingKey(key, "a bool");
  if (value->type != GgufType::kBool) return WrongType(*value, "a bool");
  return DecodeScalar<uint8_t>(value->bytes.data()) != 0;
}

absl::StatusOr<std::string_view> GgufFile::GetString(std::string_view key) const {
  const GgufValue* const value = FindValue(key);
  if (value == nullptr) return MissingKey(key, "a string");
  if (value->type != GgufType::kString) return WrongType(*value, "a string");
  return Text(value->bytes);
}

absl::StatusOr<std::vector<std::string_view>> GgufFile::GetStrings(std::string_view key) const {
  const GgufValue* const value = FindValue(key);
  if (value == nullptr) return MissingKey(key, "an array of strings");
  if (value->type != GgufType::kArray || value->element != GgufType::kString) {
    return WrongType(*value, "an array of strings");
  }
  return DecodeStrings(*value, value->count);
}

absl::StatusOr<std::vector<float>> GgufFile::GetFloats(std::string_view key) const {
  const GgufValue* const value = FindValue(key);
  if (value == nullptr) return MissingKey(key, "an array of float32");
  if (value->type != GgufType::kArray || value->element != GgufType::kFloat32) {
    return WrongType(*value, "an array of float32");
  }
  std::vector<float> numbers(value->count);
  if (!numbers.empty()) std::memcpy(numbers.data(), value->bytes.data(), value->bytes.size());
  return numbers;
}

absl::StatusOr<std::vector<int32_t>> GgufFile::GetInts(std::string_view key) const {
  const GgufValue* const value = FindValue(key);
  if (value == nullptr) return MissingKey(key, "an array of integers");
  if (value->type != GgufType::kArray || !IsInteger(value->element)) return WrongType(*value, "an array of integers");
  std::vector<int32_t> numbers(value->count);
  const uint64_t step = EncodedBytesMin(value->element);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<int64_t> number = DecodeInt(value->element, value->bytes.data() + i * step);
    if (!number || *number != static_cast<int32_t>(*number)) {
      return Damaged(value->offset + i * step, absl::StrFormat("elements of %s to fit 32 bits", Printable(key)),
                     FormatScalar(value->element, value->bytes.data() + i * step));
    }
    numbers[i] = static_cast<int32_t>(*number);
  }
  return numbers;
}

absl::StatusOr<int64_t> GgufFile::GetInt(std::string_view key, int64_t fallback) const {
  if (FindValue(key) == nullptr) return fallback;
  return GetInt(key);
}

absl::StatusOr<double> GgufFile::GetDouble(std::string_view key, double fallback) const {
  if (FindValue(key) == nullptr) return fallback;
  return GetDouble(key);
}

absl::StatusOr<bool> GgufFile::GetBool(std::string_view key, bool fallback) const {
  if (FindValue(key) == nullptr) return fallback;
  return GetBool(key);
}

absl::StatusOr<std::string_view> GgufFile::GetString(std::string_view key, std::string_view fallback) const {
  if (FindValue(key) == nullptr) return fallback;
  return GetString(key);
}

namespace {

std::string TypesThatAreRead() {
  std::vector<std::string> names;
  for (const GgmlType& type : GgmlTypes()) {
    if (type.type) names.emplace_back(type.name);
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace

absl::StatusOr<TensorView> GgufFile::GetTensor(std::string_view name) const {
  const GgufTensor* const tensor = FindTensor(name);
  if (tensor == nullptr) return MissingTensor(name, "any type that is read");
  if (!tensor->type) {
    return Refuse(
        absl::StatusCode::kFailedPrecondition,
        absl::StrFormat("%s: tensor %s has type %s, which is not read; %s are", name_, Printable(name),
                        GgmlTypeName(tensor->type_id), TypesThatAreRead()),
        {.reason = "UNSUPPORTED_TENSOR_TYPE",
         .metadata = {{"file", name_}, {"tensor", Printable(name)}, {"type", GgmlTypeName(tensor->type_id)}}});
  }
  return TensorView{.name = tensor->name,
                    .type = *tensor->type,
                    .rows = tensor->rows(),
                    .cols = tensor->cols(),
                    .data = tensor->data};
}

absl::Status GgufFile::WrongType(const GgufValue& value, const std::string& expected) const {
  return Damaged(value.offset, absl::StrFormat("%s in metadata key %s", expected, Printable(value.key)),
                 absl::StrFormat("%s %s", GgufTypeName(value), FormatValue(value)));
}

std::string GgufTypeName(const GgufValue& value) {
  if (value.type != GgufType::kArray) return std::string(ScalarName(value.type));
  return absl::StrFormat("array of %s", ScalarName(value.element));
}

std::string FormatValue(const GgufValue& value) {
  if (value.type == GgufType::kArray) return FormatArray(value);
  if (value.type == GgufType::kString) return FormatText(Text(value.bytes));
  return FormatScalar(value.type, value.bytes.data());
}

std::string Printable(std::string_view name) {
  const bool cut = name.size() > kPrintableMax;
  const std::string_view shown = name.substr(0, kPrintableMax);
  return absl::CHexEscape(absl::string_view(shown.data(), shown.size())) + (cut ? "..." : "");
}

}  // namespace ebb
