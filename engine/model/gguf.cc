#include "engine/model/gguf.h"

#include <malloc.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/model/ggml_types.h"
#include "engine/model/gguf_encoding.h"
#include "engine/model/gguf_split.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

static_assert(std::endian::native == std::endian::little, "model files are little-endian and read in place");

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kKeyBytesMax = 65535;  // the format's own limit
constexpr uint64_t kTensorNameBytesMax = 255;
constexpr uint64_t kStringBytesMax = std::numeric_limits<int64_t>::max();  // the file's end is the bound that counts
constexpr uint64_t kPairBytesMin = 8 + 1 + 4 + 1;           // length, one character, type, one byte of value
constexpr uint64_t kEntryBytesMin = 8 + 1 + 4 + 8 + 4 + 8;  // length, one character, dims, one extent, type, offset
constexpr uint32_t kDimsMax = 4;
constexpr int kNestingMax = 4;  // arrays inside arrays
constexpr int64_t kAlignmentDefault = 32;
constexpr int64_t kAlignmentMin = 8;  // lets every element type be read in place

absl::Status WrongFormat(const std::string& file, uint64_t offset, const std::string& what) {
  return Refuse(absl::StatusCode::kFailedPrecondition, absl::StrFormat("%s: byte %d: %s", file, offset, what),
                {.reason = "UNSUPPORTED_MODEL_FORMAT", .metadata = {{"file", file}}});
}

}  // namespace

// Reads a file once, front to back: header, metadata, directory; then places the tensors.
class GgufParser {
 public:
  GgufParser(std::string name, std::span<const std::byte> bytes) {
    file_.parts_ = {name};
    file_.name_ = std::move(name);
    file_.bytes_ = bytes;
    file_.file_bytes_ = static_cast<int64_t>(bytes.size());
  }

  explicit GgufParser(MappedFile mapping, std::string name) : GgufParser(std::move(name), mapping.bytes()) {
    file_.mappings_.push_back(std::move(mapping));
  }

  explicit GgufParser(GgufFile::Made made) {
    file_.parts_ = made.files.empty() ? std::vector{made.name} : std::move(made.files);
    file_.name_ = std::move(made.name);
    file_.made_ = true;
    file_.memory_ = std::move(made.memory);
    file_.header_ = std::move(made.header);
    file_.bytes_ = file_.header_;
    file_.mappings_ = std::move(made.mapped);
    for (const MappedFile& mapping : file_.mappings_) file_.file_bytes_ += static_cast<int64_t>(mapping.bytes().size());
  }

  absl::StatusOr<GgufFile> Parse() {
    EBB_TRY(ReadDirectory());
    EBB_TRY(PlaceTensors());
    EBB_TRY(CheckOverlaps());
    return std::move(file_);
  }

  absl::StatusOr<GgufFile> ParseAround(std::span<const std::span<const std::byte>> data) {
    EBB_TRY(ReadDirectory());
    EBB_ASSIGN(file_.alignment_, file_.GetInt("general.alignment", kAlignmentDefault));
    EBB_CHECK(data.size() == file_.tensors_.size());
    for (size_t i = 0; i < data.size(); ++i) {
      GgufTensor& tensor = file_.tensors_[i];
      const GgmlType* const type = FindGgmlType(tensor.type_id);
      EBB_CHECK(type != nullptr && tensor.cols() % type->values == 0);
      EBB_CHECK(static_cast<int64_t>(data[i].size()) == tensor.cols() / type->values * tensor.rows() * type->bytes);
      tensor.data = data[i];
    }
    return std::move(file_);
  }

 private:
  absl::Status ReadDirectory() {
    EBB_TRY(ReadHeader());
    for (uint64_t i = 0; i < pairs_; ++i) EBB_TRY(ReadPair());
    file_.metadata_end_ = at_;
    for (uint64_t i = 0; i < entries_; ++i) EBB_TRY(ReadEntry());
    file_.directory_end_ = at_;
    return absl::OkStatus();
  }

