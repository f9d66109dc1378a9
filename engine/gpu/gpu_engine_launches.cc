// What GpuEngine launches for a layer and for logits, in order; gpu_engine.h lists them.

#include <algorithm>
#include <cmath>

#include "engine/gpu/gpu_engine.h"

namespace ebb {
namespace {

gpu::Curve CurveOf(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return gpu::Curve::kSilu;
    case Activation::kGelu:
      return gpu::Curve::kGelu;
    case Activation::kRelu:
      return gpu::Curve::kRelu;
  }
  return gpu::Curve::kSilu;
}

}  // namespace

void GpuEngine::Embed(const Step& step) const {
  const gpu::Table& table = gpu_->table();
  table.embed({.table = model_.embedding.matrix(),
               .tokens = tokens_.as<int32_t>(),
               .scale = model_.config.embedding_scale,
               .x = x_.as<float>(),
               .rows = step.rows},
              gpu_->stream());
  if (model_.positions.bytes() > 0) {
    const gpu::CacheArgs cache = CacheOf(step, SightOf(0));
    table.embed_positions({.table = model_.positions.matrix(), .cache = cache, .x = x_.as<float>()}, gpu_->stream());
  }
  if (model_.embedding_norm.weight.bytes() > 0) {
    NormRows(model_.embedding_norm, x_.as<float>(), x_.as<float>(), step.rows);
  }
}

// Of whole rows [dim].
void GpuEngine::NormRows(const GpuModel::Norm& norm, const float* x, float* y, int32_t rows) const {
  const ModelConfig& c = model_.config;
  const gpu::Table& table = gpu_->table();
  const float* const weight = norm.weight.as<float>();
  if (c.norm == NormKind::kRms) {
    return table.rms_norm({.x = x, .weight = weight, .y = y, .n = c.dim, .rows = rows, .eps = c.norm_eps},
                          gpu_->stream());
  }
  table.layer_norm(
      {.x = x, .weight = weight, .bias = norm.bias.as<float>(), .y = y, .n = c.dim, .rows = rows, .eps = c.norm_eps},
      gpu_->stream());
}

// All rows, for the products that come next.
void GpuEngine::Normalise(const GpuModel::Norm& norm, const Step& step) const {
  NormRows(norm, x_.as<float>(), normed_.as<float>(), step.rows);
}

// At most kTogetherMax products with one x, which is rounded for those alone that a library makes.
void GpuEngine::Linear(std::initializer_list<Product> products, const float* x, int64_t y_stride, bool add,
                       const Step& step) {
  gpu::LinearsArgs together = {};
  for (const Product& product : products) {
    const GpuMemory* const bias = product.bias;
    together.of[together.count++] = {.w = product.w.matrix(),
                                     .bias = bias != nullptr && bias->bytes() > 0 ? bias->as<float>() : nullptr,
                                     .x = x,
                                     .y = product.y,
                                     .y_stride = y_stride,
                                     .rows = step.single,
                                     .add = add ? 1 : 0,
                                     .partial = linear_partial_.as<float>(),
                                     .arrived = linear_arrived_.as<int32_t>()};
  }
  if (step.single > 0) gpu_->table().linear_rows_together(together, gpu_->stream());
  if (step.decodes()) return;
  bool is_rounded = false;
  for (gpu::LinearArgs& tiles : std::span(together.of).first(static_cast<size_t>(together.count))) {
    tiles.rows = step.rows - step.single;
    tiles.x += int64_t{step.single} * tiles.w.cols;
    tiles.y += step.single * y_stride;
    if (!products_ || !products_->Takes(tiles)) {
      gpu_->table().linear_tiles(tiles, gpu_->stream());
      continue;
    }
    const int64_t numbers = int64_t{tiles.rows} * tiles.w.cols;
    if (!is_rounded) gpu_->table().round({.x = tiles.x, .y = rounded_.as<uint16_t>(), .n = numbers}, gpu_->stream());
    is_rounded = true;
    products_->Multiply(tiles, rounded_.as<uint16_t>());
  }
}

