// The table of architectures: which tensors a model family has, in what shape, and what would make it another family.
// A new architecture is a row here (and a golden file).

#ifndef EBB_ENGINE_MODEL_ARCHITECTURE_TABLE_H_
#define EBB_ENGINE_MODEL_ARCHITECTURE_TABLE_H_

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

// What the length of a tensor's side follows from.
enum class Side { kOne, kDim, kVocab, kQueries, kKeys, kFfn };

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

// A key that changes what the model computes in a way we do not follow, unless it is missing or has its neutral value.
struct RefusedKey {
  std::string_view key = {};  // behind "ARCHITECTURE."
  double neutral = 0;
};

// A model family. Tensors of a file that its row does not name are refused, since leaving one out computes another
// model.
struct ArchitectureRow {
  std::string_view name = {};
  RopePairs rope_pairs = RopePairs::kNeighbours;
  std::span<const ModelTensor> model_tensors = {};
  std::span<const LayerTensor> layer_tensors = {};
  std::span<const std::string_view> unused_layer_tensors = {};  // may be there, hold nothing that is needed
  std::span<const RefusedKey> refused_keys = {};
};

std::span<const ArchitectureRow> Architectures();

// The row by name, or null.
const ArchitectureRow* FindArchitecture(std::string_view name);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_ARCHITECTURE_TABLE_H_