  uint64_t left() const { return file_.bytes_.size() - at_; }

  template <typename T>
  absl::StatusOr<T> Read(const char* what) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (left() < sizeof(T)) {
      return file_.Damaged(at_, absl::StrFormat("%d bytes of %s", sizeof(T), what),
                           absl::StrFormat("the end of the file after %d", left()));
    }
    const T value = DecodeScalar<T>(file_.bytes_.data() + at_);
    at_ += sizeof(T);
    return value;
  }

  absl::StatusOr<std::string_view> ReadString(const char* what, uint64_t bytes_min, uint64_t bytes_max) {
    const uint64_t start = at_;
    EBB_ASSIGN(const uint64_t length, Read<uint64_t>(what));
    if (length < bytes_min || length > bytes_max) {
      return file_.Damaged(start, absl::StrFormat("%s of %d to %d bytes", what, bytes_min, bytes_max),
                           absl::StrFormat("a length of %d", length));
    }
    if (length > left()) {
      return file_.Damaged(start, absl::StrFormat("%s of at most the %d bytes left in the file", what, left()),
                           absl::StrFormat("a length of %d", length));
    }
    const std::string_view text(reinterpret_cast<const char*>(file_.bytes_.data() + at_), length);
    at_ += length;
    return text;
  }

  // A count of things that take at least `bytes_min` each.
  absl::StatusOr<uint64_t> ReadCount(const char* what, uint64_t bytes_min) {
    const uint64_t start = at_;
    EBB_ASSIGN(const uint64_t count, Read<uint64_t>(what));
    if (count > left() / bytes_min) {
      return file_.Damaged(
          start, absl::StrFormat("%s of at most %d, as the file has %d bytes left", what, left() / bytes_min, left()),
          absl::StrFormat("%d", count));
    }
    return count;
  }

  absl::Status ReadHeader() {
    constexpr uint64_t kHeaderBytes = 24;
    if (left() < kHeaderBytes) {
      return file_.Damaged(0, absl::StrFormat("a GGUF header of %d bytes", kHeaderBytes),
                           absl::StrFormat("a file of %d bytes", left()));
    }
    const std::string_view magic(reinterpret_cast<const char*>(file_.bytes_.data()), kMagic.size());
    if (magic != kMagic) return file_.Damaged(0, "the magic \"GGUF\"", absl::StrFormat("\"%s\"", Printable(magic)));
    at_ = kMagic.size();
    EBB_ASSIGN(file_.version_, Read<uint32_t>("version"));
    if (file_.version_ != 0 && (file_.version_ & 0xFFFFU) == 0) {
      return WrongFormat(file_.name_, kMagic.size(), "the file is big-endian; only little-endian GGUF is read");
    }
    if (file_.version_ != 2 && file_.version_ != 3) {
      return WrongFormat(file_.name_, kMagic.size(),
                         absl::StrFormat("GGUF version %d is not read; versions 2 and 3 are", file_.version_));
    }
    EBB_ASSIGN(entries_, ReadCount("a tensor count", kEntryBytesMin));
    EBB_ASSIGN(pairs_, ReadCount("a metadata count", kPairBytesMin));
    return absl::OkStatus();
  }

  absl::StatusOr<GgufType> ReadType(const char* what) {
    const uint64_t start = at_;
    EBB_ASSIGN(const uint32_t number, Read<uint32_t>(what));
    if (number > static_cast<uint32_t>(GgufType::kFloat64)) {
      return file_.Damaged(start, absl::StrFormat("%s from 0 to 12", what), absl::StrFormat("%d", number));
    }
    return static_cast<GgufType>(number);
  }

  absl::Status ReadPair() {
    const uint64_t start = at_;
    GgufValue value;
    EBB_ASSIGN(value.key, ReadString("a metadata key", 1, kKeyBytesMax));
    EBB_ASSIGN(value.type, ReadType("a metadata type"));
    if (value.type == GgufType::kString) {
      EBB_ASSIGN(const std::string_view text, ReadString("a string", 0, kStringBytesMax));
      value.offset = at_ - text.size();
    } else if (value.type == GgufType::kArray) {
      EBB_TRY(ReadArrayHead(value.element, value.count));
      value.offset = at_;
      EBB_TRY(SkipElements(value.element, value.count, 1));
    } else {
      value.offset = at_;
      EBB_TRY(SkipElements(value.type, 1, 0));
    }
    value.bytes = file_.bytes_.subspan(value.offset, at_ - value.offset);
    if (!file_.value_index_.emplace(value.key, file_.metadata_.size()).second) {
      return file_.Damaged(start, "each metadata key once", absl::StrFormat("%s again", Printable(value.key)));
    }
    file_.metadata_.push_back(value);
    return absl::OkStatus();
  }

  absl::Status ReadArrayHead(GgufType& element, uint64_t& count) {
    EBB_ASSIGN(element, ReadType("an array's element type"));
    EBB_ASSIGN(count, ReadCount("an array's length", EncodedBytesMin(element)));
    return absl::OkStatus();
  }

  // Steps over `count` values, which lie inside `depth` arrays, and checks each.
  absl::Status SkipElements(GgufType type, uint64_t count, int depth) {
    if (type == GgufType::kString) {
      for (uint64_t i = 0; i < count; ++i) {
        EBB_TRY(ReadString("a string", 0, kStringBytesMax).status());
      }
      return absl::OkStatus();
    }
    if (type == GgufType::kArray) {
      if (depth >= kNestingMax) {
        return file_.Damaged(at_, absl::StrFormat("arrays nested at most %d deep", kNestingMax), "a deeper one");
      }
      for (uint64_t i = 0; i < count; ++i) {
        GgufType element = GgufType::kUint8;
        uint64_t inner = 0;
        EBB_TRY(ReadArrayHead(element, inner));
        EBB_TRY(SkipElements(element, inner, depth + 1));
      }
      return absl::OkStatus();
    }
    const uint64_t bytes = EncodedBytesMin(type);
    if (count > left() / bytes) {  // only a single value can fail: an array's count was checked
      return file_.Damaged(at_, absl::StrFormat("a metadata value of %d bytes", bytes),
                           absl::StrFormat("the end of the file after %d", left()));
    }
    if (type == GgufType::kBool) EBB_TRY(CheckBools(count));
    at_ += count * bytes;
    return absl::OkStatus();
  }

  absl::Status CheckBools(uint64_t count) const {
    for (uint64_t i = 0; i < count; ++i) {
      const auto stored = std::to_integer<int>(file_.bytes_[at_ + i]);
      if (stored > 1) return file_.Damaged(at_ + i, "a bool of 0 or 1", absl::StrFormat("%d", stored));
    }
    return absl::OkStatus();
  }

  absl::Status ReadEntry() {
    GgufTensor tensor = {.entry_offset = at_};
    EBB_ASSIGN(tensor.name, ReadString("a tensor name", 1, kTensorNameBytesMax));
    if (!file_.tensor_index_.emplace(tensor.name, file_.tensors_.size()).second) {
      return file_.Damaged(tensor.entry_offset, "each tensor name once",
                           absl::StrFormat("%s again", Printable(tensor.name)));
    }
    const uint64_t dims_offset = at_;
    EBB_ASSIGN(const uint32_t dims, Read<uint32_t>("tensor dimensions"));
    if (dims < 1 || dims > kDimsMax) {
      return file_.Damaged(dims_offset,
                           absl::StrFormat("1 to %d dimensions of tensor %s", kDimsMax, Printable(tensor.name)),
                           absl::StrFormat("%d", dims));
    }
    tensor.dims = static_cast<int32_t>(dims);
    EBB_TRY(ReadShape(tensor));
    EBB_ASSIGN(tensor.type_id, Read<uint32_t>("tensor type"));
    if (const GgmlType* const row = FindGgmlType(tensor.type_id); row != nullptr) tensor.type = row->type;
    EBB_ASSIGN(tensor.data_offset, Read<uint64_t>("tensor offset"));  // from where the data begins, until PlaceTensors
    file_.tensors_.push_back(tensor);
    return absl::OkStatus();
  }

  absl::Status ReadShape(GgufTensor& tensor) {
    int64_t elements = 1;
    for (int32_t i = 0; i < tensor.dims; ++i) {
      const uint64_t start = at_;
      EBB_ASSIGN(const int64_t extent, Read<int64_t>("tensor shape"));
      if (extent < 1 || __builtin_mul_overflow(elements, extent, &elements)) {
        return file_.Damaged(
            start, absl::StrFormat("extents of tensor %s from 1 and with a product below 2^63", Printable(tensor.name)),
            absl::StrFormat("%d", extent));
      }
      tensor.shape[i] = extent;
    }
    return absl::OkStatus();
  }

  absl::Status PlaceTensors() {
    EBB_ASSIGN(file_.alignment_, file_.GetInt("general.alignment", kAlignmentDefault));
    const int64_t alignment = file_.alignment_;
    if (alignment < kAlignmentMin || alignment > std::numeric_limits<uint32_t>::max() ||
        !std::has_single_bit(static_cast<uint64_t>(alignment))) {
      return file_.Damaged(file_.FindValue("general.alignment")->offset,
                           absl::StrFormat("general.alignment, a power of two from %d", kAlignmentMin),
                           absl::StrFormat("%d", alignment));
    }
    if (file_.tensors_.empty()) return absl::OkStatus();
    const uint64_t mask = static_cast<uint64_t>(alignment) - 1;
    const uint64_t data_begin = (file_.directory_end_ + mask) & ~mask;
    if (data_begin > file_.bytes_.size()) {
      return file_.Damaged(file_.directory_end_, absl::StrFormat("tensor data from byte %d", data_begin),
                           absl::StrFormat("a file of %d bytes", file_.bytes_.size()));
    }
    for (GgufTensor& tensor : file_.tensors_) EBB_TRY(PlaceTensor(tensor, data_begin));
    return absl::OkStatus();
  }

  absl::Status PlaceTensor(GgufTensor& tensor, uint64_t data_begin) const {
    const uint64_t room = file_.bytes_.size() - data_begin;
    if (tensor.data_offset > room || tensor.data_offset % static_cast<uint64_t>(file_.alignment_) != 0) {
      return file_.Damaged(tensor.entry_offset,
                           absl::StrFormat("an offset of tensor %s that is a multiple of %d up to %d",
                                           Printable(tensor.name), file_.alignment_, room),
                           absl::StrFormat("%d", tensor.data_offset));
    }
    const uint64_t left_bytes = room - tensor.data_offset;
    tensor.data_offset += data_begin;
    const GgmlType* const type = FindGgmlType(tensor.type_id);
    if (type == nullptr) return absl::OkStatus();
    if (tensor.cols() % type->values != 0) {
      return file_.Damaged(tensor.entry_offset,
                           absl::StrFormat("rows of %s tensor %s to be a multiple of %d long", type->name,
                                           Printable(tensor.name), type->values),
                           absl::StrFormat("%d", tensor.cols()));
    }
    const int64_t blocks = tensor.cols() / type->values * tensor.rows();
    if (static_cast<uint64_t>(blocks) > left_bytes / static_cast<uint64_t>(type->bytes)) {
      return file_.Damaged(tensor.entry_offset,
                           absl::StrFormat("tensor %s to fit the %d bytes from its offset %d to the end of the file",
                                           Printable(tensor.name), left_bytes, tensor.data_offset),
                           absl::StrFormat("%d blocks of %d bytes", blocks, type->bytes));
    }
    tensor.data = file_.bytes_.subspan(tensor.data_offset, static_cast<size_t>(blocks * type->bytes));
    return absl::OkStatus();
  }

  absl::Status CheckOverlaps() const {
    std::vector<const GgufTensor*> order;
    order.reserve(file_.tensors_.size());
    for (const GgufTensor& tensor : file_.tensors_) order.push_back(&tensor);
    std::ranges::sort(order, {}, [](const GgufTensor* t) { return std::pair(t->data_offset, t->entry_offset); });
    const GgufTensor* last = order.empty() ? nullptr : order.front();  // the one that ends last so far
    for (const GgufTensor* const tensor : order) {
      if (tensor == last) continue;
      const uint64_t end = last->data_offset + last->data.size();
      if (tensor->data_offset < end) {
        return file_.Damaged(tensor->entry_offset,
                             absl::StrFormat("data of tensor %s from byte %d, where that of %s ends",
                                             Printable(tensor->name), end, Printable(last->name)),
                             absl::StrFormat("byte %d", tensor->data_offset));
      }
      last = tensor;
    }
    return absl::OkStatus();
  }

  GgufFile file_ = {};
  uint64_t at_ = 0;
  uint64_t pairs_ = 0;
  uint64_t entries_ = 0;
};

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  const auto open = [](const std::string& part) -> absl::StatusOr<GgufFile> {
    EBB_ASSIGN(MappedFile mapping, MappedFile::Open(part));
    return GgufParser(std::move(mapping), part).Parse();
  };
  EBB_ASSIGN(GgufFile first, open(path));
  return JoinSplit(std::move(first), open);
}