// What a part of a layer yields, to x_; under a norm by way of normed_, which nobody reads any more.
void GpuEngine::AddProduct(const DeviceMatrix& w, const GpuMemory& bias, const Buffer& from, const GpuMemory& post_norm,
                           const Step& step) {
  const ModelConfig& c = model_.config;
  const bool norms = post_norm.bytes() > 0;
  float* const to = norms ? normed_.as<float>() : x_.as<float>();
  Linear({{.w = w, .bias = &bias, .y = to}}, from.as<float>(), c.dim, !norms, step);
  if (!norms) return;
  gpu_->table().rms_norm({.x = to,
                          .weight = post_norm.as<float>(),
                          .y = x_.as<float>(),
                          .n = c.dim,
                          .rows = step.rows,
                          .eps = c.norm_eps,
                          .add = 1},
                         gpu_->stream());
}

gpu::RopeArgs GpuEngine::Rotation(int32_t layer) const {
  return {.turns = model_.turns.as<uint64_t>() + model_.rope.first_pair(layer),
          .rotary_dims = model_.config.rotary_dims,
          .halves = model_.config.rope_pairs == RopePairs::kHalves && model_.head_order.empty() ? 1 : 0};
}

int32_t GpuEngine::WindowOf(int32_t layer) const {
  const int32_t window = model_.rope.window(layer);
  return window > 0 ? window : INT32_MAX;
}

// Of a step's sessions their lanes of one kind, as kernels call them.
gpu::CacheArgs GpuEngine::CacheOf(const Step& step, GpuSight sight) const {
  const ModelConfig& c = model_.config;
  return {.arena = {.base = arena_.as<void>(), .type = ElementOf(options_.kv_type), .head_dim = c.head_dim},
          .sessions = SessionsOf(step, sight),
          .session_count = step.session_count(),
          .row_session = row_session_.as<int32_t>(),
          .rows = step.rows,
          .kv_heads = c.kv_heads,
          .lanes = lanes_[sight].count,
          .slots_max = std::max(step.slots_max[sight], step.block_slots_max[sight])};
}

float GpuEngine::AttentionScale() const {
  const ModelConfig& c = model_.config;
  return c.attention_scale > 0 ? c.attention_scale : 1.0F / std::sqrt(static_cast<float>(c.head_dim));
}

void GpuEngine::Attend(int32_t layer, const Step& step) {
  const ModelConfig& c = model_.config;
  const GpuModel::Layer& w = model_.layers[static_cast<size_t>(layer)];
  const GpuSight sight = SightOf(layer);
  const gpu::CacheArgs cache = CacheOf(step, sight);
  const gpu::Table& table = gpu_->table();
  const int64_t q_dim = int64_t{c.heads} * c.head_dim;
  const int64_t kv_dim = int64_t{c.kv_heads} * c.head_dim;
  const int64_t stride = q_dim + 2 * kv_dim;
  const int32_t index = order_[static_cast<size_t>(layer) * c.kv_heads] / c.kv_heads - lanes_[sight].first / c.kv_heads;
  float* const q = qkv_.as<float>();
  Normalise(w.attn_norm, step);
  Linear({{.w = w.q, .bias = &w.q_bias, .y = q},
          {.w = w.k, .bias = &w.k_bias, .y = q + q_dim},
          {.w = w.v, .bias = &w.v_bias, .y = q + q_dim + kv_dim}},
         normed_.as<float>(), stride, false, step);
  if (w.q_norm.bytes() > 0) {
    table.norm_heads({.x = q,
                      .stride = stride,
                      .query_weight = w.q_norm.as<float>(),
                      .kv_weight = w.k_norm.as<float>(),
                      .head_dim = c.head_dim,
                      .query_heads = c.heads,
                      .kv_heads = c.kv_heads,
                      .rows = step.rows,
                      .eps = c.norm_eps},
                     gpu_->stream());
  }
  table.store({.cache = cache,
               .layer = index,
               .k = q + q_dim,
               .v = q + q_dim + kv_dim,
               .q = q,
               .stride = stride,
               .group = c.group()},
              gpu_->stream());
  gpu::AttendArgs attend = {.cache = cache,
                            .layer = index,
                            .group = c.group(),
                            .rope = Rotation(layer),
                            .scale = AttentionScale(),
                            .cap = c.attention_cap,
                            .slopes = model_.slopes.as<float>(),
                            .window = WindowOf(layer),
                            .q = q,
                            .q_stride = stride,
                            .splits = gpu::SplitsOf(step.slots_max[sight], gpu::kSplitSlots),
                            .partial_sums = partial_sums_.as<float>(),
                            .partial_stats = partial_stats_.as<float>(),
                            .logits = step.observes ? scores_.as<float>() : nullptr,
                            .arrived = attend_arrived_.as<int32_t>(),
                            .out = attended_.as<float>(),
                            .stats = stats_.as<float>()};
  attend.cache.rows = attend.cache.session_count = step.single;  // they come first
  attend.cache.slots_max = step.slots_max[sight];
  table.attend(attend, gpu_->stream());
  if (!step.decodes()) AttendBlocks(attend, sight, step);
}

