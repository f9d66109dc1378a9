// GGUF model files, versions 2 and 3: metadata and tensors, read in place. A model in several files (split.count) is
// opened by the name of the first, and is one GgufFile.
//
// Opening checks the whole file: every count, length, type, shape and range is compared with the file's size before it
// is used or anything is allocated for it, names are unique, tensors lie inside the file and do not overlap. What a
// GgufFile hands out afterwards cannot be wrong in form; its meaning is architecture.h's business.
//
// A damaged file gives one error: DATA_LOSS, reason MODEL_DAMAGED, "FILE: byte N: expected ..., found ...". A file in a
// form we do not read (version 1, big-endian) is FAILED_PRECONDITION, reason UNSUPPORTED_MODEL_FORMAT.
//
// Every view and span points into the mapping: it lives as long as the GgufFile, also after that was moved, or, in what
// From keeps in memory, until DropCopies.
//
// Thread safety: immutable after opening, but for DropCopies.

#ifndef EBB_ENGINE_MODEL_GGUF_H_
#define EBB_ENGINE_MODEL_GGUF_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/mapped_file.h"
#include "engine/tensor.h"

namespace ebb {

// As numbered in the file.
enum class GgufType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

// One metadata pair, still encoded; GgufFile's getters decode.
struct GgufValue {
  std::string_view key = {};
  GgufType type = GgufType::kUint8;
  GgufType element = GgufType::kUint8;    // of an array
  uint64_t count = 0;                     // elements of an array
  uint64_t offset = 0;                    // of `bytes` in the file
  std::span<const std::byte> bytes = {};  // the scalar; a string's characters; an array's elements, one after another
};

// One entry of the tensor directory.
struct GgufTensor {
  std::string_view name = {};
  uint32_t type_id = 0;                         // see ggml_types.h
  std::optional<DType> type = {};               // absent: a type that we list but do not read
  int32_t dims = 0;                             // 1..4
  std::array<int64_t, 4> shape = {1, 1, 1, 1};  // fastest first, each >= 1, 1 past `dims`; the product fits int64
  uint64_t entry_offset = 0;                    // of the directory entry in the file
  uint64_t data_offset = 0;                     // of the data in the file
  std::span<const std::byte> data = {};         // empty where the type's size is unknown
  int32_t part = 0;                             // which of the model's files has it

  int64_t cols() const { return shape[0]; }
  int64_t rows() const { return shape[1] * shape[2] * shape[3]; }
};

class GgufFile {
 public:
  // A file, with those beside it that have the rest of the model; of several files the first. NOT_FOUND
  // FILE_UNREADABLE, naming part and file, where one is missing; FAILED_PRECONDITION UNSUPPORTED_MODEL_FORMAT for
  // another part than the first, or one that is not named so (gguf_split.h).
  static absl::StatusOr<GgufFile> Open(const std::string& path);

  // Reads from memory that outlives the result; `name` stands for the file in messages.
  static absl::StatusOr<GgufFile> Parse(std::string name, std::span<const std::byte> bytes);

  // A model that is stored otherwise: `header` is a GGUF file up to the end of its directory, with offsets of any kind,
  // and `data` has what its tensors hold, in order and of their sizes. The result keeps `header` and what `data` points
  // into: mapped files, and memory. Damaged names no byte then.
  struct Made {
    std::string name = {};
    std::vector<std::byte> header = {};
    std::vector<std::span<const std::byte>> data = {};
    std::vector<MappedFile> mapped = {};
    std::vector<std::vector<std::byte>> memory = {};
    std::vector<std::string> files = {};  // that have the tensors; empty: parts() is the name
  };
  static absl::StatusOr<GgufFile> From(Made made);

  // Bytes of From's memory.
  int64_t copied_bytes() const;
  // Gives that memory back, but for what `kept` points into. Tensors that lay in it have no data from then on.
  void DropCopies(std::span<const std::span<const std::byte>> kept);

