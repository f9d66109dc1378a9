#include "engine/gpu/gpu_model.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr int64_t kStageBytes = int64_t{8} << 20;

// What the kernels of ops/gpu do not compute, the first of a list; nothing where they do all.
std::string WhatIsMissing(const ModelConfig& c, const Weights& w) {
  if (c.norm != NormKind::kRms) return "layer norms";
  if (c.positions != PositionKind::kRope) return "positions other than RoPE";
  if (c.experts > gpu::kExpertsMax || c.experts_used > gpu::kExpertsUsedMax) {
    return absl::StrFormat("%d experts, %d of them to a token (up to %d, and %d)", c.experts, c.experts_used,
                           gpu::kExpertsMax, gpu::kExpertsUsedMax);
  }
  if (c.parallel_residual) return "a feed-forward part beside attention";
  const auto other_window = [&](int32_t window) { return window > 0 && window != std::ranges::max(c.windows); };
  if (std::ranges::any_of(c.windows, other_window)) return "windows of unequal size";
  if (c.activation == Activation::kRelu) return "the activation ReLU";
  if (c.head_dim % 16 != 0 || c.head_dim > gpu::kHeadDimMax) {
    return absl::StrFormat("heads of %d components (a multiple of 16 up to %d)", c.head_dim, gpu::kHeadDimMax);
  }
  if (c.rope_pairs == RopePairs::kHalves && c.rotary_dims % 16 != 0) {
    return absl::StrFormat("rotary pairs over %d components (a multiple of 16)", c.rotary_dims);
  }
  if (c.group() > gpu::kGroupMax) {
    return absl::StrFormat("%d query heads to a KV head (up to %d)", c.group(), gpu::kGroupMax);
  }
  if (!w.embedding_norm.empty() || !w.output_norm_bias.empty() || !w.output_bias.empty())
    return "biased norms or heads";
  for (const LayerWeights& layer : w.layers) {
    if (!layer.o_bias.empty() || !layer.up_bias.empty() || !layer.down_bias.empty()) return "biases past q, k and v";
    if (layer.gate.empty() || layer.ffn_norm.empty()) return "a feed-forward part without gate or norm";
  }
  return "";
}

absl::Status CheckComputes(const ModelConfig& config, const Weights& weights) {
  const std::string missing = WhatIsMissing(config, weights);
  if (missing.empty()) return absl::OkStatus();
  return Refuse(absl::StatusCode::kFailedPrecondition,
                absl::StrFormat("the model has %s, which a GPU does not compute yet", missing),
                {.reason = "UNSUPPORTED_MODEL_FEATURE"});
}

// What goes to the device, and whose it becomes there.
struct Parts {
  std::vector<std::pair<const TensorView*, DeviceMatrix*>> matrices;
  std::vector<std::pair<const TensorView*, GpuMemory*>> vectors;
};

// Of an empty model, which outlives them, as do weights.
Parts PartsOf(const Weights& weights, GpuModel& model) {
  Parts parts = {.matrices = {{&weights.embedding, &model.embedding}},
                 .vectors = {{&weights.output_norm, &model.output_norm}}};
  if (weights.output.data.data() != weights.embedding.data.data()) {
    parts.matrices.emplace_back(&weights.output, &model.output.emplace());
  }
  model.layers.resize(weights.layers.size());
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& from = weights.layers[i];
    GpuModel::Layer& to = model.layers[i];
    parts.matrices.insert(parts.matrices.end(), {{&from.q, &to.q},
                                                 {&from.k, &to.k},
                                                 {&from.v, &to.v},
                                                 {&from.o, &to.o},
                                                 {&from.gate, &to.gate},
                                                 {&from.up, &to.up},
                                                 {&from.down, &to.down}});
    if (!from.router.empty()) parts.matrices.emplace_back(&from.router, &to.router);
    parts.vectors.insert(parts.vectors.end(), {{&from.attn_norm, &to.attn_norm},
                                               {&from.ffn_norm, &to.ffn_norm},
                                               {&from.q_norm, &to.q_norm},
                                               {&from.k_norm, &to.k_norm},
                                               {&from.post_attn_norm, &to.post_attn_norm},
                                               {&from.post_ffn_norm, &to.post_ffn_norm},
                                               {&from.q_bias, &to.q_bias},
                                               {&from.k_bias, &to.k_bias},
                                               {&from.v_bias, &to.v_bias}});
  }
  return parts;
}

}  // namespace

absl::StatusOr<int64_t> GpuModel::Bytes(const ModelConfig& config, const Weights& weights) {
  EBB_TRY(CheckComputes(config, weights));
  GpuModel model;
  const Parts parts = PartsOf(weights, model);
  const Rope rope = MakeRope(config);
  auto bytes = static_cast<int64_t>(std::span(rope.turns).size_bytes());
  for (const auto& [tensor, to] : parts.matrices) {
    EBB_ASSIGN(const int64_t of_tensor, DeviceBytes(*tensor));
    bytes += of_tensor;
  }
  for (const auto& [tensor, to] : parts.vectors) bytes += std::ssize(tensor->data);
  return bytes;
}

