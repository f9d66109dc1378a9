// The forward pass, once for all architectures, over ops.h.
//
//   x = embed(tokens)                                              [T, dim]
//   for each layer:
//       q, k, v = Wq h, Wk h, Wv h with h = norm(x)                [T, heads * d], [T, kv_heads * d] twice
//       k, v go into the slots where their tokens sit
//       x += Wo attend(q, lanes)                                   each session over its own lanes
//       x += Wdown (act(Wgate h) * Wup h) with h = norm(x)
//   logits = Whead norm(x[wanted])                                 [rows wanted, vocab]
//
// What a model has beside that (ModelConfig, Weights): biases; rows for positions and a norm on what is embedded; norms
// of q and k, head by head; norms on what attention and the feed-forward part add; both of these of the same x; experts
// (experts.h); a cap on logits.
//
// A lane's scorer sees what attention reports of it as soon as the lane is attended, and whoever asked is told then, on
// the thread whose cache still holds the lane; nobody is evicted here. Scratch memory grows to the largest step seen
// and stays. Used by the engine's thread alone.

#ifndef EBB_ENGINE_TRANSFORMER_H_
#define EBB_ENGINE_TRANSFORMER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/cache/lane_reader.h"
#include "engine/cache/session_cache.h"
#include "engine/experts.h"
#include "engine/model/architecture.h"
#include "engine/ops.h"
#include "policies/scorer.h"

namespace ebb {

// One session's tokens in a step, already seated in its cache (SlotMap::Place).
struct Sequence {
  SessionCache* cache = nullptr;
  const ValidSpec* policy = nullptr;
  std::span<const int32_t> tokens = {};
  int32_t log_tokens = 0;                 // length of the session's log, these included
  int32_t logits_from = 0;                // logits are wanted of tokens[logits_from ..]; tokens.size(): of none
  int32_t queries_from = 0;               // queries are wanted of tokens[queries_from ..]
  std::vector<float>* queries = nullptr;  // written: [those tokens, lanes, query heads, head_dim], unrotated
  bool observed = true;                   // the scorer is told of them
};

class Transformer {
 public:
  // Packs the weights; the embedding stays in the model's file, which must outlive this.
  Transformer(const ModelConfig& config, const Weights& weights, Ops& ops);

  // Called for each lane of a step's sequences[sequence] once it is attended and its scorer was told, with the number
  // of the host's thread that it runs on. Lanes of different layers never at once, those of a layer in any order.
  using LaneDone = absl::FunctionRef<void(size_t sequence, int32_t layer, int32_t head, int32_t thread)>;

  // Computes K, V, scorer states and logits of one step. The logits of all rows wanted lie one after another in the
  // order of `sequences`: [rows wanted, vocab], valid until the next call.
  std::span<const float> Forward(std::span<const Sequence> sequences, LaneDone done);

  // Tells a sequence's scorer of its one token, whose K and V are in their slots and whose queries a step wrote: the
  // bits that it would have been told had the token been a step of its own.
  void Observe(const Sequence& sequence, std::span<const float> queries);

  int64_t weight_bytes() const { return weight_bytes_; }

  // RoPE as scorers are told it. Valid as long as this is.
  RopeView rope() const {
    return {.halves = config_.rope_pairs == RopePairs::kHalves, .frequencies = config_.rope_frequencies};
  }

 private:
  struct NormWeights {
    std::vector<float> weight = {}, bias = {};
  };
  struct Layer {  // see LayerWeights
    NormWeights attn_norm = {}, ffn_norm = {}, q_norm = {}, k_norm = {}, post_attn_norm = {}, post_ffn_norm = {};
    std::unique_ptr<PackedMatrix> q = {}, k = {}, v = {}, o = {};
    std::unique_ptr<PackedMatrix> gate = {}, up = {}, down = {};
    std::optional<Experts> experts = {};  // instead of the three
  };
  // The lane of a task, and what its scorer wants to know of it.
  struct Lane {
    size_t sequence = 0;
    int32_t layer = 0;
    int32_t head = 0;
    Needs needs = {};
    std::span<const float> column_sums = {}, last_row = {}, window = {};  // of the mean, or of the first query head
  };

  // Null where the model has no such tensor.
  std::unique_ptr<PackedMatrix> Pack(const TensorView& tensor, const TensorView& bias = {});
  Layer PackLayer(const LayerWeights& weights);
  Norm NormOf(const NormWeights& norm) const {
    return {.weight = norm.weight, .eps = config_.norm_eps, .kind = config_.norm, .bias = norm.bias};
  }
  void Embed(std::span<const Sequence> sequences);
  void PrepareAngles(std::span<const Sequence> sequences);
  // Queues the attention of a lane of sequences[i], with `q` and `out` laid out as AttendTask says.
  AttendTask& QueueLane(size_t i, const Sequence& sequence, int32_t layer, int32_t head, const float* q,
                        int64_t q_stride, float* out);
  void WriteQueries(const Sequence& sequence, int32_t layer, int32_t head, const float* q, int64_t stride) const;
  // Attends what is queued and tells scorers, then `done`.
  void Attend(std::span<const Sequence> sequences, LaneDone done);
  void AttendLayer(int32_t layer, std::span<const Sequence> sequences, int32_t rows, LaneDone done);
  void AddAttended(int32_t layer, int32_t rows);
  void FeedForward(int32_t layer, int32_t rows);
  // Where x takes what a part of the layer yields: at once, or, under a norm, by way of added_.
  std::span<float> Target(const NormWeights& post_norm, int32_t rows);
  static Ops::Into IntoTarget(const NormWeights& post_norm);
  void AddTarget(const NormWeights& post_norm, int32_t rows);
  std::span<const float> Head(std::span<const Sequence> sequences);
  // Gives the tasks of a layer the buffers that their scorers' observations need.
  void WatchWhatScorersNeed(std::span<const Sequence> sequences);
  // Tells the lane's scorer what attention reported of it.
  void Tell(const Sequence& sequence, const Lane& lane, const AttendTask& task, LaneReader& reader) const;

  ModelConfig config_;
  Ops& ops_;
  Rope rope_;
  TensorView embedding_ = {};
  TensorView positions_ = {};
  NormWeights embedding_norm_ = {}, output_norm_ = {};
  std::unique_ptr<PackedMatrix> output_ = {};
  std::vector<Layer> layers_ = {};
  int64_t weight_bytes_ = 0;

  std::vector<int32_t> tokens_ = {};              // [T]
  std::vector<int32_t> place_ = {};               // [T] the tokens' positions
  std::vector<float> x_ = {}, added_ = {};        // [T, dim]
  std::vector<float> qkv_ = {}, attended_ = {};   // [T, (heads + 2 kv_heads) * d], [T, heads * d]
  std::vector<float> wanted_ = {}, logits_ = {};  // [rows wanted, dim], [rows wanted, vocab]
  std::vector<float> angles_ = {};                // of all sequences with a shared slot map
  std::vector<int64_t> angles_at_ = {};           // [sequences] offset into angles_, -1: none
  std::vector<float> observed_ = {};              // observations of one layer
  std::vector<AttendTask> attend_ = {};
  std::vector<Lane> lanes_ = {};          // of attend_
  std::vector<LaneReader> readers_ = {};  // one per thread
};

}  // namespace ebb

#endif  // EBB_ENGINE_TRANSFORMER_H_
