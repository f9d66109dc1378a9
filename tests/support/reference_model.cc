#include "tests/support/reference_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <set>

#include "engine/model/gguf.h"
#include "engine/model/quantization.h"
#include "policies/check.h"

namespace ebb {
namespace {

double Silu(double x) { return x / (1 + std::exp(-x)); }

void Add(std::vector<double>& x, const std::vector<double>& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

}  // namespace

ReferenceModel::ReferenceModel(const std::string& path, const ReferencePolicy& policy) : policy_(policy) {
  const auto file = GgufFile::Open(path);
  EBB_CHECK(file.ok());
  const auto config = ReadConfig(*file);
  EBB_CHECK(config.ok());
  config_ = *config;
  const auto weights = FindWeights(*file, config_);
  EBB_CHECK(weights.ok());
  rope_ = {.pairs = config_.rope_pairs, .frequencies = config_.rope_frequencies};
  embedding_ = Read(weights->embedding);
  output_ = Read(weights->output);
  output_norm_ = Read(weights->output_norm).values;
  for (const LayerWeights& w : weights->layers) {
    layers_.push_back({.attn_norm = Read(w.attn_norm).values,
                       .ffn_norm = Read(w.ffn_norm).values,
                       .q = Read(w.q),
                       .k = Read(w.k),
                       .v = Read(w.v),
                       .o = Read(w.o),
                       .gate = Read(w.gate),
                       .up = Read(w.up),
                       .down = Read(w.down)});
  }
  lanes_.resize(static_cast<size_t>(config_.layers) * config_.kv_heads);
}

ReferenceModel::Matrix ReferenceModel::Read(const TensorView& tensor) {
  Matrix matrix = {.rows = tensor.rows, .cols = tensor.cols};
  std::vector<float> row(static_cast<size_t>(tensor.cols));
  for (int64_t r = 0; r < tensor.rows; ++r) {
    DequantizeRow(tensor.type, tensor.data.data() + r * RowBytes(tensor.type, tensor.cols), tensor.cols, row.data());
    matrix.values.insert(matrix.values.end(), row.begin(), row.end());
  }
  return matrix;
}

std::vector<double> ReferenceModel::Matrix::Times(const std::vector<double>& x) const {
  EBB_CHECK(static_cast<int64_t>(x.size()) == cols);
  std::vector<double> y(static_cast<size_t>(rows), 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) y[r] += values[r * cols + c] * x[c];
  }
  return y;
}

std::vector<double> ReferenceModel::Norm(const std::vector<double>& x, const std::vector<double>& weight) const {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + config_.norm_eps);
  std::vector<double> y = x;
  for (size_t i = 0; i < y.size(); ++i) y[i] *= scale * weight[i];
  return y;
}

std::vector<std::vector<double>> ReferenceModel::Step(std::span<const int32_t> tokens) {
  std::vector<std::vector<double>> x;
  for (const int32_t token : tokens) {
    const auto row = embedding_.values.begin() + int64_t{token} * embedding_.cols;
    x.emplace_back(row, row + embedding_.cols);
  }
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    Attend(layer, x);
    for (std::vector<double>& row : x) FeedForward(layers_[layer], row);
  }
  seen_ += static_cast<int32_t>(tokens.size());
  for (Lane& lane : lanes_) Evict(lane);
  std::vector<std::vector<double>> logits;
  for (const std::vector<double>& row : x) logits.push_back(output_.Times(Norm(row, output_norm_)));
  return logits;
}

void ReferenceModel::Attend(int32_t layer, std::vector<std::vector<double>>& x) {
  const Layer& w = layers_[layer];
  const int64_t d = config_.head_dim;
  const auto part = [d](const std::vector<double>& all, int64_t head) {
    return std::vector<double>(all.begin() + head * d, all.begin() + (head + 1) * d);
  };
  std::vector<std::vector<double>> queries;
  for (size_t t = 0; t < x.size(); ++t) {
    const std::vector<double> h = Norm(x[t], w.attn_norm);
    queries.push_back(w.q.Times(h));
    const std::vector<double> k = w.k.Times(h);
    const std::vector<double> v = w.v.Times(h);
    for (int32_t head = 0; head < config_.kv_heads; ++head) {
      lanes_[layer * config_.kv_heads + head].push_back(
          {.token = seen_ + static_cast<int32_t>(t), .k = part(k, head), .v = part(v, head)});
    }
  }
  for (int32_t head = 0; head < config_.kv_heads; ++head) {
    for (Entry& entry : lanes_[layer * config_.kv_heads + head]) entry.last.assign(config_.group(), 0);
  }
  for (size_t t = 0; t < x.size(); ++t) {
    std::vector<double> out;
    for (int32_t head = 0; head < config_.heads; ++head) {
      Lane& lane = lanes_[layer * config_.kv_heads + head / config_.group()];
      const size_t visible = lane.size() - (x.size() - 1 - t);
      const std::vector<double> mine = AttendHead(lane, visible, head % config_.group(), part(queries[t], head));
      out.insert(out.end(), mine.begin(), mine.end());
    }
    Add(x[t], w.o.Times(out));
  }
}

