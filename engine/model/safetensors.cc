#include "engine/model/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/model/gguf.h"
#include "engine/model/json_text.h"
#include "policies/status.h"

namespace ebb {
namespace {

using Json = nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr size_t kDimsMax = 8;

// Types of the format by their size in bytes; those of less than a byte are not listed, and refused.
constexpr std::array<std::pair<std::string_view, int64_t>, 15> kSizes = {{{"F32", 4},
                                                                          {"F16", 2},
                                                                          {"BF16", 2},
                                                                          {"F64", 8},
                                                                          {"I64", 8},
                                                                          {"I32", 4},
                                                                          {"I16", 2},
                                                                          {"I8", 1},
                                                                          {"U64", 8},
                                                                          {"U32", 4},
                                                                          {"U16", 2},
                                                                          {"U8", 1},
                                                                          {"BOOL", 1},
                                                                          {"F8_E4M3", 1},
                                                                          {"F8_E5M2", 1}}};

// A whole number from 0 that fits int64.
bool IsCount(const Json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= std::numeric_limits<int64_t>::max();
}

class HeaderReader {
 public:
  HeaderReader(const std::string& file, std::span<const std::byte> data) : file_(file), data_(data) {}

  absl::StatusOr<SafetensorsTensor> Read(const std::string& name, const Json& entry) const {
    SafetensorsTensor tensor = {.name = name};
    if (!entry.is_object()) return Wrong(name, "an object", ShowJson(entry));
    const auto dtype = entry.find("dtype");
    const auto* const size = dtype == entry.end() || !dtype->is_string()
                                 ? kSizes.end()
                                 : std::ranges::find(kSizes, std::string_view(dtype->get_ref<const std::string&>()),
                                                     &std::pair<std::string_view, int64_t>::first);
    if (size == kSizes.end()) {
      return Wrong(name, "a known dtype", dtype == entry.end() ? "none" : ShowJson(*dtype));
    }
    tensor.dtype = size->first;
    const auto shape = entry.find("shape");
    if (shape == entry.end() || !shape->is_array() || shape->size() > kDimsMax) {
      return Wrong(name, absl::StrFormat("a shape of at most %d numbers", kDimsMax),
                   shape == entry.end() ? "none" : ShowJson(*shape));
    }
    int64_t bytes = size->second;
    for (const Json& extent : *shape) {
      if (!IsCount(extent) || __builtin_mul_overflow(bytes, extent.get<int64_t>(), &bytes)) {
        return Wrong(name, "extents from 0 and with less than 2^63 bytes in all", ShowJson(*shape));
      }
      tensor.shape.push_back(extent.get<int64_t>());
    }
    const auto offsets = entry.find("data_offsets");
    if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 || !IsCount((*offsets)[0]) ||
        !IsCount((*offsets)[1])) {
      return Wrong(name, "data_offsets of two numbers from 0", offsets == entry.end() ? "none" : ShowJson(*offsets));
    }
    const auto begin = (*offsets)[0].get<uint64_t>();
    const auto end = (*offsets)[1].get<uint64_t>();
    if (begin > end || end > data_.size()) {
      return Wrong(name, absl::StrFormat("data_offsets within the %d bytes of data", data_.size()), ShowJson(*offsets));
    }
    if (end - begin != static_cast<uint64_t>(bytes)) {
      return Wrong(name, absl::StrFormat("%d bytes, as its shape has", bytes), absl::StrFormat("%d", end - begin));
    }
    tensor.data = data_.subspan(begin, end - begin);
    return tensor;
  }

  absl::Status Wrong(const std::string& tensor, const std::string& expected, const std::string& found) const {
    return DamagedJson(file_, "tensor " + Printable(tensor), expected, found);
  }

  // Sorted by their data, they follow each other from its begin to its end.
  absl::Status CheckPlaces(std::span<const SafetensorsTensor> tensors) const {
    const std::byte* at = data_.data();
    for (const SafetensorsTensor& tensor : tensors) {
      if (tensor.data.data() != at) {
        return Wrong(tensor.name,
                     absl::StrFormat("its data from byte %d, where that before it ends", at - data_.data()),
                     absl::StrFormat("byte %d", tensor.data.data() - data_.data()));
      }
      at += tensor.data.size();
    }
    const int64_t used = at - data_.data();
    if (used == static_cast<int64_t>(data_.size())) return absl::OkStatus();
    return DamagedJson(file_, "", absl::StrFormat("%d bytes of data, as its tensors have", used),
                       absl::StrFormat("%d", data_.size()));
  }

 private:
  const std::string& file_;
  std::span<const std::byte> data_;
};

}  // namespace

absl::StatusOr<std::vector<SafetensorsTensor>> ReadSafetensors(const std::string& name,
                                                               std::span<const std::byte> bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (size < kLengthBytes) {
    return DamagedJson(name, "byte 0", "the header's length in 8 bytes", absl::StrFormat("a file of %d bytes", size));
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  const int64_t length_max = std::min(size - kLengthBytes, kSafetensorsHeaderMax);
  if (length > static_cast<uint64_t>(length_max)) {
    return DamagedJson(name, "byte 0", absl::StrFormat("a header of at most %d bytes", length_max),
                       absl::StrFormat("a length of %d", length));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  EBB_ASSIGN(const Json header, ParseJsonObject(name, text, kLengthBytes));
  const HeaderReader reader(name, bytes.subspan(kLengthBytes + length));
  std::vector<SafetensorsTensor> tensors;
  for (const auto& [key, entry] : header.items()) {
    if (key == "__metadata__") continue;
    EBB_ASSIGN(SafetensorsTensor tensor, reader.Read(key, entry));
    tensors.push_back(std::move(tensor));
  }
  // Those without data come before the one that begins there.
  std::ranges::sort(tensors, {}, [](const SafetensorsTensor& t) { return std::pair(t.data.data(), t.data.size()); });
  EBB_TRY(reader.CheckPlaces(tensors));
  return tensors;
}

}  // namespace ebb
