#include "engine/transformer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "policies/check.h"

namespace ebb {
namespace {

std::vector<float> Vector(const TensorView& tensor) {
  if (tensor.empty()) return {};
  EBB_CHECK(tensor.type == DType::kF32);
  std::vector<float> values(tensor.cols);
  std::memcpy(values.data(), tensor.data.data(), values.size() * sizeof(float));
  return values;
}

// The first rows * cols floats of a buffer that grows and stays.
std::span<float> Rows(std::vector<float>& buffer, int64_t rows, int64_t cols) {
  const auto size = static_cast<size_t>(rows * cols);
  if (buffer.size() < size) buffer.resize(size);
  return {buffer.data(), size};
}

// Floats of angles of a step that are worth keeping from lane to lane and layer to layer: half a megabyte stays in L2
// beside the lanes that stream through; what comes from further away takes longer to read than to compute.
constexpr int64_t kAnglesOnce = int64_t{1} << 17;

// Observations are written in whole tiles.
int64_t Padded(int32_t slots) { return (slots + kTileSlots - 1) / kTileSlots * kTileSlots; }

}  // namespace

Transformer::Transformer(const ModelConfig& config, const Weights& weights, Ops& ops)
    : config_(config),
      ops_(ops),
      rope_(MakeRope(config)),
      embedding_(weights.embedding),
      positions_(weights.positions),
      embedding_norm_{Vector(weights.embedding_norm), Vector(weights.embedding_norm_bias)},
      output_norm_{Vector(weights.output_norm), Vector(weights.output_norm_bias)},
      readers_(ops.host_threads().threads()) {
  output_ = Pack(weights.output, weights.output_bias);
  layers_.reserve(weights.layers.size());
  for (const LayerWeights& layer : weights.layers) layers_.push_back(PackLayer(layer));
}

Transformer::Layer Transformer::PackLayer(const LayerWeights& w) {
  Layer layer = {.attn_norm = {Vector(w.attn_norm), Vector(w.attn_norm_bias)},
                 .ffn_norm = {Vector(w.ffn_norm), Vector(w.ffn_norm_bias)},
                 .q_norm = {Vector(w.q_norm)},
                 .k_norm = {Vector(w.k_norm)},
                 .post_attn_norm = {Vector(w.post_attn_norm)},
                 .post_ffn_norm = {Vector(w.post_ffn_norm)},
                 .q = Pack(w.q, w.q_bias),
                 .k = Pack(w.k, w.k_bias),
                 .v = Pack(w.v, w.v_bias),
                 .o = Pack(w.o, w.o_bias)};
  if (w.ffn_norm.empty()) layer.ffn_norm = layer.attn_norm;
  if (config_.experts > 0) {
    layer.experts.emplace(config_, w, ops_);
    weight_bytes_ += layer.experts->weight_bytes();
    return layer;
  }
  layer.gate = Pack(w.gate);
  layer.up = Pack(w.up, w.up_bias);
  layer.down = Pack(w.down, w.down_bias);
  return layer;
}

std::unique_ptr<PackedMatrix> Transformer::Pack(const TensorView& tensor, const TensorView& bias) {
  if (tensor.empty()) return nullptr;
  std::unique_ptr<PackedMatrix> packed = ops_.Pack(tensor, Vector(bias));
  weight_bytes_ += packed->bytes();
  return packed;
}

std::span<const float> Transformer::Forward(std::span<const Sequence> sequences, LaneDone done) {
  tokens_.clear();
  for (const Sequence& s : sequences) tokens_.insert(tokens_.end(), s.tokens.begin(), s.tokens.end());
  const auto rows = static_cast<int32_t>(tokens_.size());
  EBB_CHECK(rows > 0);
  Embed(sequences);
  PrepareAngles(sequences);
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    AttendLayer(layer, sequences, rows, done);
    if (config_.parallel_residual) FeedForward(layer, rows);  // of the x that attention saw
    AddAttended(layer, rows);
    if (!config_.parallel_residual) FeedForward(layer, rows);
  }
  return Head(sequences);
}

