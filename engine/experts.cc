#include "engine/experts.h"

#include <algorithm>

#include "policies/check.h"

namespace ebb {
namespace {

// One of `count` equal parts of a tensor, by its rows.
TensorView Part(const TensorView& tensor, int32_t index, int32_t count) {
  const size_t bytes = tensor.data.size() / static_cast<size_t>(count);
  TensorView part = tensor;
  part.rows = tensor.rows / count;
  part.data = tensor.data.subspan(static_cast<size_t>(index) * bytes, bytes);
  return part;
}

}  // namespace

Experts::Experts(const ModelConfig& config, const LayerWeights& weights, Ops& ops)
    : ops_(&ops),
      activation_(config.activation),
      used_(config.experts_used),
      dim_(config.dim),
      router_(ops.Pack(weights.router)) {
  EBB_CHECK(config.experts > 0);
  for (int32_t e = 0; e < config.experts; ++e) {
    experts_.push_back({.gate = ops.Pack(Part(weights.gate, e, config.experts)),
                        .up = ops.Pack(Part(weights.up, e, config.experts)),
                        .down = ops.Pack(Part(weights.down, e, config.experts))});
  }
}

int64_t Experts::weight_bytes() const {
  int64_t bytes = router_->bytes();
  for (const Expert& e : experts_) bytes += e.gate->bytes() + e.up->bytes() + e.down->bytes();
  return bytes;
}

void Experts::Add(const Norm& norm, int32_t rows, std::span<float> x) {
  h_.assign(x.begin(), x.end());
  ops_->Normalise(norm, rows, 1, dim_, h_.data());
  const auto experts = static_cast<int32_t>(experts_.size());
  scores_.resize(static_cast<size_t>(rows) * experts);
  ops_->Linear(*router_, h_, rows, Ops::Into::kSet, scores_);
  chosen_.resize(static_cast<size_t>(rows) * used_);
  weights_.resize(chosen_.size());
  ops_->Route(scores_, experts, used_, chosen_, weights_);
  for (int32_t e = 0; e < experts; ++e) AddExpert(e, x);
}

void Experts::AddExpert(int32_t expert, std::span<float> x) {
  at_.clear();
  for (int32_t i = 0; i < static_cast<int32_t>(chosen_.size()); ++i) {
    if (chosen_[i] == expert) at_.push_back(i);
  }
  if (at_.empty()) return;
  const auto row = [this](int32_t at) { return int64_t{at / used_} * dim_; };
  in_.resize(at_.size() * dim_);
  out_.resize(in_.size());
  for (size_t t = 0; t < at_.size(); ++t) std::copy_n(h_.begin() + row(at_[t]), dim_, in_.begin() + t * dim_);
  const Expert& w = experts_[expert];
  ops_->FeedForward(nullptr, {.activation = activation_, .gate = w.gate.get(), .up = w.up.get(), .down = w.down.get()},
                    in_, static_cast<int32_t>(at_.size()), Ops::Into::kSet, out_);
  for (size_t t = 0; t < at_.size(); ++t) {
    const float weight = weights_[at_[t]];
    float* const to = x.data() + row(at_[t]);
    for (int32_t c = 0; c < dim_; ++c) to[c] += weight * out_[t * dim_ + c];
  }
}

}  // namespace ebb