// One query head over the first `visible` entries; the query is the last of them.
std::vector<double> ReferenceModel::AttendHead(Lane& lane, size_t visible, int32_t of_group,
                                               std::vector<double> q) const {
  const auto position = [&](size_t j) { return policy_.compacted ? static_cast<int64_t>(j) : lane[j].token; };
  RotateReference(rope_, position(visible - 1), q);
  std::vector<double> share(visible);
  double best = -INFINITY;
  for (size_t j = 0; j < visible; ++j) {
    std::vector<double> k = lane[j].k;
    RotateReference(rope_, position(j), k);
    double dot = 0;
    for (size_t i = 0; i < q.size(); ++i) dot += q[i] * k[i];
    share[j] = dot / std::sqrt(static_cast<double>(q.size()));
    best = std::max(best, share[j]);
  }
  double sum = 0;
  for (double& s : share) sum += s = std::exp(s - best);
  std::vector<double> out(q.size(), 0.0);
  for (size_t j = 0; j < visible; ++j) {
    lane[j].mass += share[j] / sum / config_.group();
    if (visible == lane.size()) lane[j].last[of_group] = share[j] / sum;
    for (size_t i = 0; i < out.size(); ++i) out[i] += share[j] / sum * lane[j].v[i];
  }
  return out;
}

void ReferenceModel::FeedForward(const Layer& layer, std::vector<double>& x) const {
  const std::vector<double> h = Norm(x, layer.ffn_norm);
  std::vector<double> gate = layer.gate.Times(h);
  const std::vector<double> up = layer.up.Times(h);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] = Silu(gate[i]) * up[i];
  Add(x, layer.down.Times(gate));
}

// By the newest token, all query heads together.
double ReferenceModel::Attended(const Entry& entry) {
  return std::accumulate(entry.last.begin(), entry.last.end(), 0.0);
}

double ReferenceModel::Worth(const Entry& entry) const {
  switch (policy_.rule) {
    case ReferencePolicy::Rule::kLeastAttended:
      return entry.mass;
    case ReferencePolicy::Rule::kLeastAttendedLast:
      return Attended(entry);
    default:
      return entry.token;
  }
}

void ReferenceModel::Evict(Lane& lane) const {
  if (policy_.rule == ReferencePolicy::Rule::kNobody) return;
  if (policy_.rule == ReferencePolicy::Rule::kOnceByHead && !prompt_ended_) return;
  while (static_cast<int32_t>(lane.size()) > policy_.budget) {
    const bool once = policy_.rule == ReferencePolicy::Rule::kOnceByHead;
    const auto first = lane.begin() + (once ? policy_.budget - policy_.recent : policy_.sinks);
    const auto last = lane.end() - policy_.recent;
    EBB_CHECK(first < last);
    lane.erase(std::min_element(first, last, [&](const Entry& a, const Entry& b) { return Worth(a) < Worth(b); }));
  }
}

void ReferenceModel::EndPrompt() {
  prompt_ended_ = true;
  if (policy_.rule != ReferencePolicy::Rule::kOnceByHead) return;
  const int32_t between = policy_.budget - policy_.sinks - policy_.recent;
  for (Lane& lane : lanes_) {
    std::vector<const Entry*> rest;
    for (auto at = lane.begin() + policy_.sinks; at != lane.end() - policy_.recent; ++at) rest.push_back(&*at);
    std::set<int32_t> leave;
    for (const Entry* entry : rest) leave.insert(entry->token);
    for (int32_t head = 0; head < config_.group(); ++head) {
      std::ranges::sort(rest, std::greater(), [&](const Entry* entry) { return entry->last[head]; });
      for (int32_t i = 0; i < policy_.of_each_head; ++i) leave.erase(rest[i]->token);
    }
    std::ranges::sort(rest, std::greater(), [&](const Entry* entry) { return Attended(*entry); });
    for (const Entry* entry : rest) {
      if (std::ssize(rest) - std::ssize(leave) < between) leave.erase(entry->token);
    }
    std::erase_if(lane, [&](const Entry& entry) { return leave.contains(entry.token); });
  }
}

std::vector<int32_t> ReferenceModel::Live(int32_t layer, int32_t head) const {
  std::vector<int32_t> tokens;
  for (const Entry& entry : lanes_[layer * config_.kv_heads + head]) tokens.push_back(entry.token);
  return tokens;
}

}  // namespace ebb
