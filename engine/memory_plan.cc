#include "engine/memory_plan.h"

#include <algorithm>

#include "engine/ops/cpu/packed_matrix.h"
#include "engine/session_shape.h"
#include "policies/status.h"

namespace ebb {
namespace {

int64_t Packed(const TensorView& tensor) { return tensor.empty() ? 0 : cpu::PackedBytes(tensor); }

// Experts lie in one tensor, and are packed apart.
int64_t PackedParts(TensorView tensor, int32_t parts) {
  tensor.rows /= parts;
  return parts * Packed(tensor);
}

int64_t PackedLayer(const LayerWeights& layer, int32_t experts) {
  int64_t bytes = Packed(layer.q) + Packed(layer.k) + Packed(layer.v) + Packed(layer.o) + Packed(layer.router);
  for (const TensorView& tensor : {layer.gate, layer.up, layer.down}) {
    bytes += PackedParts(tensor, std::max(experts, 1));
  }
  return bytes;
}

// Of activations, in float: x and what is added to it; q, k and v and what is attended; both halves of the feed-forward
// part, or of what its experts take and yield; rows of which logits are wanted, and those.
int64_t Scratch(const ModelConfig& config, const MemoryQuestion& question) {
  const int64_t heads = int64_t{config.heads} + 2 * config.kv_heads;
  const int64_t row = 2 * config.dim + (heads + config.heads) * config.head_dim + 2 * config.ffn_dim +
                      (config.experts > 0 ? 3 * int64_t{config.dim} : 0);
  const int64_t wanted = std::min(question.rows_max, question.step_tokens_max);
  return 4 * (question.step_tokens_max * row + wanted * (int64_t{config.dim} + config.vocab));
}

}  // namespace

absl::StatusOr<MemoryPlan> PlanMemory(const GgufFile& file, const ModelConfig& config, const Weights& weights,
                                      const MemoryQuestion& question) {
  MemoryPlan plan = {.weights = Packed(weights.output),
                     .copied = file.copied_bytes(),
                     .mapped = static_cast<int64_t>(weights.embedding.data.size()),
                     .page_bytes = PageBytes(config.head_dim)};
  for (const LayerWeights& layer : weights.layers) plan.weights += PackedLayer(layer, config.experts);
  const EngineLimits limits = {
      .model = &config, .page_bytes = plan.page_bytes, .step_tokens_max = question.step_tokens_max};
  EBB_ASSIGN(const CacheShape shape, ShapeFor(question.session, Prompt::kAhead, limits));
  plan.session_pages = shape.pages();
  plan.caches = question.sessions * plan.session_pages * plan.page_bytes;
  plan.scratch = Scratch(config, question);
  return plan;
}

}  // namespace ebb
