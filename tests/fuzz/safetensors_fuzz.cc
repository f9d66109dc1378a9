// Any bytes as a safetensors file. What is taken lies in the file, one tensor after another, each of its shape's size.

#include <cstdint>
#include <span>

#include "engine/model/safetensors.h"
#include "policies/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto tensors = ebb::ReadSafetensors("fuzz.safetensors", bytes);
  if (!tensors.ok()) return 0;
  unsigned sum = 0;
  size_t used = 0;
  for (const ebb::SafetensorsTensor& tensor : *tensors) {
    for (const std::byte byte : tensor.data) sum += std::to_integer<unsigned>(byte);  // reads all of it
    used += tensor.data.size();
  }
  EBB_CHECK(used + 8 <= size);
  EBB_CHECK(sum <= 255 * size);
  return 0;
}