  const std::string& name() const { return name_; }
  // Of the files that the model is in, the first; name() alone where it is in one.
  std::span<const std::string> parts() const { return parts_; }
  uint32_t version() const { return version_; }
  int64_t alignment() const { return alignment_; }
  int64_t file_bytes() const { return file_bytes_; }  // of all parts

  // In file order.
  std::span<const GgufValue> metadata() const { return metadata_; }
  std::span<const GgufTensor> tensors() const { return tensors_; }

  // Null where there is none of this name.
  const GgufValue* FindValue(std::string_view key) const;
  const GgufTensor* FindTensor(std::string_view name) const;

  // The value of a key. MODEL_DAMAGED, naming key and byte, where it is missing, of another type or out of range: an
  // integer may have any integer type and must fit int64; a double may also be stored as an integer.
  absl::StatusOr<int64_t> GetInt(std::string_view key) const;
  absl::StatusOr<double> GetDouble(std::string_view key) const;
  absl::StatusOr<bool> GetBool(std::string_view key) const;
  absl::StatusOr<std::string_view> GetString(std::string_view key) const;
  absl::StatusOr<std::vector<std::string_view>> GetStrings(std::string_view key) const;
  absl::StatusOr<std::vector<float>> GetFloats(std::string_view key) const;
  absl::StatusOr<std::vector<int32_t>> GetInts(std::string_view key) const;  // of any integer type that fits

  // The same, but a missing key is `fallback`.
  absl::StatusOr<int64_t> GetInt(std::string_view key, int64_t fallback) const;
  absl::StatusOr<double> GetDouble(std::string_view key, double fallback) const;
  absl::StatusOr<bool> GetBool(std::string_view key, bool fallback) const;
  absl::StatusOr<std::string_view> GetString(std::string_view key, std::string_view fallback) const;

  // The tensor as a matrix; dimensions past the first are rows. MODEL_DAMAGED where it is missing; FAILED_PRECONDITION
  // UNSUPPORTED_TENSOR_TYPE, naming tensor and type, where we do not read its type.
  absl::StatusOr<TensorView> GetTensor(std::string_view name) const;

  // The one error for a file whose content is wrong, for those who check its meaning: "FILE: byte N: expected E, found
  // F".
  absl::Status Damaged(uint64_t offset, const std::string& expected, const std::string& found) const;
  // Of a tensor's entry, in the file that has it.
  absl::Status Damaged(const GgufTensor& tensor, const std::string& expected, const std::string& found) const;
  // For something that is not there at all: the byte is where its section ends.
  absl::Status MissingKey(std::string_view key, const std::string& expected) const;
  absl::Status MissingTensor(std::string_view name, const std::string& expected) const;

 private:
  friend class GgufParser;
  friend class GgufJoiner;
  GgufFile() = default;
  absl::Status WrongType(const GgufValue& value, const std::string& expected) const;

  std::string name_ = {};
  std::vector<std::string> parts_ = {};
  std::vector<MappedFile> mappings_ = {};  // none after Parse
  std::vector<std::byte> header_ = {};     // of From, as the next
  std::vector<std::vector<std::byte>> memory_ = {};
  bool made_ = false;
  std::span<const std::byte> bytes_ = {};
  int64_t file_bytes_ = 0;
  uint32_t version_ = 0;
  int64_t alignment_ = 0;
  uint64_t metadata_end_ = 0;
  uint64_t directory_end_ = 0;
  std::vector<GgufValue> metadata_ = {};
  std::vector<GgufTensor> tensors_ = {};
  std::unordered_map<std::string_view, size_t> value_index_ = {};
  std::unordered_map<std::string_view, size_t> tensor_index_ = {};
};

// "uint32", "array of string".
std::string GgufTypeName(const GgufValue& value);

// On one line for people: 4096, true, "text", [32000 x string: "<unk>", "<s>", ...]. Characters that a terminal would
// not print are escaped, long values cut.
std::string FormatValue(const GgufValue& value);

// A name from a file, made fit for a message: escaped, and cut after 80 characters.
std::string Printable(std::string_view name);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_GGUF_H_