void Transformer::Embed(std::span<const Sequence> sequences) {
  const auto rows = static_cast<int32_t>(tokens_.size());
  const std::span<float> x = Rows(x_, rows, config_.dim);
  ops_.Embed(embedding_, tokens_, config_.embedding_scale, Ops::Into::kSet, x);
  if (!positions_.empty()) {
    place_.clear();
    for (const Sequence& s : sequences) {
      const std::span<const int32_t> positions = s.cache->map(0, 0).placed_positions();
      place_.insert(place_.end(), positions.begin(), positions.end());
    }
    ops_.Embed(positions_, place_, 1, Ops::Into::kAdd, x);
  }
  if (!embedding_norm_.weight.empty()) ops_.Normalise(NormOf(embedding_norm_), rows, 1, config_.dim, x.data());
}

void Transformer::PrepareAngles(std::span<const Sequence> sequences) {
  angles_at_.clear();
  int64_t size = 0;
  for (const Sequence& s : sequences) {
    const bool shared = s.cache->maps().size() == 1 && rope_.rotary_dims > 0;
    angles_at_.push_back(shared ? size : -1);
    if (shared) size += Padded(s.cache->maps().front().end()) * rope_.rotary_dims;
  }
  if (size > kAnglesOnce) {
    angles_at_.assign(sequences.size(), -1);
    return;
  }
  const std::span<float> angles = Rows(angles_, 1, size);
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (angles_at_[i] < 0) continue;
    const SlotMap& map = sequences[i].cache->maps().front();
    ops_.Angles(rope_, map.position(), angles.subspan(angles_at_[i], Padded(map.end()) * rope_.rotary_dims));
  }
}

void Transformer::AttendLayer(int32_t layer, std::span<const Sequence> sequences, int32_t rows, LaneDone done) {
  const Layer& w = layers_[layer];
  const int64_t d = config_.head_dim, q_dim = config_.heads * d, kv_dim = config_.kv_heads * d;
  const int64_t qkv_dim = q_dim + 2 * kv_dim;
  const std::span<float> qkv = Rows(qkv_, rows, qkv_dim);
  const std::span<float> attended = Rows(attended_, rows, q_dim);
  const PackedMatrix* const project[] = {w.q.get(), w.k.get(), w.v.get()};
  ops_.NormLinear(NormOf(w.attn_norm), project, Rows(x_, rows, config_.dim), rows, qkv);
  if (!w.q_norm.weight.empty()) {
    ops_.Normalise(NormOf(w.q_norm), rows, config_.heads, qkv_dim, qkv.data());
    ops_.Normalise(NormOf(w.k_norm), rows, config_.kv_heads, qkv_dim, qkv.data() + q_dim);
  }

  attend_.clear();
  lanes_.clear();
  int64_t row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& s = sequences[i];
    for (int32_t head = 0; head < config_.kv_heads; ++head) {
      const int64_t first = head * config_.group() * d;
      const float* const q = qkv.data() + row * qkv_dim + first;
      WriteQueries(s, layer, head, q, qkv_dim);
      AttendTask& task = QueueLane(i, s, layer, head, q, qkv_dim, attended.data() + row * q_dim + first);
      task.k = qkv.data() + row * qkv_dim + q_dim + head * d;
      task.v = task.k + kv_dim;
      task.slots = s.cache->map(layer, head).placed_slots().data();
    }
    row += static_cast<int64_t>(s.tokens.size());
  }
  Attend(sequences, done);
}

void Transformer::AddAttended(int32_t layer, int32_t rows) {
  const Layer& w = layers_[layer];
  const std::span<float> attended = Rows(attended_, rows, int64_t{config_.heads} * config_.head_dim);
  ops_.Linear(*w.o, attended, rows, IntoTarget(w.post_attn_norm), Target(w.post_attn_norm, rows));
  AddTarget(w.post_attn_norm, rows);
}

std::span<float> Transformer::Target(const NormWeights& post_norm, int32_t rows) {
  return Rows(post_norm.weight.empty() ? x_ : added_, rows, config_.dim);
}

