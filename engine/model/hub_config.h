// config.json and generation_config.json, written as the keys of a GGUF file.

#ifndef EBB_ENGINE_MODEL_HUB_CONFIG_H_
#define EBB_ENGINE_MODEL_HUB_CONFIG_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/gguf_header.h"
#include "engine/model/hub_table.h"
#include "engine/model/hub_tokenizer.h"

namespace ebb {

// What of it decides how tensors are laid out.
struct HubShape {
  const HubFamily* family = nullptr;
  int64_t layers = 0, heads = 0, kv_heads = 0, experts = 0;
  bool tied = false;
  HubEnds ends = {};
  std::vector<float> rope_factors = {};  // Llama 3's divisors of RoPE's frequencies; empty: none
};

// `config` and `generation` (null where there is none) are the files' objects, `file` and so on their paths for
// messages. Errors as ReadHubModel.
absl::StatusOr<HubShape> ReadHubConfig(const std::string& file, const nlohmann::json& config,
                                       const std::string& generation_file, const nlohmann::json& generation,
                                       GgufHeader& header);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_HUB_CONFIG_H_