absl::StatusOr<GgufFile> GgufFile::Parse(std::string name, std::span<const std::byte> bytes) {
  return GgufParser(std::move(name), bytes).Parse();
}

absl::StatusOr<GgufFile> GgufFile::From(Made made) {
  const std::vector<std::span<const std::byte>> data = std::move(made.data);
  return GgufParser(std::move(made)).ParseAround(data);
}

int64_t GgufFile::copied_bytes() const {
  int64_t bytes = 0;
  for (const std::vector<std::byte>& copy : memory_) bytes += static_cast<int64_t>(copy.size());
  return bytes;
}

void GgufFile::DropCopies(std::span<const std::span<const std::byte>> kept) {
  const size_t dropped = std::erase_if(memory_, [&](const std::vector<std::byte>& copy) {
    const auto lies_in_it = [&copy](std::span<const std::byte> data) {
      return std::less_equal<>()(copy.data(), data.data()) && std::less<>()(data.data(), copy.data() + copy.size());
    };
    if (std::ranges::any_of(kept, lies_in_it)) return false;
    for (GgufTensor& tensor : tensors_) {
      if (lies_in_it(tensor.data)) tensor.data = {};
    }
    return true;
  });
  if (dropped == 0) return;
#ifdef __GLIBC__
  malloc_trim(0);  // else the allocator keeps what is freed for others of the kind, which do not come
#endif
}

absl::Status GgufFile::Damaged(const GgufTensor& tensor, const std::string& expected, const std::string& found) const {
  const std::string& file = parts_[static_cast<size_t>(tensor.part)];
  if (made_) return Damaged(0, expected, found);
  return Refuse(absl::StatusCode::kDataLoss,
                absl::StrFormat("%s: byte %d: expected %s, found %s", file, tensor.entry_offset, expected, found),
                {.reason = "MODEL_DAMAGED",
                 .metadata = {{"file", file}, {"offset", absl::StrFormat("%d", tensor.entry_offset)}}});
}

absl::Status GgufFile::Damaged(uint64_t offset, const std::string& expected, const std::string& found) const {
  if (made_) {
    return Refuse(absl::StatusCode::kDataLoss, absl::StrFormat("%s: expected %s, found %s", name_, expected, found),
                  {.reason = "MODEL_DAMAGED", .metadata = {{"file", name_}}});
  }
  return Refuse(absl::StatusCode::kDataLoss,
                absl::StrFormat("%s: byte %d: expected %s, found %s", name_, offset, expected, found),
                {.reason = "MODEL_DAMAGED", .metadata = {{"file", name_}, {"offset", absl::StrFormat("%d", offset)}}});
}

}  // namespace ebb
