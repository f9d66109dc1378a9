#include "engine/transformer.h"

#include <algorithm>
#include <cstring>

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

// Observations are written in whole tiles.
int64_t Padded(int32_t slots) { return (slots + kTileSlots - 1) / kTileSlots * kTileSlots; }

}  // namespace

Transformer::Transformer(const ModelConfig& config, const Weights& weights, Ops& ops)
    : config_(config),
      ops_(ops),
      rope_(MakeRope(config)),
      embedding_(weights.embedding),
      output_norm_(Vector(weights.output_norm)) {
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
    const bool once = s.cache->maps().size() == 1 && rope_.rotary_dims > 0;
    angles_at_.push_back(once ? size : -1);
    if (once) size += Padded(s.cache->maps().front().end()) * rope_.rotary_dims;
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
  const std::span<float> x = Rows(x_, rows, config_.dim), h = Rows(h_, rows, config_.dim);
  const std::span<float> q = Rows(q_, rows, q_dim), k = Rows(k_, rows, kv_dim), v = Rows(v_, rows, kv_dim);
  const std::span<float> attended = Rows(attended_, rows, q_dim);
  ops_.RmsNorm(x, w.attn_norm, config_.norm_eps, h);
  ops_.Linear(*w.q, h, rows, Ops::Into::kSet, q);
  ops_.Linear(*w.k, h, rows, Ops::Into::kSet, k);
  ops_.Linear(*w.v, h, rows, Ops::Into::kSet, v);

  store_.clear();
  attend_.clear();
  watched_.clear();
  int64_t row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& s = sequences[i];
    for (int32_t head = 0; head < config_.kv_heads; ++head) {
      SlotMap& map = s.cache->map(layer, head);
      LaneStorage lane = s.cache->storage(layer, head);
      if (angles_at_[i] >= 0) lane.angles = angles_.data() + angles_at_[i];
      const auto tokens = static_cast<int32_t>(s.tokens.size());
      store_.push_back({.lane = lane,
                        .k = k.data() + row * kv_dim + head * d,
                        .v = v.data() + row * kv_dim + head * d,
                        .stride = kv_dim,
                        .tokens = tokens,
                        .slots = map.placed_slots().data()});
      const int64_t at = row * q_dim + head * config_.group() * d;
      attend_.push_back({.lane = lane,
                         .q = q.data() + at,
                         .out = attended.data() + at,
                         .stride = q_dim,
                         .tokens = tokens,
                         .q_position = map.placed_positions().data()});
      if (!s.scorer->needs().any()) continue;
      watched_.push_back({.task = attend_.size() - 1, .scorer = s.scorer, .map = &map, .seen = {.queries = tokens}});
    }
    row += static_cast<int64_t>(s.tokens.size());
  }
  WatchWhatScorersNeed();
  ops_.Store(rope_, store_);
  ops_.Attend(rope_, config_.group(), attend_);
  ops_.host_threads().For(static_cast<int64_t>(watched_.size()), [&](int64_t item, int32_t /*thread*/) {
    const Watched& lane = watched_[item];
    lane.scorer->Observe(lane.seen, lane.map->state());
  });
  ops_.Linear(*w.o, attended, rows, Ops::Into::kAdd, x);
}

void Transformer::WatchWhatScorersNeed() {
  // Sizes first: buffers have an address only once they stop growing.
  int64_t floats = 0;
  for (const Watched& lane : watched_) {
    const Needs needs = lane.scorer->needs();
    const int32_t rows = std::min(needs.window_rows, lane.seen.queries);
    floats += Padded(lane.map->end()) * ((needs.column_sums ? 1 : 0) + (needs.last_row ? 1 : 0) + rows);
  }
  float* next = Rows(observed_, 1, floats).data();
  for (Watched& lane : watched_) {
    AttendTask& task = attend_[lane.task];
    const Needs needs = lane.scorer->needs();
    const auto slots = static_cast<size_t>(lane.map->end());
    if (needs.column_sums) {
      task.column_sums = next;
      lane.seen.column_sums = {next, slots};
      next += Padded(lane.map->end());
    }
    if (needs.last_row) {
      task.last_row = next;
      lane.seen.last_row = {next, slots};
      next += Padded(lane.map->end());
    }
    if (needs.window_rows > 0) {
      task.window = next;
      task.window_rows = std::min(needs.window_rows, lane.seen.queries);
      lane.seen.window = {next, slots * task.window_rows};
      next += Padded(lane.map->end()) * task.window_rows;
    }
  }
}

void Transformer::FeedForward(int32_t layer, int32_t rows) {
  const Layer& w = layers_[layer];
  const std::span<float> x = Rows(x_, rows, config_.dim), h = Rows(h_, rows, config_.dim);
  const std::span<float> gate = Rows(gate_, rows, config_.ffn_dim), up = Rows(up_, rows, config_.ffn_dim);
  ops_.RmsNorm(x, w.ffn_norm, config_.norm_eps, h);
  ops_.Linear(*w.gate, h, rows, Ops::Into::kSet, gate);
  ops_.Linear(*w.up, h, rows, Ops::Into::kSet, up);
  ops_.SwiGlu(gate, up);
  ops_.Linear(*w.down, gate, rows, Ops::Into::kAdd, x);
}

std::span<const float> Transformer::Head(std::span<const Sequence> sequences) {
  int32_t rows = 0;
  for (const Sequence& s : sequences) rows += static_cast<int32_t>(s.tokens.size()) - s.logits_from;
  if (rows == 0) return {};
  const int64_t dim = config_.dim;
  const std::span<float> wanted = Rows(wanted_, rows, dim), h = Rows(h_, rows, dim);
  float* to = wanted.data();
  const float* from = x_.data();
  for (const Sequence& s : sequences) {
    const float* end = from + static_cast<int64_t>(s.tokens.size()) * dim;
    to = std::copy(from + s.logits_from * dim, end, to);
    from = end;
  }
  ops_.RmsNorm(wanted, output_norm_, config_.norm_eps, h);
  const std::span<float> logits = Rows(logits_, rows, config_.vocab);
  ops_.Linear(*output_, h, rows, Ops::Into::kSet, logits);
  return logits;
}

}  // namespace ebb
