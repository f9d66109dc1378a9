// Builds small GGUF files in memory, sound ones and, through the raw calls, damaged ones.

#ifndef EBB_TESTS_SUPPORT_GGUF_WRITER_H_
#define EBB_TESTS_SUPPORT_GGUF_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/model/gguf.h"
#include "engine/tensor.h"

namespace ebb {

// The alternative decides the type in the file.
using GgufScalar = std::variant<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float, bool, std::string,
                                uint64_t, int64_t, double>;

class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3) : version_(version) {}

  void Add(const std::string& key, const GgufScalar& value);
  void AddArray(const std::string& key, const std::vector<std::string>& values);
  void AddArray(const std::string& key, const std::vector<float>& values);
  void AddArray(const std::string& key, const std::vector<int32_t>& values);
  // `encoded` is what stands behind the type in the file; of an array, its head too.
  void AddRaw(const std::string& key, GgufType type, std::span<const std::byte> encoded);

  // `values` [rows, cols], rounded to `type`; rows = 0 makes a vector of `cols`.
  void AddTensor(const std::string& name, DType type, int64_t rows, int64_t cols, std::span<const float> values);
  // `shape` fastest first; any type number, any bytes. The data is placed behind that of the tensor before.
  void AddRawTensor(const std::string& name, uint32_t type_id, const std::vector<uint64_t>& shape,
                    std::span<const std::byte> data);

  // Where tensor data is placed, 32 unless set; call it before adding tensors. Add general.alignment yourself.
  void set_alignment(uint64_t bytes) { alignment_ = bytes; }

  std::vector<std::byte> Bytes() const;
  // Replaces the file at `path`. A failure ends the test program.
  void Write(const std::string& path) const;

 private:
  uint32_t version_;
  uint64_t alignment_ = 32;
  uint64_t pairs_ = 0;
  uint64_t tensors_ = 0;
  std::vector<std::byte> metadata_ = {};
  std::vector<std::byte> directory_ = {};
  std::vector<std::byte> data_ = {};
};

// Rows as the file stores them: F16 and BF16 to nearest even; Q8_0 with d = max|x| / 127; Q4_0 with d = x / -8 for the
// x of largest magnitude. `values` is whole blocks. REQUIRES: one of these types or F32; there is no encoder of K
// types.
std::vector<std::byte> EncodeValues(DType type, std::span<const float> values);

// The bytes of `value`, little-endian, put behind `out`.
template <typename T>
void AppendBytes(std::vector<std::byte>& out, T value) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(value));
}

// A string as GGUF stores it: its length in 64 bits, then its characters.
void AppendString(std::vector<std::byte>& out, const std::string& text);

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_GGUF_WRITER_H_