Ops::Into Transformer::IntoTarget(const NormWeights& post_norm) {
  return post_norm.weight.empty() ? Ops::Into::kAdd : Ops::Into::kSet;
}

void Transformer::AddTarget(const NormWeights& post_norm, int32_t rows) {
  if (post_norm.weight.empty()) return;
  const std::span<float> added = Rows(added_, rows, config_.dim);
  ops_.Normalise(NormOf(post_norm), rows, 1, config_.dim, added.data());
  ops_.Add(added, Rows(x_, rows, config_.dim));
}

AttendTask& Transformer::QueueLane(size_t i, const Sequence& s, int32_t layer, int32_t head, const float* q,
                                   int64_t q_stride, float* out) {
  const SlotMap& map = s.cache->map(layer, head);
  LaneStorage lane = s.cache->storage(layer, head);
  if (angles_at_[i] >= 0 && rope_.first_pair(layer) == 0) lane.angles = angles_.data() + angles_at_[i];
  attend_.push_back({.lane = lane,
                     .q = q,
                     .out = out,
                     .stride = q_stride,
                     .out_stride = int64_t{config_.heads} * config_.head_dim,
                     .tokens = static_cast<int32_t>(s.tokens.size()),
                     .q_position = map.placed_positions().data()});
  const Needs needs = s.observed && s.policy->evicts ? s.policy->needs() : Needs();
  lanes_.push_back({.sequence = i, .layer = layer, .head = head, .needs = needs});
  if (needs.observes() && needs.memory) {
    for (LaneReader& reader : readers_) reader.Reserve(map.capacity(), config_.head_dim);
  }
  return attend_.back();
}

void Transformer::WriteQueries(const Sequence& s, int32_t layer, int32_t head, const float* q, int64_t stride) const {
  if (s.queries == nullptr) return;
  const int64_t floats = config_.group() * config_.head_dim, lanes = config_.layers * config_.kv_heads;
  const auto tokens = static_cast<int64_t>(s.tokens.size());
  s.queries->resize((tokens - s.queries_from) * lanes * floats);
  float* to = s.queries->data() + (int64_t{layer} * config_.kv_heads + head) * floats;
  for (int64_t t = s.queries_from; t < tokens; ++t, to += lanes * floats) std::copy_n(q + t * stride, floats, to);
}

void Transformer::Attend(std::span<const Sequence> sequences, LaneDone done) {
  WatchWhatScorersNeed(sequences);
  ops_.Attend(rope_, config_.group(), attend_, [&](size_t task, int32_t thread) {
    const Lane& lane = lanes_[task];
    if (lane.needs.observes()) Tell(sequences[lane.sequence], lane, attend_[task], readers_[thread]);
    done(lane.sequence, lane.layer, lane.head, thread);
  });
}

void Transformer::Observe(const Sequence& s, std::span<const float> queries) {
  EBB_CHECK(s.tokens.size() == 1);
  if (!s.policy->evicts || !s.policy->needs().observes()) return;
  PrepareAngles({&s, 1});
  const int64_t floats = config_.group() * config_.head_dim;
  float* const out = Rows(attended_, 1, config_.heads * config_.head_dim).data();
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    attend_.clear();
    lanes_.clear();
    for (int32_t head = 0; head < config_.kv_heads; ++head) {
      const float* const q = queries.data() + (int64_t{layer} * config_.kv_heads + head) * floats;
      QueueLane(0, s, layer, head, q, floats, out + head * floats);
    }
    Attend({&s, 1}, [](auto...) {});
  }
}

