#include "engine/transformer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "policies/check.h"

namespace ebb {
namespace {

std::vector<float> Vector(const TensorView& tensor) {
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
      output_norm_(Vector(weights.output_norm)),
      readers_(ops.host_threads().threads()) {
  output_ = Pack(weights.output);
  layers_.reserve(weights.layers.size());
  for (const LayerWeights& w : weights.layers) {
    layers_.push_back({.attn_norm = Vector(w.attn_norm),
                       .ffn_norm = Vector(w.ffn_norm),
                       .q = Pack(w.q),
                       .k = Pack(w.k),
                       .v = Pack(w.v),
                       .o = Pack(w.o),
                       .gate = Pack(w.gate),
                       .up = Pack(w.up),
                       .down = Pack(w.down)});
  }
}

std::unique_ptr<PackedMatrix> Transformer::Pack(const TensorView& tensor) {
  std::unique_ptr<PackedMatrix> packed = ops_.Pack(tensor);
  weight_bytes_ += packed->bytes();
  return packed;
}

std::span<const float> Transformer::Forward(std::span<const Sequence> sequences) {
  tokens_.clear();
  for (const Sequence& s : sequences) tokens_.insert(tokens_.end(), s.tokens.begin(), s.tokens.end());
  const auto rows = static_cast<int32_t>(tokens_.size());
  EBB_CHECK(rows > 0);
  ops_.Embed(embedding_, tokens_, Rows(x_, rows, config_.dim));
  PrepareAngles(sequences);
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    Attention(layer, sequences, rows);
    FeedForward(layer, rows);
  }
  return Head(sequences);
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

void Transformer::Attention(int32_t layer, std::span<const Sequence> sequences, int32_t rows) {
  const Layer& w = layers_[layer];
  const int64_t d = config_.head_dim, q_dim = config_.heads * d, kv_dim = config_.kv_heads * d;
  const int64_t qkv_dim = q_dim + 2 * kv_dim;
  const std::span<float> x = Rows(x_, rows, config_.dim);
  const std::span<float> qkv = Rows(qkv_, rows, qkv_dim);
  const std::span<float> attended = Rows(attended_, rows, q_dim);
  const PackedMatrix* const project[] = {w.q.get(), w.k.get(), w.v.get()};
  ops_.NormLinear({w.attn_norm, config_.norm_eps}, project, x, rows, qkv);

  attend_.clear();
  watched_.clear();
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
  WatchWhatScorersNeed();
  ops_.Attend(rope_, config_.group(), attend_);
  TellScorers();
  ops_.Linear(*w.o, attended, rows, Ops::Into::kAdd, x);
}

AttendTask& Transformer::QueueLane(size_t i, const Sequence& s, int32_t layer, int32_t head, const float* q,
                                   int64_t q_stride, float* out) {
  const SlotMap& map = s.cache->map(layer, head);
  LaneStorage lane = s.cache->storage(layer, head);
  if (angles_at_[i] >= 0) lane.angles = angles_.data() + angles_at_[i];
  attend_.push_back({.lane = lane,
                     .q = q,
                     .out = out,
                     .stride = q_stride,
                     .out_stride = int64_t{config_.heads} * config_.head_dim,
                     .tokens = static_cast<int32_t>(s.tokens.size()),
                     .q_position = map.placed_positions().data()});
  const Needs needs = s.observed && s.policy->evicts ? s.policy->needs() : Needs();
  if (!needs.observes()) return attend_.back();
  watched_.push_back({.task = attend_.size() - 1, .sequence = &s, .layer = layer, .head = head, .needs = needs});
  if (needs.memory) {
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

void Transformer::TellScorers() {
  ops_.host_threads().For(static_cast<int64_t>(watched_.size()),
                          [&](int64_t item, int32_t thread) { Tell(watched_[item], readers_[thread]); });
}

void Transformer::Observe(const Sequence& s, std::span<const float> queries) {
  EBB_CHECK(s.tokens.size() == 1);
  if (!s.policy->evicts || !s.policy->needs().observes()) return;
  PrepareAngles({&s, 1});
  const int64_t floats = config_.group() * config_.head_dim;
  float* const out = Rows(attended_, 1, config_.heads * config_.head_dim).data();
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    attend_.clear();
    watched_.clear();
    for (int32_t head = 0; head < config_.kv_heads; ++head) {
      const float* const q = queries.data() + (int64_t{layer} * config_.kv_heads + head) * floats;
      QueueLane(0, s, layer, head, q, floats, out + head * floats);
    }
    WatchWhatScorersNeed();
    ops_.Attend(rope_, config_.group(), attend_);
    TellScorers();
  }
}

void Transformer::WatchWhatScorersNeed() {
  // Sizes first: buffers have an address only once they stop growing.
  const auto floats_per_head = [](const Watched& lane, const AttendTask& task) {
    const int32_t rows = std::min(lane.needs.window_rows, task.tokens);
    return Padded(task.lane.slots) * ((lane.needs.column_sums ? 1 : 0) + (lane.needs.last_row ? 1 : 0) + rows);
  };
  const auto heads = [this](const Watched& lane) { return lane.sequence->policy->heads_apart() ? config_.group() : 1; };
  int64_t floats = 0;
  for (const Watched& lane : watched_) floats += heads(lane) * floats_per_head(lane, attend_[lane.task]);
  float* next = Rows(observed_, 1, floats).data();
  for (Watched& lane : watched_) {
    AttendTask& task = attend_[lane.task];
    const auto slots = static_cast<size_t>(task.lane.slots);
    const int64_t per_head = floats_per_head(lane, task);
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

void Transformer::Tell(const Watched& lane, LaneReader& reader) const {
  const Sequence& s = *lane.sequence;
  const AttendTask& task = attend_[lane.task];
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
  const Layer& w = layers_[layer];
  ops_.FeedForward({w.ffn_norm, config_.norm_eps}, *w.gate, *w.up, *w.down, rows, Rows(x_, rows, config_.dim));
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
  ops_.NormLinear({output_norm_, config_.norm_eps}, head, wanted, rows, logits);
  return logits;
}

}  // namespace ebb
