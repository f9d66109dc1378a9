#include "engine/model/architecture_table.h"

#include <algorithm>
#include <array>

namespace ebb {
namespace {

constexpr auto kModelTensors = std::to_array<ModelTensor>({
    {kEmbeddingTensor, &Weights::embedding, Side::kVocab, Side::kDim},
    {"output_norm.weight", &Weights::output_norm, Side::kOne, Side::kDim},
    {kOutputTensor, &Weights::output, Side::kVocab, Side::kDim},
});

constexpr auto kGatedLayer = std::to_array<LayerTensor>({
    {"attn_norm.weight", &LayerWeights::attn_norm, Side::kOne, Side::kDim},
    {"attn_q.weight", &LayerWeights::q, Side::kQueries, Side::kDim},
    {"attn_k.weight", &LayerWeights::k, Side::kKeys, Side::kDim},
    {"attn_v.weight", &LayerWeights::v, Side::kKeys, Side::kDim},
    {"attn_output.weight", &LayerWeights::o, Side::kDim, Side::kQueries},
    {"ffn_norm.weight", &LayerWeights::ffn_norm, Side::kOne, Side::kDim},
    {"ffn_gate.weight", &LayerWeights::gate, Side::kFfn, Side::kDim},
    {"ffn_up.weight", &LayerWeights::up, Side::kFfn, Side::kDim},
    {"ffn_down.weight", &LayerWeights::down, Side::kDim, Side::kFfn},
});

constexpr auto kUnusedLayerTensors = std::to_array<std::string_view>({
    "attn_rot_embd.weight",  // rope frequencies that old converters stored; they follow from the base
});

constexpr auto kRefusedKeys = std::to_array<RefusedKey>({
    {.key = "expert_count"},
    {.key = "attention.sliding_window"},
    {.key = "attention.causal", .neutral = 1},
    {.key = "attention.scale"},
    {.key = "attention.clamp_kqv"},
    {.key = "attention.max_alibi_bias"},
    {.key = "attn_logit_softcapping"},
    {.key = "final_logit_softcapping"},
    {.key = "use_parallel_residual"},
    {.key = "logit_scale", .neutral = 1},
    {.key = "residual_scale", .neutral = 1},
    {.key = "embedding_scale", .neutral = 1},
    {.key = "rope.scale_linear", .neutral = 1},
});

constexpr auto kArchitectures = std::to_array<ArchitectureRow>({
    {.name = "llama",
     .rope_pairs = RopePairs::kNeighbours,
     .model_tensors = kModelTensors,
     .layer_tensors = kGatedLayer,
     .unused_layer_tensors = kUnusedLayerTensors,
     .refused_keys = kRefusedKeys},
});

}  // namespace

std::span<const ArchitectureRow> Architectures() { return kArchitectures; }

const ArchitectureRow* FindArchitecture(std::string_view name) {
  const auto row = std::ranges::find(kArchitectures, name, &ArchitectureRow::name);
  return row == kArchitectures.end() ? nullptr : &*row;
}

}  // namespace ebb
