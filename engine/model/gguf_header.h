// Writes what a GGUF file (version 3) has before its data: metadata and the directory of tensors.

#ifndef EBB_ENGINE_MODEL_GGUF_HEADER_H_
#define EBB_ENGINE_MODEL_GGUF_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/model/gguf.h"

namespace ebb {

inline constexpr int64_t kGgufAlignment = 32;  // of the data of each tensor, where the file does not say otherwise

// The alternative decides the type in the file.
using GgufNumber = std::variant<uint16_t, uint32_t, int32_t, float, bool>;

class GgufHeader {
 public:
  void Add(std::string_view key, GgufNumber value);
  void AddText(std::string_view key, std::string_view text);
  void AddTexts(std::string_view key, std::span<const std::string> texts);
  void AddInts(std::string_view key, std::span<const int32_t> numbers);
  void AddFloats(std::string_view key, std::span<const float> numbers);
  void AddPair(const GgufValue& value);  // as another file has it
  // `shape` fastest first; `offset` from where data begins.
  void AddTensor(std::string_view name, uint32_t type_id, std::span<const int64_t> shape, int64_t offset);

  // Up to the end of the directory, without the padding before the data.
  std::vector<std::byte> Bytes() const;

 private:
  void Begin(std::string_view key, GgufType type);
  void BeginArray(std::string_view key, GgufType element, size_t count);

  uint64_t pairs_ = 0;
  uint64_t tensors_ = 0;
  std::vector<std::byte> metadata_ = {};
  std::vector<std::byte> directory_ = {};
};

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_GGUF_HEADER_H_
