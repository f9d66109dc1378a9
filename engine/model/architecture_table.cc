#include "engine/model/architecture_table.h"

#include <array>

namespace ebb {
namespace {

using W = Weights;
using L = LayerWeights;

constexpr auto kModelTensors = std::to_array<ModelTensor>({
    {kEmbeddingTensor, &W::embedding, Side::kVocab, Side::kDim},
    {"output_norm.weight", &W::output_norm, Side::kOne, Side::kDim},
    {kOutputTensor, &W::output, Side::kVocab, Side::kDim},
});

constexpr ModelTensor kOutputNormBias = {"output_norm.bias", &W::output_norm_bias, Side::kOne, Side::kDim};
constexpr ModelTensor kPositions = {"position_embd.weight", &W::positions, Side::kContext, Side::kDim};

constexpr auto kLayerNormModel = std::to_array<ModelTensor>({
    kModelTensors[0],
    kModelTensors[1],
    kOutputNormBias,
    kModelTensors[2],
});
constexpr auto kLearnedModel = std::to_array<ModelTensor>({
    kModelTensors[0],
    kPositions,
    kModelTensors[1],
    kOutputNormBias,
    kModelTensors[2],
});
constexpr auto kBloomModel = std::to_array<ModelTensor>({
    kModelTensors[0],
    {"token_embd_norm.weight", &W::embedding_norm, Side::kOne, Side::kDim},
    {"token_embd_norm.bias", &W::embedding_norm_bias, Side::kOne, Side::kDim},
    kModelTensors[1],
    kOutputNormBias,
    kModelTensors[2],
});
constexpr auto kGptjModel = std::to_array<ModelTensor>({
    kModelTensors[0],
    kModelTensors[1],
    kOutputNormBias,
    kModelTensors[2],
    {"output.bias", &W::output_bias, Side::kOne, Side::kVocab},
});

constexpr LayerTensor kAttnNorm = {"attn_norm.weight", &L::attn_norm, Side::kOne, Side::kDim};
constexpr LayerTensor kAttnNormBias = {"attn_norm.bias", &L::attn_norm_bias, Side::kOne, Side::kDim};
constexpr LayerTensor kQ = {"attn_q.weight", &L::q, Side::kQueries, Side::kDim};
constexpr LayerTensor kK = {"attn_k.weight", &L::k, Side::kKeys, Side::kDim};
constexpr LayerTensor kV = {"attn_v.weight", &L::v, Side::kKeys, Side::kDim};
constexpr LayerTensor kQBias = {"attn_q.bias", &L::q_bias, Side::kOne, Side::kQueries};
constexpr LayerTensor kKBias = {"attn_k.bias", &L::k_bias, Side::kOne, Side::kKeys};
constexpr LayerTensor kVBias = {"attn_v.bias", &L::v_bias, Side::kOne, Side::kKeys};
constexpr LayerTensor kQNorm = {"attn_q_norm.weight", &L::q_norm, Side::kOne, Side::kHead};
constexpr LayerTensor kKNorm = {"attn_k_norm.weight", &L::k_norm, Side::kOne, Side::kHead};
constexpr LayerTensor kO = {"attn_output.weight", &L::o, Side::kDim, Side::kQueries};
constexpr LayerTensor kOBias = {"attn_output.bias", &L::o_bias, Side::kOne, Side::kDim};
constexpr LayerTensor kPostAttnNorm = {"post_attention_norm.weight", &L::post_attn_norm, Side::kOne, Side::kDim};
constexpr LayerTensor kFfnNorm = {"ffn_norm.weight", &L::ffn_norm, Side::kOne, Side::kDim};
constexpr LayerTensor kFfnNormBias = {"ffn_norm.bias", &L::ffn_norm_bias, Side::kOne, Side::kDim};
constexpr LayerTensor kGate = {"ffn_gate.weight", &L::gate, Side::kFfn, Side::kDim};
constexpr LayerTensor kUp = {"ffn_up.weight", &L::up, Side::kFfn, Side::kDim};
constexpr LayerTensor kUpBias = {"ffn_up.bias", &L::up_bias, Side::kOne, Side::kFfn};
constexpr LayerTensor kDown = {"ffn_down.weight", &L::down, Side::kDim, Side::kFfn};
constexpr LayerTensor kDownBias = {"ffn_down.bias", &L::down_bias, Side::kOne, Side::kDim};
constexpr LayerTensor kPostFfnNorm = {"post_ffw_norm.weight", &L::post_ffn_norm, Side::kOne, Side::kDim};

constexpr auto kGatedLayer = std::to_array<LayerTensor>({kAttnNorm, kQ, kK, kV, kO, kFfnNorm, kGate, kUp, kDown});
constexpr auto kQwen2Layer =
    std::to_array<LayerTensor>({kAttnNorm, kQ, kK, kV, kQBias, kKBias, kVBias, kO, kFfnNorm, kGate, kUp, kDown});
constexpr auto kQwen3Layer =
    std::to_array<LayerTensor>({kAttnNorm, kQ, kK, kV, kQNorm, kKNorm, kO, kFfnNorm, kGate, kUp, kDown});
constexpr auto kQwen3MoeLayer = std::to_array<LayerTensor>({
    kAttnNorm,
    kQ,
    kK,
    kV,
    kQNorm,
    kKNorm,
    kO,
    kFfnNorm,
    {"ffn_gate_inp.weight", &L::router, Side::kExperts, Side::kDim},
    {"ffn_gate_exps.weight", &L::gate, Side::kExpertsFfn, Side::kDim},
    {"ffn_up_exps.weight", &L::up, Side::kExpertsFfn, Side::kDim},
    {"ffn_down_exps.weight", &L::down, Side::kExpertsDim, Side::kFfn},
});
constexpr auto kGemma2Layer =
    std::to_array<LayerTensor>({kAttnNorm, kQ, kK, kV, kO, kPostAttnNorm, kFfnNorm, kGate, kUp, kDown, kPostFfnNorm});
constexpr auto kGemma3Layer = std::to_array<LayerTensor>(
    {kAttnNorm, kQ, kK, kV, kQNorm, kKNorm, kO, kPostAttnNorm, kFfnNorm, kGate, kUp, kDown, kPostFfnNorm});
constexpr auto kPhi3Layer = std::to_array<LayerTensor>({kAttnNorm, kO, kFfnNorm, kDown});
constexpr auto kFusedPlainLayer = std::to_array<LayerTensor>(
    {kAttnNorm, kAttnNormBias, kO, kOBias, kFfnNorm, kFfnNormBias, kUp, kUpBias, kDown, kDownBias});
constexpr auto kOptLayer = std::to_array<LayerTensor>({kAttnNorm, kAttnNormBias, kQ, kK, kV, kQBias, kKBias, kVBias, kO,
                                                       kOBias, kFfnNorm, kFfnNormBias, kUp, kUpBias, kDown, kDownBias});
constexpr auto kGptjLayer =
    std::to_array<LayerTensor>({kAttnNorm, kAttnNormBias, kQ, kK, kV, kO, kUp, kUpBias, kDown, kDownBias});

constexpr FusedTensor::Part kQkvParts[] = {{&L::q, Side::kQueries}, {&L::k, Side::kKeys}, {&L::v, Side::kKeys}};
constexpr FusedTensor::Part kQkvBiasParts[] = {
    {&L::q_bias, Side::kQueries}, {&L::k_bias, Side::kKeys}, {&L::v_bias, Side::kKeys}};
constexpr FusedTensor::Part kGateUpParts[] = {{&L::gate, Side::kFfn}, {&L::up, Side::kFfn}};
constexpr FusedTensor kQkv = {"attn_qkv.weight", kQkvParts, Side::kDim};
constexpr FusedTensor kQkvBias = {"attn_qkv.bias", kQkvBiasParts};
constexpr auto kBiasedQkv = std::to_array<FusedTensor>({kQkv, kQkvBias});
constexpr auto kPhi3Fused = std::to_array<FusedTensor>({kQkv, {"ffn_up.weight", kGateUpParts, Side::kDim}});

constexpr auto kUnusedLayerTensors = std::to_array<std::string_view>({
    "attn_rot_embd.weight",  // rope frequencies that old converters stored; they follow from the base
});

constexpr std::string_view kReadsWindow[] = {kWindowKey};
constexpr std::string_view kReadsGemma2[] = {kWindowKey, kAttentionCapKey, kLogitCapKey};
constexpr std::string_view kReadsParallel[] = {kParallelKey};
constexpr std::string_view kReadsExperts[] = {kExpertsKey};

constexpr auto kRefusedKeys = std::to_array<RefusedKey>({
    {.key = kExpertsKey},
    {.key = kWindowKey},
    {.key = "attention.causal", .neutral = 1},
    {.key = "attention.scale"},
    {.key = "attention.clamp_kqv"},
    {.key = "attention.max_alibi_bias"},
    {.key = kAttentionCapKey},
    {.key = kLogitCapKey},
    {.key = kParallelKey},
    {.key = "logit_scale", .neutral = 1},
    {.key = "residual_scale", .neutral = 1},
    {.key = "embedding_scale", .neutral = 1},
    {.key = "expert_shared_count"},
    {.key = "rope.scale_linear", .neutral = 1},
});

constexpr auto kArchitectures = std::to_array<ArchitectureRow>({
    {.name = "llama",
     .models = "Llama 2 and 3, Mistral, and what else is built like them",
     .rope_pairs = RopePairs::kNeighbours,
     .model_tensors = kModelTensors,
     .layer_tensors = kGatedLayer,
     .unused_layer_tensors = kUnusedLayerTensors,
     .read_keys = kReadsWindow,
     .refused_keys = kRefusedKeys},
    {.name = "qwen2",
     .models = "Qwen 2 and 2.5",
     .rope_pairs = RopePairs::kHalves,
     .model_tensors = kModelTensors,
     .layer_tensors = kQwen2Layer,
     .refused_keys = kRefusedKeys},
    {.name = "qwen3",
     .models = "Qwen 3",
     .rope_pairs = RopePairs::kHalves,
     .model_tensors = kModelTensors,
     .layer_tensors = kQwen3Layer,
     .refused_keys = kRefusedKeys},
    {.name = "qwen3moe",
     .models = "Qwen 3 as a mixture of experts",
     .rope_pairs = RopePairs::kHalves,
     .model_tensors = kModelTensors,
     .layer_tensors = kQwen3MoeLayer,
     .read_keys = kReadsExperts,
     .refused_keys = kRefusedKeys},
    {.name = "gemma2",
     .models = "Gemma 2",
     .rope_pairs = RopePairs::kHalves,
     .activation = Activation::kGelu,
     .scales_embedding = true,
     .window_pattern = 2,
     .layers_scaled_by_width = 46,
     .model_tensors = kModelTensors,
     .layer_tensors = kGemma2Layer,
     .read_keys = kReadsGemma2,
     .refused_keys = kRefusedKeys},
    {.name = "gemma3",
     .models = "Gemma 3, its text",
     .rope_pairs = RopePairs::kHalves,
     .activation = Activation::kGelu,
     .scales_embedding = true,
     .window_pattern = 6,
     .window_rope_base = 10000,
     .layers_scaled_by_width = 62,
     .model_tensors = kModelTensors,
     .layer_tensors = kGemma3Layer,
     .read_keys = kReadsWindow,
     .refused_keys = kRefusedKeys},
    {.name = "phi3",
     .models = "Phi 3, the 4k models",
     .rope_pairs = RopePairs::kHalves,
     .model_tensors = kModelTensors,
     .layer_tensors = kPhi3Layer,
     .fused_tensors = kPhi3Fused,
     .read_keys = kReadsWindow,
     .refused_keys = kRefusedKeys},
    {.name = "gptneox",
     .models = "GPT-NeoX, Pythia",
     .rope_pairs = RopePairs::kHalves,
     .norm = NormKind::kLayer,
     .activation = Activation::kGelu,
     .parallel_residual = true,
     .model_tensors = kLayerNormModel,
     .layer_tensors = kFusedPlainLayer,
     .fused_tensors = kBiasedQkv,
     .read_keys = kReadsParallel,
     .refused_keys = kRefusedKeys},
    {.name = "gptj",
     .models = "GPT-J",
     .rope_pairs = RopePairs::kNeighbours,
     .norm = NormKind::kLayer,
     .activation = Activation::kGelu,
     .parallel_residual = true,
     .model_tensors = kGptjModel,
     .layer_tensors = kGptjLayer,
     .refused_keys = kRefusedKeys},
    {.name = "gpt2",
     .models = "GPT-2",
     .positions = PositionKind::kLearned,
     .norm = NormKind::kLayer,
     .activation = Activation::kGelu,
     .model_tensors = kLearnedModel,
     .layer_tensors = kFusedPlainLayer,
     .fused_tensors = kBiasedQkv,
     .refused_keys = kRefusedKeys},
    {.name = "opt",
     .models = "OPT, but for 350m",
     .positions = PositionKind::kLearned,
     .norm = NormKind::kLayer,
     .activation = Activation::kRelu,
     .model_tensors = kLearnedModel,
     .layer_tensors = kOptLayer,
     .refused_keys = kRefusedKeys},
    {.name = "bloom",
     .models = "BLOOM",
     .positions = PositionKind::kAlibi,
     .norm = NormKind::kLayer,
     .activation = Activation::kGelu,
     .model_tensors = kBloomModel,
     .layer_tensors = kFusedPlainLayer,
     .fused_tensors = kBiasedQkv,
     .refused_keys = kRefusedKeys},
});

}  // namespace

std::span<const ArchitectureRow> Architectures() { return kArchitectures; }

const ArchitectureRow* FindArchitecture(std::string_view name) {
  const auto row = std::ranges::find(kArchitectures, name, &ArchitectureRow::name);
  return row == kArchitectures.end() ? nullptr : &*row;
}

}  // namespace ebb
