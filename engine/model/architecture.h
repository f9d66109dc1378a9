// What a model is, as data: the transformer is written once and driven by this; an architecture is a row of the table.

#ifndef EBB_ENGINE_MODEL_ARCHITECTURE_H_
#define EBB_ENGINE_MODEL_ARCHITECTURE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/gguf.h"
#include "engine/tensor.h"
#include "policies/calibration.h"
#include "policies/head_gates.h"

namespace ebb {

// Which two components of a head RoPE turns together (Su et al. 2021, arXiv:2104.09864, eq. 15, pairs neighbours).
enum class RopePairs {
  kNeighbours,  // (2i, 2i + 1): GGUF's llama, whose converter permuted the rows of q and k
  kHalves,      // (i, i + rotary_dims / 2)
};

// norm(x) = x / sqrt(mean(x^2) + eps) * weight, or (x - mean(x)) / sqrt(var(x) + eps) * weight + bias.
enum class NormKind { kRms, kLayer };

// Of the feed-forward part; GELU in its tanh form.
enum class Activation { kSilu, kGelu, kRelu };

// What tells tokens apart by place: RoPE; a row per position that is added to the embedding; ALiBi (Press et al. 2021,
// arXiv:2108.12409), which lowers scores by distance.
enum class PositionKind { kRope, kLearned, kAlibi };

struct ModelConfig {
  std::string architecture = {};  // "llama"
  std::string name = {};          // general.name, may be empty
  int32_t layers = 0;
  int32_t dim = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;  // divides heads
  int32_t head_dim = 0;
  int32_t ffn_dim = 0;
  int32_t vocab = 0;
  int32_t context = 0;  // trained context, tokens
  NormKind norm = NormKind::kRms;
  float norm_eps = 0;
  Activation activation = Activation::kSilu;
  // x + attention(norm(x)) + feed_forward(norm(x)), else the feed-forward part sees what attention added.
  bool parallel_residual = false;
  float embedding_scale = 1;  // what embeddings are multiplied by
  float logit_cap = 0;        // logits become cap * tanh(logit / cap); 0: they stay
  float attention_cap = 0;    // scores likewise, before softmax
  float attention_scale = 0;  // of q . k; 0: 1 / sqrt(head_dim)
  // [layers] how many of the newest positions a query of the layer sees, its own among them; 0: all. Empty: all, in
  // every layer.
  std::vector<int32_t> windows = {};
  int32_t experts = 0;       // feed-forward parts of a layer, of ffn_dim each; 0: one, and no router
  int32_t experts_used = 0;  // by a token, 1 .. experts

  PositionKind positions = PositionKind::kRope;
  RopePairs rope_pairs = RopePairs::kNeighbours;
  int32_t rotary_dims = 0;  // even, <= head_dim
  // [rotary_dims / 2] radians per position: base^(-2i/rotary_dims), divided by the linear scaling factor or by the
  // file's `rope_freqs.weight` (Llama-3 scaling). Computed in float64.
  std::vector<double> rope_frequencies = {};
  std::vector<double> window_rope_frequencies = {};  // of layers with a window; empty: the same

  // Set by Engine::Open, which sees more than the metadata:
  std::string fingerprint = {};                        // 16 hex digits that tell two models apart
  CalibrationOr calibration = CalibrationMissing("");  // from the file beside the model, for the scorer `calibrated`
  HeadGatesOr head_gates = HeadGatesMissing("");       // from the file beside the model, for the allocation `duo`

  int32_t group() const { return heads / kv_heads; }
};

// Tensors that an architecture lacks are empty. A name is followed by its shape; with experts gate, up and down are
// theirs, one expert's rows after another's.
struct LayerWeights {
  TensorView attn_norm = {}, attn_norm_bias = {};    // [dim]
  TensorView q = {}, k = {}, v = {};                 // [heads * head_dim, dim], [kv_heads * head_dim, dim] twice
  TensorView q_bias = {}, k_bias = {}, v_bias = {};  // of as many elements as these have rows
  TensorView q_norm = {}, k_norm = {};               // [head_dim] of every head, before RoPE
  TensorView o = {}, o_bias = {};                    // [dim, heads * head_dim], [dim]
  TensorView post_attn_norm = {};                    // [dim] of what attention adds
  TensorView ffn_norm = {}, ffn_norm_bias = {};      // [dim]; missing: attn_norm serves for both
  TensorView router = {};                            // [experts, dim]
  TensorView gate = {}, up = {}, down = {};          // [ffn_dim, dim] twice, [dim, ffn_dim]
  TensorView up_bias = {}, down_bias = {};           // [ffn_dim], [dim]
  TensorView post_ffn_norm = {};                     // [dim] of what the feed-forward part adds
};

struct Weights {
  TensorView embedding = {};                                 // [vocab, dim]
  TensorView positions = {};                                 // [context, dim]
  TensorView embedding_norm = {}, embedding_norm_bias = {};  // [dim]
  TensorView output_norm = {}, output_norm_bias = {};        // [dim]
  TensorView output = {}, output_bias = {};  // [vocab, dim], [vocab]; the embedding where the head is tied
  std::vector<LayerWeights> layers = {};
};

// Reads and checks the configuration. Errors, all naming the file:
//   FAILED_PRECONDITION  UNSUPPORTED_ARCHITECTURE names the architecture and the known ones; UNSUPPORTED_MODEL_FEATURE
//                        names a key that asks for something we would compute wrong (experts or windows that
//                        the architecture does not have, YaRN, ...)
//   DATA_LOSS            MODEL_DAMAGED names byte, key and what was expected
// What comes back is bounded, so that no product of its sizes overflows: layers <= 1024; dim, ffn_dim, vocab and
// heads * head_dim <= 2^20; context <= 2^24.
absl::StatusOr<ModelConfig> ReadConfig(const GgufFile& file);

// Finds every tensor the configuration calls for and checks its shape and type; vectors are F32. The views point into
// `file`, which must outlive them. `config` is what ReadConfig made of this file. Errors, all naming file and tensor:
//   FAILED_PRECONDITION  UNSUPPORTED_TENSOR_TYPE; UNSUPPORTED_MODEL_FEATURE for a tensor that has no place in the
//                        architecture (a bias, an adapter), since leaving it out would compute another model
//   DATA_LOSS            MODEL_DAMAGED names the byte and the expected shape
absl::StatusOr<Weights> FindWeights(const GgufFile& file, const ModelConfig& config);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_ARCHITECTURE_H_