absl::StatusOr<GpuModel> GpuModel::Upload(const Gpu& gpu, const ModelConfig& config, const Weights& weights) {
  EBB_ASSIGN(const int64_t bytes, Bytes(config, weights));
  EBB_TRY(gpu.CheckRoom(bytes, "the model"));
  GpuModel model;
  model.config = config;
  const Parts parts = PartsOf(weights, model);
  EBB_ASSIGN(StagedCopies copies, StagedCopies::Make(gpu, kStageBytes, "weights on their way"));
  for (const auto& [tensor, to] : parts.matrices) {
    EBB_ASSIGN(*to, DeviceMatrix::Upload(copies, *tensor));
    model.bytes += to->bytes();
  }
  for (const auto& [tensor, to] : parts.vectors) {
    if (tensor->empty()) continue;
    EBB_ASSIGN(*to, copies.Upload(tensor->data, tensor->name));
  }
  model.rope = MakeRope(config);
  EBB_ASSIGN(model.turns, gpu.Upload(std::span<const uint64_t>(model.rope.turns), "angles"));
  EBB_TRY(gpu.Wait());
  return model;
}

absl::StatusOr<GpuModel> GpuModel::Random(const Gpu& gpu, const ModelConfig& config) {
  EBB_TRY(CheckComputes(config, {}));
  GpuModel model;
  model.config = config;
  uint64_t seed = 0;
  const auto matrix = [&](int32_t rows, int32_t cols, DeviceMatrix& to) -> absl::Status {
    EBB_ASSIGN(to, DeviceMatrix::Random(gpu, rows, cols, ++seed));
    model.bytes += to.bytes();
    return absl::OkStatus();
  };
  const std::vector<float> ones(static_cast<size_t>(config.dim), 1);
  EBB_TRY(matrix(config.vocab, config.dim, model.embedding));
  EBB_TRY(matrix(config.vocab, config.dim, model.output.emplace()));
  EBB_ASSIGN(model.output_norm, gpu.Upload(std::span(ones), "norms"));
  for (int32_t i = 0; i < config.layers; ++i) {
    Layer& to = model.layers.emplace_back();
    EBB_ASSIGN(to.attn_norm, gpu.Upload(std::span(ones), "norms"));
    EBB_ASSIGN(to.ffn_norm, gpu.Upload(std::span(ones), "norms"));
    EBB_TRY(matrix(config.heads * config.head_dim, config.dim, to.q));
    EBB_TRY(matrix(config.kv_heads * config.head_dim, config.dim, to.k));
    EBB_TRY(matrix(config.kv_heads * config.head_dim, config.dim, to.v));
    EBB_TRY(matrix(config.dim, config.heads * config.head_dim, to.o));
    const int32_t feed_forwards = std::max(config.experts, 1);
    EBB_TRY(matrix(feed_forwards * config.ffn_dim, config.dim, to.gate));
    EBB_TRY(matrix(feed_forwards * config.ffn_dim, config.dim, to.up));
    EBB_TRY(matrix(feed_forwards * config.dim, config.ffn_dim, to.down));
    if (config.experts > 0) EBB_TRY(matrix(config.experts, config.dim, to.router));
  }
  model.rope = MakeRope(config);
  EBB_ASSIGN(model.turns, gpu.Upload(std::span<const uint64_t>(model.rope.turns), "angles"));
  EBB_TRY(gpu.Wait());
  return model;
}

int64_t GpuModel::MultipliedBytes(int64_t rows) const {
  int64_t all = bytes - (output ? embedding.bytes() : 0);
  const int64_t chosen = rows * config.experts_used;
  if (chosen >= config.experts) return all;
  for (const Layer& layer : layers) {
    const int64_t of_experts = layer.gate.bytes() + layer.up.bytes() + layer.down.bytes();
    all -= of_experts / config.experts * (config.experts - chosen);
  }
  return all;
}

std::vector<gpu::LinearArgs> GpuModel::Products() const {
  const int32_t qkv = (config.heads + 2 * config.kv_heads) * config.head_dim;
  std::vector<gpu::LinearArgs> products;
  for (const Layer& layer : layers) {
    const auto add = [&](const DeviceMatrix& w, const GpuMemory& bias, int32_t stride, int32_t adds) {
      products.push_back({.w = w.matrix(), .bias = bias.as<float>(), .y_stride = stride, .add = adds});
    };
    add(layer.q, layer.q_bias, qkv, 0);
    add(layer.k, layer.k_bias, qkv, 0);
    add(layer.v, layer.v_bias, qkv, 0);
    add(layer.o, {}, config.dim, layer.post_attn_norm.bytes() > 0 ? 0 : 1);
    if (config.experts > 0) continue;  // each multiplies rows of its own
    add(layer.gate, {}, config.ffn_dim, 0);
    add(layer.up, {}, config.ffn_dim, 0);
    add(layer.down, {}, config.dim, layer.post_ffn_norm.bytes() > 0 ? 0 : 1);
  }
  return products;
}

}  // namespace ebb