// The rest of the step's rows. `attend` as of those before them.
void GpuEngine::AttendBlocks(gpu::AttendArgs attend, GpuSight sight, const Step& step) const {
  const gpu::Table& table = gpu_->table();
  attend.first_row = attend.first_session = step.single;
  attend.cache.rows = step.rows - step.single;
  attend.cache.session_count = step.blocks();
  attend.cache.slots_max = step.block_slots_max[sight];
  attend.split_slots = gpu::kBlockSplitSlots;
  attend.splits = gpu::SplitsOf(step.block_slots_max[sight], gpu::kBlockSplitSlots);
  const gpu::BlockArgs block = {.attend = attend,
                                .tokens_max = step.block_tokens_max,
                                .strips = step.block_slots_max[sight] / gpu::kStripSlots,
                                .q = laid_q_.as<uint32_t>(),
                                .kv = laid_kv_.as<uint32_t>(),
                                .position = laid_position_.as<int32_t>(),
                                .earliest = laid_earliest_.as<int32_t>(),
                                .latest = laid_latest_.as<int32_t>()};
  table.lay(block, gpu_->stream());
  table.attend_block(block, gpu_->stream());
  table.attend_merge(attend, gpu_->stream());
  if (step.blocks_observe) table.observe_block(block, gpu_->stream());
}

// Of rows [ffn_dim]: gate_, by its curve, times up_ where it is a gate.
void GpuEngine::Activate(bool is_gated, int32_t rows) const {
  const ModelConfig& c = model_.config;
  float* const gate = gate_.as<float>();
  gpu_->table().activate({.curve = CurveOf(c.activation),
                          .gate = gate,
                          .up = is_gated ? up_.as<float>() : nullptr,
                          .y = gate,
                          .n = int64_t{rows} * c.ffn_dim},
                         gpu_->stream());
}

void GpuEngine::FeedForward(const GpuModel::Layer& w, const Step& step) {
  const ModelConfig& c = model_.config;
  if (c.experts > 0) return AddExperts(w, step);
  const bool is_gated = w.gate.bytes() > 0;
  float* const gate = gate_.as<float>();
  float* const up = is_gated ? up_.as<float>() : gate;
  Normalise(w.ffn_norm.weight.bytes() > 0 ? w.ffn_norm : w.attn_norm, step);
  const Product wide = {.w = w.up, .bias = &w.up_bias, .y = up};
  if (is_gated) {
    Linear({{.w = w.gate, .bias = nullptr, .y = gate}, wide}, normed_.as<float>(), c.ffn_dim, false, step);
  } else {
    Linear({wide}, normed_.as<float>(), c.ffn_dim, false, step);
  }
  Activate(is_gated, step.rows);
  AddProduct(w.down, w.down_bias, gate_, w.post_ffn_norm, step);
}

// What experts make of all rows, sorted by expert, so that each reads its weights once.
void GpuEngine::AddExperts(const GpuModel::Layer& w, const Step& step) {
  const ModelConfig& c = model_.config;
  const gpu::Table& table = gpu_->table();
  const int32_t choices = step.rows * c.experts_used;
  Normalise(w.ffn_norm, step);
  Linear({{.w = w.router, .bias = nullptr, .y = router_scores_.as<float>()}}, normed_.as<float>(), c.experts, false,
         step);
  table.route({.scores = router_scores_.as<float>(),
               .rows = step.rows,
               .experts = c.experts,
               .used = c.experts_used,
               .expert = expert_.as<int32_t>(),
               .weight = expert_weight_.as<float>(),
               .place = place_.as<int32_t>(),
               .row_of = row_of_.as<int32_t>(),
               .tiles = expert_tiles_.as<gpu::ExpertTile>()},
              gpu_->stream());
  const auto linear = [&](const DeviceMatrix& of, const Buffer& x, const int32_t* row_of, const Buffer& y) {
    const gpu::Matrix& all = of.matrix();
    table.linear_experts(
        {.linear =
             {.w = all, .x = x.as<float>(), .y = y.as<float>(), .y_stride = all.rows / c.experts, .rows = choices},
         .experts = c.experts,
         .row_of = row_of,
         .tiles = expert_tiles_.as<gpu::ExpertTile>()},
        gpu_->stream());
  };
  linear(w.gate, normed_, row_of_.as<int32_t>(), gate_);
  linear(w.up, normed_, row_of_.as<int32_t>(), up_);
  Activate(true, choices);
  linear(w.down, gate_, nullptr, parts_);
  table.combine({.parts = parts_.as<float>(),
                 .place = place_.as<int32_t>(),
                 .weight = expert_weight_.as<float>(),
                 .x = x_.as<float>(),
                 .n = c.dim,
                 .rows = step.rows,
                 .used = c.experts_used},
                gpu_->stream());
}

