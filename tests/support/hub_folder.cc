#include "tests/support/hub_folder.h"

#include <cmath>
#include <cstring>
#include <fstream>

#include "policies/check.h"
#include "policies/hash_random.h"

namespace ebb {
namespace {

std::vector<std::byte> BytesOf(const std::string& text) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

std::vector<std::byte> RawSafetensors(const std::string& header, size_t data_bytes) {
  std::vector<std::byte> file(8);
  const uint64_t length = header.size();
  std::memcpy(file.data(), &length, sizeof(length));
  const std::vector<std::byte> text = BytesOf(header);
  file.insert(file.end(), text.begin(), text.end());
  file.resize(file.size() + data_bytes);
  return file;
}

std::vector<std::byte> MakeSafetensors(const std::map<std::string, HubTensorBytes>& tensors) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  std::vector<std::byte> data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    data.insert(data.end(), tensor.data.begin(), tensor.data.end());
    header[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // as their own software does, so that data is aligned
  std::vector<std::byte> file = RawSafetensors(text, 0);
  file.insert(file.end(), data.begin(), data.end());
  return file;
}

HubTensorBytes RandomHubTensor(const std::vector<int64_t>& shape, uint64_t seed) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  HashRandom random(seed, 3);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = std::sqrt(3.0F) * (2 * random.UniformFloat() - 1);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  return {.dtype = "F32", .shape = shape, .data = {bytes.begin(), bytes.end()}};
}

HubFolder::HubFolder() {
  config = {{"model_type", "llama"},        {"hidden_size", 8},      {"num_hidden_layers", 2},
            {"intermediate_size", 12},      {"rms_norm_eps", 1e-5},  {"max_position_embeddings", 64},
            {"num_attention_heads", 2},     {"hidden_act", "silu"},  {"num_key_value_heads", 1},
            {"tie_word_embeddings", false}, {"rope_theta", 10000.0}, {"eos_token_id", 2}};
  const std::pair<const char*, std::vector<int64_t>> kModel[] = {
      {"model.embed_tokens.weight", {5, 8}}, {"model.norm.weight", {8}}, {"lm_head.weight", {5, 8}}};
  const std::pair<const char*, std::vector<int64_t>> kLayer[] = {
      {"input_layernorm.weight", {8}},     {"self_attn.q_proj.weight", {8, 8}},
      {"self_attn.k_proj.weight", {4, 8}}, {"self_attn.v_proj.weight", {4, 8}},
      {"self_attn.o_proj.weight", {8, 8}}, {"post_attention_layernorm.weight", {8}},
      {"mlp.gate_proj.weight", {12, 8}},   {"mlp.up_proj.weight", {12, 8}},
      {"mlp.down_proj.weight", {8, 12}}};
  uint64_t seed = 0;
  for (const auto& [name, shape] : kModel) tensors[name] = RandomHubTensor(shape, ++seed);
  for (const char* const layer : {"0", "1"}) {
    for (const auto& [name, shape] : kLayer) {
      tensors[std::string("model.layers.") + layer + "." + name] = RandomHubTensor(shape, ++seed);
    }
  }
}

void HubFolder::Finish() {
  files.try_emplace("config.json", BytesOf(config.dump()));
  if (!files.contains("model.safetensors.index.json")) files.try_emplace("model.safetensors", MakeSafetensors(tensors));
}

absl::StatusOr<std::span<const std::byte>> HubFolder::Read(const std::string& name) const {
  const auto found = files.find(name);
  if (found == files.end()) return absl::NotFoundError(name + ": not there");
  return std::span<const std::byte>(found->second);
}

void HubFolder::Write(const std::string& path) const {
  for (const auto& [name, bytes] : files) {
    std::ofstream file(path + "/" + name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    file.close();
    EBB_CHECK(file.good());
  }
}

}  // namespace ebb
