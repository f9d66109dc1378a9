#include "engine/model/fingerprint.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_format.h"

namespace ebb {

std::string ModelFingerprint(const GgufFile& file, const ModelConfig& config) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](const char* bytes, size_t size) {
    for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<unsigned char>(bytes[i])) * 0x100000001b3;
  };
  const int32_t numbers[] = {config.heads, config.kv_heads, config.rotary_dims,
                             static_cast<int32_t>(config.rope_pairs)};
  add(reinterpret_cast<const char*>(numbers), sizeof numbers);
  add(reinterpret_cast<const char*>(&config.norm_eps), sizeof config.norm_eps);
  add(reinterpret_cast<const char*>(config.rope_frequencies.data()), config.rope_frequencies.size() * sizeof(double));
  for (const GgufTensor& tensor : file.tensors()) {
    add(tensor.name.data(), tensor.name.size());
    add(reinterpret_cast<const char*>(tensor.shape.data()), sizeof tensor.shape);
    add(reinterpret_cast<const char*>(tensor.data.data()), std::min<size_t>(tensor.data.size(), 4096));
  }
  return absl::StrFormat("%016x", hash);
}

}  // namespace ebb
