#include "engine/gpu/gpu_model.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr int64_t kStageBytes = int64_t{8} << 20;

// What the kernels of ops/gpu do not compute, the first of a list; nothing where they do all.
std::string WhatIsMissing(const ModelConfig& c) {
  if (c.experts > gpu::kExpertsMax || c.experts_used > gpu::kExpertsUsedMax) {
    return absl::StrFormat("%d experts, %d of them to a token (up to %d, and %d)", c.experts, c.experts_used,
                           gpu::kExpertsMax, gpu::kExpertsUsedMax);
  }
  const auto other_window = [&](int32_t window) { return window > 0 && window != std::ranges::max(c.windows); };
  if (std::ranges::any_of(c.windows, other_window)) return "windows of unequal size";
  if (c.head_dim % 16 != 0 || c.head_dim > gpu::kHeadDimMax) {
    return absl::StrFormat("heads of %d components (a multiple of 16 up to %d)", c.head_dim, gpu::kHeadDimMax);
  }
  if (c.group() > gpu::kGroupMax) {
    return absl::StrFormat("%d query heads to a KV head (up to %d)", c.group(), gpu::kGroupMax);
  }
  return "";
}

absl::Status CheckComputes(const ModelConfig& config) {
  const std::string missing = WhatIsMissing(config);
  if (missing.empty()) return absl::OkStatus();
  return Refuse(absl::StatusCode::kFailedPrecondition,
                absl::StrFormat("the model has %s, which a GPU does not compute yet", missing),
                {.reason = "UNSUPPORTED_MODEL_FEATURE"});
}

// GpuModel::head_order.
std::vector<int32_t> HeadOrder(const ModelConfig& c) {
  constexpr int32_t kUnit = 16;
  if (c.rope_pairs != RopePairs::kHalves || c.rotary_dims % kUnit == 0) return {};
  std::vector<int32_t> order(static_cast<size_t>(c.head_dim));
  std::iota(order.begin(), order.end(), 0);
  for (int32_t i = 0; i < c.rotary_dims; ++i) order[i] = i / 2 + i % 2 * (c.rotary_dims / 2);
  return order;
}

// The rows of a matrix, or the numbers of a vector, which are components of heads, in that order; the same where it is
// empty.
class InHeadOrder {
 public:
  InHeadOrder(const TensorView& tensor, std::span<const int32_t> order) : tensor_(tensor) {
    if (order.empty() || tensor.empty()) return;
    const auto each = static_cast<int64_t>(tensor.rows > 1 ? tensor.data.size() / tensor.rows : sizeof(float));
    bytes_.reserve(tensor.data.size());
    for (int64_t head = 0; head < std::ssize(tensor.data); head += std::ssize(order) * each) {
      for (const int32_t component : order) {
        const auto from = tensor.data.begin() + head + component * each;
        bytes_.insert(bytes_.end(), from, from + each);
      }
    }
    tensor_.data = bytes_;
  }
  InHeadOrder(const InHeadOrder&) = delete;
  InHeadOrder& operator=(const InHeadOrder&) = delete;

  const TensorView& tensor() const { return tensor_; }

 private:
  TensorView tensor_;
  std::vector<std::byte> bytes_;
};

// What goes to the device, and whose it becomes there; nothing that the model has not. `of_heads`: whose rows, or
// numbers, are components of queries or keys.
struct Parts {
  std::vector<std::pair<const TensorView*, DeviceMatrix*>> matrices;
  std::vector<std::pair<const TensorView*, GpuMemory*>> vectors;
  std::set<const TensorView*> of_heads = {};
};

// Of an empty model, which outlives them, as do weights.
Parts PartsOf(const Weights& weights, GpuModel& model) {
  Parts parts = {.matrices = {{&weights.embedding, &model.embedding}, {&weights.positions, &model.positions}},
                 .vectors = {{&weights.embedding_norm, &model.embedding_norm.weight},
                             {&weights.embedding_norm_bias, &model.embedding_norm.bias},
                             {&weights.output_norm, &model.output_norm.weight},
                             {&weights.output_norm_bias, &model.output_norm.bias},
                             {&weights.output_bias, &model.output_bias}}};
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
    parts.vectors.insert(parts.vectors.end(), {{&from.attn_norm, &to.attn_norm.weight},
                                               {&from.attn_norm_bias, &to.attn_norm.bias},
                                               {&from.ffn_norm, &to.ffn_norm.weight},
                                               {&from.ffn_norm_bias, &to.ffn_norm.bias},
                                               {&from.q_norm, &to.q_norm},
                                               {&from.k_norm, &to.k_norm},
                                               {&from.post_attn_norm, &to.post_attn_norm},
                                               {&from.post_ffn_norm, &to.post_ffn_norm},
                                               {&from.q_bias, &to.q_bias},
                                               {&from.k_bias, &to.k_bias},
                                               {&from.v_bias, &to.v_bias},
                                               {&from.o_bias, &to.o_bias},
                                               {&from.up_bias, &to.up_bias},
                                               {&from.down_bias, &to.down_bias}});
    parts.of_heads.insert({&from.q, &from.k, &from.q_norm, &from.k_norm, &from.q_bias, &from.k_bias});
  }
  const auto is_empty = [](const auto& part) { return part.first->empty(); };
  std::erase_if(parts.matrices, is_empty);
  std::erase_if(parts.vectors, is_empty);
  return parts;
}

}  // namespace

