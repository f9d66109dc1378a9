// The table of architectures: which tensors a model family has, in what shape, and what would make it another family.
// A new architecture is a row here (and a golden file).

#ifndef EBB_ENGINE_MODEL_ARCHITECTURE_TABLE_H_
#define EBB_ENGINE_MODEL_ARCHITECTURE_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/model/architecture.h"
#include "engine/tensor.h"

namespace ebb {

// Tensors that mean more than their row says: the embedding gives the vocabulary; where there is no output, the head is
// tied to the embedding; RoPE factors may be there or not.
inline constexpr std::string_view kEmbeddingTensor = "token_embd.weight";
inline constexpr std::string_view kOutputTensor = "output.weight";
inline constexpr std::string_view kRopeFactorsTensor = "rope_freqs.weight";

// What the length of a tensor's side follows from. kExpertsFfn: experts * ffn_dim; kExpertsDim: experts * dim.
enum class Side { kOne, kDim, kVocab, kContext, kQueries, kKeys, kHead, kFfn, kExperts, kExpertsFfn, kExpertsDim };

struct ModelTensor {
  std::string_view name = {};
  TensorView Weights::*member = nullptr;
  Side rows = Side::kOne;
  Side cols = Side::kOne;
};

struct LayerTensor {
  std::string_view name = {};  // behind "blk.N."
  TensorView LayerWeights::*member = nullptr;
  Side rows = Side::kOne;
  Side cols = Side::kOne;
};

// Several tensors of a layer that the file keeps as one, rows after rows; without `cols` vectors, one after another.
struct FusedTensor {
  struct Part {
    TensorView LayerWeights::*member = nullptr;
    Side rows = Side::kOne;
  };
  std::string_view name = {};  // behind "blk.N."
  std::span<const Part> parts = {};
  Side cols = Side::kOne;
};

// A key that changes what the model computes in a way we do not follow, unless it is missing or has its neutral value.
struct RefusedKey {
  std::string_view key = {};  // behind "ARCHITECTURE."
  double neutral = 0;
};

// Keys that some families read and others refuse.
inline constexpr std::string_view kWindowKey = "attention.sliding_window";
inline constexpr std::string_view kAttentionCapKey = "attn_logit_softcapping";
inline constexpr std::string_view kLogitCapKey = "final_logit_softcapping";
inline constexpr std::string_view kParallelKey = "use_parallel_residual";
inline constexpr std::string_view kExpertsKey = "expert_count";

// A model family. Tensors of a file that its row does not name are refused, since leaving one out computes another
// model.
struct ArchitectureRow {
  std::string_view name = {};
  std::string_view models = {};  // for the reference: what people know it as
  RopePairs rope_pairs = RopePairs::kNeighbours;
  PositionKind positions = PositionKind::kRope;
  NormKind norm = NormKind::kRms;
  Activation activation = Activation::kSilu;
  bool parallel_residual = false;  // unless the file says otherwise, where the row reads kParallelKey
  bool scales_embedding = false;   // by sqrt(dim)
  // Where the file states a window: of so many layers all but the last have it; 0: every layer. A file may say
  // otherwise (attention.sliding_window_pattern).
  int32_t window_pattern = 0;
  double window_rope_base = 0;  // of layers with a window, unless the file says otherwise; 0: as of the others
  // A size of which scores are divided by sqrt(dim / heads) instead of the root of the head's size: so many layers.
  int32_t layers_scaled_by_width = 0;
  std::span<const ModelTensor> model_tensors = {};
  std::span<const LayerTensor> layer_tensors = {};
  std::span<const FusedTensor> fused_tensors = {};
  std::span<const std::string_view> unused_layer_tensors = {};  // may be there, hold nothing that is needed
  std::span<const std::string_view> read_keys = {};             // of those above that this family has; else refused
  std::span<const RefusedKey> refused_keys = {};

  bool Reads(std::string_view key) const { return std::ranges::find(read_keys, key) != read_keys.end(); }
};

std::span<const ArchitectureRow> Architectures();

// The row by name, or null.
const ArchitectureRow* FindArchitecture(std::string_view name);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_ARCHITECTURE_TABLE_H_
