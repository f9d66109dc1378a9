#include "engine/model/hub_table.h"

#include <algorithm>
#include <array>

#include "engine/model/architecture_table.h"

namespace ebb {
namespace {

using K = HubKey::Kind;
using M = HubKey::Missing;
using H = HubLayout;

constexpr HubKey kDim = {"hidden_size", "embedding_length"};
constexpr HubKey kLayers = {"num_hidden_layers", "block_count"};
constexpr HubKey kFfn = {"intermediate_size", "feed_forward_length"};
constexpr HubKey kContext = {"max_position_embeddings", "context_length"};
constexpr HubKey kHeads = {"num_attention_heads", "attention.head_count"};
constexpr HubKey kKvHeads = {"num_key_value_heads", "attention.head_count_kv", K::kInt, M::kLeftOut};
constexpr HubKey kKeyDim = {"head_dim", "attention.key_length", K::kInt, M::kLeftOut};
constexpr HubKey kValueDim = {"head_dim", "attention.value_length", K::kInt, M::kLeftOut};
constexpr HubKey kRmsEps = {"rms_norm_eps", "attention.layer_norm_rms_epsilon", K::kReal, M::kFallback, 1e-6};
constexpr HubKey kTheta = {"rope_theta", "rope.freq_base", K::kReal, M::kFallback, 10000};
constexpr HubKey kWindow = {"sliding_window", kWindowKey, K::kInt, M::kLeftOut};

constexpr auto kLlamaKeys =
    std::to_array<HubKey>({kDim, kLayers, kFfn, kContext, kHeads, kKvHeads, kKeyDim, kValueDim, kRmsEps, kTheta});
constexpr auto kWindowKeys = std::to_array<HubKey>(
    {kDim, kLayers, kFfn, kContext, kHeads, kKvHeads, kKeyDim, kValueDim, kRmsEps, kTheta, kWindow});
constexpr auto kExpertKeys = std::to_array<HubKey>({kDim,
                                                    kLayers,
                                                    kFfn,
                                                    kContext,
                                                    kHeads,
                                                    kKvHeads,
                                                    kKeyDim,
                                                    kValueDim,
                                                    kRmsEps,
                                                    kTheta,
                                                    {"num_experts", kExpertsKey},
                                                    {"num_experts_per_tok", "expert_used_count"},
                                                    {"moe_intermediate_size", "expert_feed_forward_length"}});
constexpr auto kGemma2Keys = std::to_array<HubKey>({kDim,
                                                    kLayers,
                                                    kFfn,
                                                    kContext,
                                                    kHeads,
                                                    kKvHeads,
                                                    kKeyDim,
                                                    kValueDim,
                                                    kRmsEps,
                                                    kTheta,
                                                    kWindow,
                                                    {"attn_logit_softcapping", kAttentionCapKey, K::kReal},
                                                    {"final_logit_softcapping", kLogitCapKey, K::kReal}});
constexpr auto kGemma3Keys =
    std::to_array<HubKey>({kDim,
                           kLayers,
                           kFfn,
                           kContext,
                           kHeads,
                           kKvHeads,
                           kKeyDim,
                           kValueDim,
                           kRmsEps,
                           kTheta,
                           kWindow,
                           {"attn_logit_softcapping", kAttentionCapKey, K::kReal, M::kLeftOut},
                           {"final_logit_softcapping", kLogitCapKey, K::kReal, M::kLeftOut},
                           {"rope_local_base_freq", "rope.freq_base_swa", K::kReal, M::kFallback, 10000}});
constexpr auto kNeoxKeys =
    std::to_array<HubKey>({kDim,
                           kLayers,
                           kFfn,
                           kContext,
                           kHeads,
                           {"layer_norm_eps", "attention.layer_norm_epsilon", K::kReal, M::kFallback, 1e-5},
                           {"rotary_emb_base", "rope.freq_base", K::kReal, M::kFallback, 10000},
                           {"use_parallel_residual", kParallelKey, K::kFlag, M::kFallback, 1}});
constexpr auto kGpt2Keys =
    std::to_array<HubKey>({{"n_embd", "embedding_length"},
                           {"n_layer", "block_count"},
                           {"n_inner", "feed_forward_length", K::kInt, M::kLeftOut},
                           {"n_positions", "context_length"},
                           {"n_head", "attention.head_count"},
                           {"layer_norm_epsilon", "attention.layer_norm_epsilon", K::kReal, M::kFallback, 1e-5}});
constexpr auto kGptjKeys = std::to_array<HubKey>({kGpt2Keys[0],
                                                  kGpt2Keys[1],
                                                  kGpt2Keys[2],
                                                  kGpt2Keys[3],
                                                  kGpt2Keys[4],
                                                  kGpt2Keys[5],
                                                  {"rotary_dim", "rope.dimension_count"},
                                                  {"rope_theta", "rope.freq_base", K::kReal, M::kFallback, 10000}});
constexpr auto kOptKeys =
    std::to_array<HubKey>({kDim,
                           kLayers,
                           {"ffn_dim", "feed_forward_length"},
                           kContext,
                           kHeads,
                           // What its norms have is written nowhere.
                           {"layer_norm_eps", "attention.layer_norm_epsilon", K::kReal, M::kFallback, 1e-5}});
constexpr auto kBloomKeys = std::to_array<HubKey>(
    {kDim,
     {"n_layer", "block_count"},
     {"n_inner", "feed_forward_length", K::kInt, M::kLeftOut},
     {"seq_length", "context_length", K::kInt, M::kFallback, 2048},  // ALiBi has no end; this is what it was trained on
     {"n_head", "attention.head_count"},
     {"layer_norm_epsilon", "attention.layer_norm_epsilon", K::kReal, M::kFallback, 1e-5}});

constexpr auto kNoWindow = std::to_array<HubDemand>({{"use_sliding_window", 0, 0}});
constexpr auto kExpertDemands =
    std::to_array<HubDemand>({{"use_sliding_window", 0, 0}, {"norm_topk_prob", 1, 0}, {"decoder_sparse_step", 1, 1}});
constexpr auto kOptDemands =
    std::to_array<HubDemand>({{"do_layer_norm_before", 1, 1}, {"_remove_final_layer_norm", 0, 0}});
constexpr auto kGpt2Demands = std::to_array<HubDemand>(
    {{"scale_attn_weights", 1, 1}, {"scale_attn_by_inverse_layer_idx", 0, 0}, {"add_cross_attention", 0, 0}});
constexpr auto kBloomDemands = std::to_array<HubDemand>({{"apply_residual_connection_post_layernorm", 0, 0}});

constexpr HubTensor kHead = {kHubHead, kOutputTensor};
constexpr auto kPlainModel =
    std::to_array<HubTensor>({{"embed_tokens.weight", kEmbeddingTensor}, {"norm.weight", "output_norm.weight"}, kHead});
constexpr auto kGemmaModel = std::to_array<HubTensor>(
    {{"embed_tokens.weight", kEmbeddingTensor}, {"norm.weight", "output_norm.weight", H::kPlusOne}, kHead});
constexpr auto kNeoxModel = std::to_array<HubTensor>({{"embed_in.weight", kEmbeddingTensor},
                                                      {"final_layer_norm.weight", "output_norm.weight"},
                                                      {"final_layer_norm.bias", "output_norm.bias"},
                                                      {"embed_out.weight", kOutputTensor}});
constexpr auto kGptjModel = std::to_array<HubTensor>({{"wte.weight", kEmbeddingTensor},
                                                      {"ln_f.weight", "output_norm.weight"},
                                                      {"ln_f.bias", "output_norm.bias"},
                                                      kHead,
                                                      {"lm_head.bias", "output.bias"}});
constexpr auto kGpt2Model = std::to_array<HubTensor>({{"wte.weight", kEmbeddingTensor},
                                                      {"wpe.weight", "position_embd.weight"},
                                                      {"ln_f.weight", "output_norm.weight"},
                                                      {"ln_f.bias", "output_norm.bias"},
                                                      kHead});
constexpr auto kOptModel = std::to_array<HubTensor>({{"embed_tokens.weight", kEmbeddingTensor},
                                                     {"embed_positions.weight", "position_embd.weight", H::kFromRow2},
                                                     {"final_layer_norm.weight", "output_norm.weight"},
                                                     {"final_layer_norm.bias", "output_norm.bias"},
                                                     kHead});
constexpr auto kBloomModel = std::to_array<HubTensor>({{"word_embeddings.weight", kEmbeddingTensor},
                                                       {"word_embeddings_layernorm.weight", "token_embd_norm.weight"},
                                                       {"word_embeddings_layernorm.bias", "token_embd_norm.bias"},
                                                       {"ln_f.weight", "output_norm.weight"},
                                                       {"ln_f.bias", "output_norm.bias"},
                                                       kHead});

constexpr HubTensor kAttnNorm = {"input_layernorm.weight", "attn_norm.weight"};
constexpr HubTensor kFfnNorm = {"post_attention_layernorm.weight", "ffn_norm.weight"};
constexpr HubTensor kQ = {"self_attn.q_proj.weight", "attn_q.weight"};
constexpr HubTensor kK = {"self_attn.k_proj.weight", "attn_k.weight"};
constexpr HubTensor kV = {"self_attn.v_proj.weight", "attn_v.weight"};
constexpr HubTensor kO = {"self_attn.o_proj.weight", "attn_output.weight"};
constexpr HubTensor kQBias = {"self_attn.q_proj.bias", "attn_q.bias"};
constexpr HubTensor kKBias = {"self_attn.k_proj.bias", "attn_k.bias"};
constexpr HubTensor kVBias = {"self_attn.v_proj.bias", "attn_v.bias"};
constexpr HubTensor kQNorm = {"self_attn.q_norm.weight", "attn_q_norm.weight"};
constexpr HubTensor kKNorm = {"self_attn.k_norm.weight", "attn_k_norm.weight"};
constexpr HubTensor kGate = {"mlp.gate_proj.weight", "ffn_gate.weight"};
constexpr HubTensor kUp = {"mlp.up_proj.weight", "ffn_up.weight"};
constexpr HubTensor kDown = {"mlp.down_proj.weight", "ffn_down.weight"};
constexpr HubTensor kGemmaNorms[] = {{"input_layernorm.weight", "attn_norm.weight", H::kPlusOne},
                                     {"post_attention_layernorm.weight", "post_attention_norm.weight", H::kPlusOne},
                                     {"pre_feedforward_layernorm.weight", "ffn_norm.weight", H::kPlusOne},
                                     {"post_feedforward_layernorm.weight", "post_ffw_norm.weight", H::kPlusOne},
                                     {"self_attn.q_norm.weight", "attn_q_norm.weight", H::kPlusOne},
                                     {"self_attn.k_norm.weight", "attn_k_norm.weight", H::kPlusOne}};

constexpr auto kLlamaLayer = std::to_array<HubTensor>({kAttnNorm,
                                                       {"self_attn.q_proj.weight", "attn_q.weight", H::kQueryPairs},
                                                       {"self_attn.k_proj.weight", "attn_k.weight", H::kKeyPairs},
                                                       kV,
                                                       kO,
                                                       kFfnNorm,
                                                       kGate,
                                                       kUp,
                                                       kDown});
constexpr auto kQwen2Layer =
    std::to_array<HubTensor>({kAttnNorm, kQ, kK, kV, kQBias, kKBias, kVBias, kO, kFfnNorm, kGate, kUp, kDown});
constexpr auto kQwen3Layer =
    std::to_array<HubTensor>({kAttnNorm, kQ, kK, kV, kQNorm, kKNorm, kO, kFfnNorm, kGate, kUp, kDown});
constexpr auto kQwen3MoeLayer =
    std::to_array<HubTensor>({kAttnNorm,
                              kQ,
                              kK,
                              kV,
                              kQNorm,
                              kKNorm,
                              kO,
                              kFfnNorm,
                              {"mlp.gate.weight", "ffn_gate_inp.weight"},
                              {"mlp.experts.*.gate_proj.weight", "ffn_gate_exps.weight", H::kExpert},
                              {"mlp.experts.*.up_proj.weight", "ffn_up_exps.weight", H::kExpert},
                              {"mlp.experts.*.down_proj.weight", "ffn_down_exps.weight", H::kExpert}});
constexpr auto kGemma2Layer = std::to_array<HubTensor>(
    {kGemmaNorms[0], kQ, kK, kV, kO, kGemmaNorms[1], kGemmaNorms[2], kGate, kUp, kDown, kGemmaNorms[3]});
constexpr auto kGemma3Layer =
    std::to_array<HubTensor>({kGemmaNorms[0], kQ, kK, kV, kGemmaNorms[4], kGemmaNorms[5], kO, kGemmaNorms[1],
                              kGemmaNorms[2], kGate, kUp, kDown, kGemmaNorms[3]});
constexpr auto kPhi3Layer = std::to_array<HubTensor>({kAttnNorm,
                                                      {"self_attn.qkv_proj.weight", "attn_qkv.weight"},
                                                      kO,
                                                      kFfnNorm,
                                                      {"mlp.gate_up_proj.weight", "ffn_up.weight"},
                                                      kDown});
constexpr auto kNeoxLayer =
    std::to_array<HubTensor>({kAttnNorm,
                              {"input_layernorm.bias", "attn_norm.bias"},
                              {"attention.query_key_value.weight", "attn_qkv.weight", H::kByHead},
                              {"attention.query_key_value.bias", "attn_qkv.bias", H::kByHead},
                              {"attention.dense.weight", "attn_output.weight"},
                              {"attention.dense.bias", "attn_output.bias"},
                              kFfnNorm,
                              {"post_attention_layernorm.bias", "ffn_norm.bias"},
                              {"mlp.dense_h_to_4h.weight", "ffn_up.weight"},
                              {"mlp.dense_h_to_4h.bias", "ffn_up.bias"},
                              {"mlp.dense_4h_to_h.weight", "ffn_down.weight"},
                              {"mlp.dense_4h_to_h.bias", "ffn_down.bias"}});
constexpr auto kBloomLayer =
    std::to_array<HubTensor>({kAttnNorm,
                              kNeoxLayer[1],
                              {"self_attention.query_key_value.weight", "attn_qkv.weight", H::kByHead},
                              {"self_attention.query_key_value.bias", "attn_qkv.bias", H::kByHead},
                              {"self_attention.dense.weight", "attn_output.weight"},
                              {"self_attention.dense.bias", "attn_output.bias"},
                              kFfnNorm,
                              kNeoxLayer[7],
                              kNeoxLayer[8],
                              kNeoxLayer[9],
                              kNeoxLayer[10],
                              kNeoxLayer[11]});
constexpr auto kGptjLayer = std::to_array<HubTensor>({{"ln_1.weight", "attn_norm.weight"},
                                                      {"ln_1.bias", "attn_norm.bias"},
                                                      {"attn.q_proj.weight", "attn_q.weight"},
                                                      {"attn.k_proj.weight", "attn_k.weight"},
                                                      {"attn.v_proj.weight", "attn_v.weight"},
                                                      {"attn.out_proj.weight", "attn_output.weight"},
                                                      {"mlp.fc_in.weight", "ffn_up.weight"},
                                                      {"mlp.fc_in.bias", "ffn_up.bias"},
                                                      {"mlp.fc_out.weight", "ffn_down.weight"},
                                                      {"mlp.fc_out.bias", "ffn_down.bias"}});
constexpr auto kGpt2Layer = std::to_array<HubTensor>({{"ln_1.weight", "attn_norm.weight"},
                                                      {"ln_1.bias", "attn_norm.bias"},
                                                      {"attn.c_attn.weight", "attn_qkv.weight", H::kTransposed},
                                                      {"attn.c_attn.bias", "attn_qkv.bias"},
                                                      {"attn.c_proj.weight", "attn_output.weight", H::kTransposed},
                                                      {"attn.c_proj.bias", "attn_output.bias"},
                                                      {"ln_2.weight", "ffn_norm.weight"},
                                                      {"ln_2.bias", "ffn_norm.bias"},
                                                      {"mlp.c_fc.weight", "ffn_up.weight", H::kTransposed},
                                                      {"mlp.c_fc.bias", "ffn_up.bias"},
                                                      {"mlp.c_proj.weight", "ffn_down.weight", H::kTransposed},
                                                      {"mlp.c_proj.bias", "ffn_down.bias"}});
constexpr auto kOptLayer = std::to_array<HubTensor>({{"self_attn_layer_norm.weight", "attn_norm.weight"},
                                                     {"self_attn_layer_norm.bias", "attn_norm.bias"},
                                                     kQ,
                                                     kK,
                                                     kV,
                                                     kQBias,
                                                     kKBias,
                                                     kVBias,
                                                     {"self_attn.out_proj.weight", "attn_output.weight"},
                                                     {"self_attn.out_proj.bias", "attn_output.bias"},
                                                     {"final_layer_norm.weight", "ffn_norm.weight"},
                                                     {"final_layer_norm.bias", "ffn_norm.bias"},
                                                     {"fc1.weight", "ffn_up.weight"},
                                                     {"fc1.bias", "ffn_up.bias"},
                                                     {"fc2.weight", "ffn_down.weight"},
                                                     {"fc2.bias", "ffn_down.bias"}});

constexpr auto kFamilies = std::to_array<HubFamily>({
    {.model_type = "llama",
     .architecture = "llama",
     .keys = kLlamaKeys,
     .model_tensors = kPlainModel,
     .layer_tensors = kLlamaLayer},
    {.model_type = "mistral",
     .architecture = "llama",
     .keys = kWindowKeys,
     .model_tensors = kPlainModel,
     .layer_tensors = kLlamaLayer},
    {.model_type = "qwen2",
     .architecture = "qwen2",
     .keys = kLlamaKeys,
     .demands = kNoWindow,
     .model_tensors = kPlainModel,
     .layer_tensors = kQwen2Layer},
    {.model_type = "qwen3",
     .architecture = "qwen3",
     .keys = kLlamaKeys,
     .demands = kNoWindow,
     .model_tensors = kPlainModel,
     .layer_tensors = kQwen3Layer},
    {.model_type = "qwen3_moe",
     .architecture = "qwen3moe",
     .keys = kExpertKeys,
     .demands = kExpertDemands,
     .model_tensors = kPlainModel,
     .layer_tensors = kQwen3MoeLayer},
    {.model_type = "gemma2",
     .architecture = "gemma2",
     .activation = "hidden_activation",
     .tied = true,
     .query_scale = "query_pre_attn_scalar",
     .keys = kGemma2Keys,
     .model_tensors = kGemmaModel,
     .layer_tensors = kGemma2Layer},
    {.model_type = "gemma3_text",
     .architecture = "gemma3",
     .activation = "hidden_activation",
     .tied = true,
     .query_scale = "query_pre_attn_scalar",
     .keys = kGemma3Keys,
     .model_tensors = kGemmaModel,
     .layer_tensors = kGemma3Layer},
    {.model_type = "phi3",
     .architecture = "phi3",
     .rotary_part = "partial_rotary_factor",
     .keys = kWindowKeys,
     .model_tensors = kPlainModel,
     .layer_tensors = kPhi3Layer},
    {.model_type = "gpt_neox",
     .architecture = "gptneox",
     .prefix = "gpt_neox.",
     .rotary_part = "rotary_pct",
     .rotary_otherwise = 0.25,
     .keys = kNeoxKeys,
     .model_tensors = kNeoxModel,
     .layer_tensors = kNeoxLayer},
    {.model_type = "gptj",
     .architecture = "gptj",
     .prefix = "transformer.",
     .layers = "h.",
     .activation = "activation_function",
     .ffn_widths = 4,
     .keys = kGptjKeys,
     .model_tensors = kGptjModel,
     .layer_tensors = kGptjLayer},
    {.model_type = "gpt2",
     .architecture = "gpt2",
     .prefix = "transformer.",
     .layers = "h.",
     .activation = "activation_function",
     .tied = true,
     .ffn_widths = 4,
     .keys = kGpt2Keys,
     .demands = kGpt2Demands,
     .model_tensors = kGpt2Model,
     .layer_tensors = kGpt2Layer},
    {.model_type = "opt",
     .architecture = "opt",
     .prefix = "model.decoder.",
     .activation = "activation_function",
     .tied = true,
     .keys = kOptKeys,
     .demands = kOptDemands,
     .model_tensors = kOptModel,
     .layer_tensors = kOptLayer},
    {.model_type = "bloom",
     .architecture = "bloom",
     .prefix = "transformer.",
     .layers = "h.",
     .activation = "",
     .tied = true,
     .ffn_widths = 4,
     .keys = kBloomKeys,
     .demands = kBloomDemands,
     .model_tensors = kBloomModel,
     .layer_tensors = kBloomLayer},
});

}  // namespace

std::span<const HubFamily> HubFamilies() { return kFamilies; }

const HubFamily* FindHubFamily(std::string_view model_type) {
  const auto row = std::ranges::find(kFamilies, model_type, &HubFamily::model_type);
  return row == kFamilies.end() ? nullptr : &*row;
}

}  // namespace ebb
