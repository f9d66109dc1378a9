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
  float norm_eps = 0;
  RopePairs rope_pairs = RopePairs::kNeighbours;
  int32_t rotary_dims = 0;  // even, <= head_dim
  // [rotary_dims / 2] radians per position: base^(-2i/rotary_dims), divided by the linear scaling factor or by the
  // file's `rope_freqs.weight` (Llama-3 scaling). Computed in float64.
  std::vector<double> rope_frequencies = {};

  // Set by Engine::Open, which sees more than the metadata:
  std::string fingerprint = {};                        // 16 hex digits that tell two models apart
  CalibrationOr calibration = CalibrationMissing("");  // from the file beside the model, for the scorer `calibrated`
  HeadGatesOr head_gates = HeadGatesMissing("");       // from the file beside the model, for the allocation `duo`

  int32_t group() const { return heads / kv_heads; }
};

struct LayerWeights {
  TensorView attn_norm = {};          // [1, dim] F32
  TensorView q = {}, k = {}, v = {};  // [heads * head_dim, dim], [kv_heads * head_dim, dim] twice
  TensorView o = {};                  // [dim, heads * head_dim]
  TensorView ffn_norm = {};           // [1, dim] F32
  TensorView gate = {}, up = {};      // [ffn_dim, dim]
  TensorView down = {};               // [dim, ffn_dim]
};

struct Weights {
  TensorView embedding = {};    // [vocab, dim]
  TensorView output_norm = {};  // [1, dim] F32
  TensorView output = {};       // [vocab, dim]; the embedding where the head is tied
  std::vector<LayerWeights> layers = {};
};

// Reads and checks the configuration. Errors, all naming the file:
//   FAILED_PRECONDITION  UNSUPPORTED_ARCHITECTURE names the architecture and the known ones; UNSUPPORTED_MODEL_FEATURE
//                        names a key that asks for something we would compute wrong (experts, sliding windows, YaRN,
//                        ...)
//   DATA_LOSS            MODEL_DAMAGED names byte, key and what was expected
// What comes back is bounded, so that no product of its sizes overflows: layers <= 1024; dim, ffn_dim, vocab and
// heads * head_dim <= 2^20; context <= 2^24.
absl::StatusOr<ModelConfig> ReadConfig(const GgufFile& file);

// Finds every tensor the configuration calls for and checks its shape and type; norms are F32. The views point into
// `file`, which must outlive them. `config` is what ReadConfig made of this file. Errors, all naming file and tensor:
//   FAILED_PRECONDITION  UNSUPPORTED_TENSOR_TYPE; UNSUPPORTED_MODEL_FEATURE for a tensor that has no place in the
//                        architecture (a bias, an adapter), since leaving it out would compute another model
//   DATA_LOSS            MODEL_DAMAGED names the byte and the expected shape
absl::StatusOr<Weights> FindWeights(const GgufFile& file, const ModelConfig& config);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_ARCHITECTURE_H_