void Transformer::WatchWhatScorersNeed(std::span<const Sequence> sequences) {
  // Sizes first: buffers have an address only once they stop growing.
  const auto floats_per_head = [](const Needs& needs, const AttendTask& task) {
    const int32_t rows = std::min(needs.window_rows, task.tokens);
    return Padded(task.lane.slots) * ((needs.column_sums ? 1 : 0) + (needs.last_row ? 1 : 0) + rows);
  };
  const auto heads = [&](const Lane& lane) {
    return sequences[lane.sequence].policy->heads_apart() ? config_.group() : 1;
  };
  int64_t floats = 0;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    floats += heads(lanes_[i]) * floats_per_head(lanes_[i].needs, attend_[i]);
  }
  float* next = Rows(observed_, 1, floats).data();
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    if (!lane.needs.observes()) continue;
    AttendTask& task = attend_[i];
    const auto slots = static_cast<size_t>(task.lane.slots);
    const int64_t per_head = floats_per_head(lane.needs, task);
    if (heads(lane) > 1) task.head_stride = per_head;
    float* at = std::exchange(next, next + heads(lane) * per_head);
    if (lane.needs.column_sums) {
      task.column_sums = std::exchange(at, at + Padded(task.lane.slots));
      lane.column_sums = {task.column_sums, slots};
    }
    if (lane.needs.last_row) {
      task.last_row = std::exchange(at, at + Padded(task.lane.slots));
      lane.last_row = {task.last_row, slots};
    }
    if (lane.needs.window_rows > 0) {
      task.window = at;
      task.window_rows = std::min(lane.needs.window_rows, task.tokens);
      lane.window = {task.window, slots * task.window_rows};
    }
  }
}

void Transformer::Tell(const Sequence& s, const Lane& lane, const AttendTask& task, LaneReader& reader) const {
  const int32_t heads = task.head_stride != 0 ? config_.group() : 1;
  const auto of_head = [&](std::span<const float> row, int32_t g) {
    return row.empty() ? row : std::span<const float>(row.data() + g * task.head_stride, row.size());
  };
  const Needs& needs = lane.needs;
  LaneView view = s.cache->view(lane.layer, lane.head, *s.policy, s.log_tokens);
  if (needs.memory) {
    reader.Point(ops_, task.lane, rope());
    view.memory = &reader;
  }
  SlotMap& map = s.cache->map(lane.layer, lane.head);
  const int32_t first = s.cache->first_track(lane.layer, lane.head);
  for (int32_t g = 0; g < heads; ++g) {
    Observation seen = {.queries = task.tokens, .slots = map.placed_slots()};
    if (needs.column_sums) seen.column_sums = of_head(lane.column_sums, g);
    if (needs.last_row) seen.last_row = of_head(lane.last_row, g);
    if (needs.window_rows > 0) seen.window = of_head(lane.window, g);
    if (needs.queries) {
      seen.q = task.q + int64_t{g} * config_.head_dim;
      seen.q_stride = task.stride;
    }
    s.policy->scorer->Observe(view, seen, map.state(first + g));
  }
}

void Transformer::FeedForward(int32_t layer, int32_t rows) {
  Layer& w = layers_[layer];
  const Norm norm = NormOf(w.ffn_norm);
  const std::span<float> x = Rows(x_, rows, config_.dim);
  if (w.experts) return w.experts->Add(norm, rows, x);
  ops_.FeedForward(&norm,
                   {.activation = config_.activation, .gate = w.gate.get(), .up = w.up.get(), .down = w.down.get()}, x,
                   rows, IntoTarget(w.post_ffn_norm), Target(w.post_ffn_norm, rows));
  AddTarget(w.post_ffn_norm, rows);
}

std::span<const float> Transformer::Head(std::span<const Sequence> sequences) {
  int32_t rows = 0;
  for (const Sequence& s : sequences) rows += static_cast<int32_t>(s.tokens.size()) - s.logits_from;
  if (rows == 0) return {};
  const int64_t dim = config_.dim;
  const std::span<float> wanted = Rows(wanted_, rows, dim);
  float* to = wanted.data();
  const float* from = x_.data();
  for (const Sequence& s : sequences) {
    const float* end = from + static_cast<int64_t>(s.tokens.size()) * dim;
    to = std::copy(from + s.logits_from * dim, end, to);
    from = end;
  }
  const std::span<float> logits = Rows(logits_, rows, config_.vocab);
  const PackedMatrix* const head[] = {output_.get()};
  ops_.NormLinear(NormOf(output_norm_), head, wanted, rows, logits);
  if (config_.logit_cap > 0) ops_.Cap(config_.logit_cap, logits);
  return logits;
}

}  // namespace ebb
