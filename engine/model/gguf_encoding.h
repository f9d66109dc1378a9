// How GGUF stores single values. For gguf.cc and gguf_values.cc.

#ifndef EBB_ENGINE_MODEL_GGUF_ENCODING_H_
#define EBB_ENGINE_MODEL_GGUF_ENCODING_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/model/gguf.h"

namespace ebb {

// Bytes of a scalar; of a string its length field, of an array its head: the least that one takes.
constexpr uint64_t EncodedBytesMin(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kString:
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kArray:
      return 12;
  }
  return 1;
}

// The caller has made sure that sizeof(T) bytes are there; they need no alignment.
template <typename T>
T DecodeScalar(const std::byte* at) {
  T value = {};
  std::memcpy(&value, at, sizeof(value));
  return value;
}

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_GGUF_ENCODING_H_