absl::StatusOr<int64_t> GpuModel::Bytes(const ModelConfig& config, const Weights& weights) {
  EBB_TRY(CheckComputes(config));
  GpuModel model;
  const Parts parts = PartsOf(weights, model);
  const Rope rope = MakeRope(config);
  auto bytes = static_cast<int64_t>(std::span(rope.turns).size_bytes() + std::span(rope.slopes).size_bytes());
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
  model.head_order = HeadOrder(config);
  const Parts parts = PartsOf(weights, model);
  const auto order_of = [&](const TensorView* tensor) {
    return parts.of_heads.contains(tensor) ? std::span<const int32_t>(model.head_order) : std::span<const int32_t>();
  };
  EBB_ASSIGN(StagedCopies copies, StagedCopies::Make(gpu, kStageBytes, "weights on their way"));
  for (const auto& [tensor, to] : parts.matrices) {
    const InHeadOrder laid(*tensor, order_of(tensor));
    EBB_ASSIGN(*to, DeviceMatrix::Upload(copies, laid.tensor()));
    model.bytes += to->bytes();
  }
  for (const auto& [tensor, to] : parts.vectors) {
    const InHeadOrder laid(*tensor, order_of(tensor));
    EBB_ASSIGN(*to, copies.Upload(laid.tensor().data, tensor->name));
  }
  EBB_TRY(model.UploadRope(gpu));
  EBB_TRY(gpu.Wait());
  return model;
}

absl::Status GpuModel::UploadRope(const Gpu& gpu) {
  rope = MakeRope(config);
  if (!rope.turns.empty()) {
    EBB_ASSIGN(turns, gpu.Upload(std::span<const uint64_t>(rope.turns), "angles"));
  }
  if (!rope.slopes.empty()) {
    EBB_ASSIGN(slopes, gpu.Upload(std::span<const float>(rope.slopes), "slopes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<GpuModel> GpuModel::Random(const Gpu& gpu, const ModelConfig& config) {
  EBB_TRY(CheckComputes(config));
  EBB_CHECK(config.norm == NormKind::kRms && config.positions == PositionKind::kRope);
  GpuModel model;
  model.config = config;
  model.head_order = HeadOrder(config);
  uint64_t seed = 0;
  const auto matrix = [&](int32_t rows, int32_t cols, DeviceMatrix& to) -> absl::Status {
    EBB_ASSIGN(to, DeviceMatrix::Random(gpu, rows, cols, ++seed));
    model.bytes += to.bytes();
    return absl::OkStatus();
  };
  const std::vector<float> ones(static_cast<size_t>(config.dim), 1);
  EBB_TRY(matrix(config.vocab, config.dim, model.embedding));
  EBB_TRY(matrix(config.vocab, config.dim, model.output.emplace()));
  EBB_ASSIGN(model.output_norm.weight, gpu.Upload(std::span(ones), "norms"));
  for (int32_t i = 0; i < config.layers; ++i) {
    Layer& to = model.layers.emplace_back();
    EBB_ASSIGN(to.attn_norm.weight, gpu.Upload(std::span(ones), "norms"));
    EBB_ASSIGN(to.ffn_norm.weight, gpu.Upload(std::span(ones), "norms"));
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
  EBB_TRY(model.UploadRope(gpu));
  EBB_TRY(gpu.Wait());
  return model;
}

int64_t GpuModel::MultipliedBytes(int64_t rows) const {
  int64_t all = bytes - positions.bytes() - (output ? embedding.bytes() : 0);
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
    add(layer.o, layer.o_bias, config.dim, layer.post_attn_norm.bytes() > 0 ? 0 : 1);
    if (config.experts > 0) continue;  // each multiplies rows of its own
    if (layer.gate.bytes() > 0) add(layer.gate, {}, config.ffn_dim, 0);
    add(layer.up, layer.up_bias, config.ffn_dim, 0);
    add(layer.down, layer.down_bias, config.dim, layer.post_ffn_norm.bytes() > 0 ? 0 : 1);
  }
  return products;
}

}  // namespace ebb
