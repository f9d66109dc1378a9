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
  // What most models leave at its default is told by those that do not.
  const auto add_unless = [&add](auto value, auto usual) {
    if (value != usual) add(reinterpret_cast<const char*>(&value), sizeof value);
  };
  const ModelConfig usual;
  add_unless(config.norm, usual.norm);
  add_unless(config.activation, usual.activation);
  add_unless(config.parallel_residual, usual.parallel_residual);
  add_unless(config.embedding_scale, usual.embedding_scale);
  add_unless(config.logit_cap, usual.logit_cap);
  add_unless(config.attention_cap, usual.attention_cap);
  add_unless(config.attention_scale, usual.attention_scale);
  add_unless(config.experts_used, usual.experts_used);
  add_unless(config.positions, usual.positions);
  add(reinterpret_cast<const char*>(config.windows.data()), config.windows.size() * sizeof(int32_t));
  add(reinterpret_cast<const char*>(config.window_rope_frequencies.data()),
      config.window_rope_frequencies.size() * sizeof(double));
  for (const GgufTensor& tensor : file.tensors()) {
    add(tensor.name.data(), tensor.name.size());
    add(reinterpret_cast<const char*>(tensor.shape.data()), sizeof tensor.shape);
    add(reinterpret_cast<const char*>(tensor.data.data()), std::min<size_t>(tensor.data.size(), 4096));
  }
  return absl::StrFormat("%016x", hash);
}

}  // namespace ebb