// What is made of a kind's scores, and who leaves.
void GpuEngine::LaunchEviction(const Step& step, GpuSight sight) const {
  const ModelConfig& c = model_.config;
  const gpu::Table& table = gpu_->table();
  const gpu::CacheArgs cache = CacheOf(step, sight);
  if (step.tracks_modified > 0) table.caote({.cache = cache, .tracks = step.tracks_modified}, gpu_->stream());
  if (step.reduces) table.reduce({.cache = cache}, gpu_->stream());
  if (step.likens) table.likeness({.cache = cache}, gpu_->stream());
  if (step.draws) table.chance({.cache = cache}, gpu_->stream());
  if (step.measures) {
    const int32_t layer = lanes_[sight].of_model / c.kv_heads;
    table.loss({.cache = cache,
                .group = c.group(),
                .rope = Rotation(layer),
                .scale = AttentionScale(),
                .cap = c.attention_cap,
                .slopes = model_.slopes.as<float>(),
                .window = WindowOf(layer)},
               gpu_->stream());
  }
  table.evict({.cache = cache}, gpu_->stream());
}

// Rows of neighbours are one launch each: a prompt's logits are few, a decode step's rows lie side by side.
void GpuEngine::Head(const Step& step) const {
  const ModelConfig& c = model_.config;
  const gpu::Table& table = gpu_->table();
  const auto wanted = static_cast<int32_t>(step.wanted.size());
  for (int32_t i = 0; i < wanted;) {
    int32_t count = 1;
    while (i + count < wanted && step.wanted[i + count] == step.wanted[i] + count) ++count;
    NormRows(model_.output_norm, x_.as<float>() + int64_t{step.wanted[i]} * c.dim,
             normed_.as<float>() + int64_t{i} * c.dim, count);
    i += count;
  }
  table.linear_rows({.w = model_.head(),
                     .bias = model_.output_bias.as<float>(),
                     .x = normed_.as<float>(),
                     .y = logits_.as<float>(),
                     .y_stride = c.vocab,
                     .rows = wanted,
                     .partial = linear_partial_.as<float>(),
                     .arrived = linear_arrived_.as<int32_t>()},
                    gpu_->stream());
  if (c.logit_cap > 0) {
    table.cap({.x = logits_.as<float>(), .n = int64_t{wanted} * c.vocab, .cap = c.logit_cap}, gpu_->stream());
  }
  table.greedy({.logits = logits_.as<float>(),
                .vocab = c.vocab,
                .rows = wanted,
                .token = next_.as<int32_t>(),
                .parts = greedy_parts_.as<uint64_t>(),
                .arrived = greedy_arrived_.as<int32_t>()},
               gpu_->stream());
  if (step.largest == 0) return;
  table.largest({.logits = logits_.as<float>(),
                 .vocab = c.vocab,
                 .rows = wanted,
                 .count = step.largest,
                 .scratch = largest_scratch_.as<uint64_t>(),
                 .largest = largest_.as<gpu::TokenLogit>()},
                gpu_->stream());
  if (!step.weighs) return;
  table.mass({.logits = logits_.as<float>(),
              .best = next_.as<int32_t>(),
              .needs = needs_.as<gpu::DrawNeeds>(),
              .vocab = c.vocab,
              .rows = wanted,
              .parts = mass_parts_.as<double>(),
              .mass = mass_.as<gpu::RowMass>()},
             gpu_->stream());
}

}  // namespace ebb
