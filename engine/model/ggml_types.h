// The tensor types a GGUF file may hold, by the number it stores. We read a few; of the others we know name and size,
// so that a file's directory can be checked and listed whole.

#ifndef EBB_ENGINE_MODEL_GGML_TYPES_H_
#define EBB_ENGINE_MODEL_GGML_TYPES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/tensor.h"

namespace ebb {

struct GgmlType {
  uint32_t id = 0;
  std::string_view name = {};
  int64_t values = 0;              // elements in a block
  int64_t bytes = 0;               // bytes of a block
  std::optional<DType> type = {};  // absent: not read
};

// Every type that has a name, by id.
std::span<const GgmlType> GgmlTypes();

// The row by id, or null for a number nobody has given a meaning.
const GgmlType* FindGgmlType(uint32_t id);

// "Q4_K", or "type 77" where there is no name.
std::string GgmlTypeName(uint32_t id);

// The number a file stores for a type that we read.
uint32_t GgmlTypeId(DType type);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_GGML_TYPES_H_
