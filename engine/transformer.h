// The forward pass, once for all architectures, over ops.h.
//
//   x = embed(tokens)                                              [T, dim]
//   for each layer:
//       q, k, v = Wq h, Wk h, Wv h with h = norm(x)                [T, heads * d], [T, kv_heads * d] twice
//       k, v go into the slots where their tokens sit
//       x += Wo attend(q, lanes)                                   each session over its own lanes
//       x += Wdown (silu(Wgate h) * Wup h) with h = norm(x)
//   logits = Whead norm(x[wanted])                                 [rows wanted, vocab]
//
// Scorers see what attention reports right after each layer; nobody is evicted here. Scratch memory grows to the
// largest step seen and stays. Used by the engine's thread alone.

#ifndef EBB_ENGINE_TRANSFORMER_H_
#define EBB_ENGINE_TRANSFORMER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/cache/lane_reader.h"
#include "engine/cache/session_cache.h"
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

  // Computes K, V, scorer states and logits of one step. The logits of all rows wanted lie one after another in the
  // order of `sequences`: [rows wanted, vocab], valid until the next call.
  std::span<const float> Forward(std::span<const Sequence> sequences);

  // Tells a sequence's scorer of its one token, whose K and V are in their slots and whose queries a step wrote: the
  // bits that it would have been told had the token been a step of its own.
  void Observe(const Sequence& sequence, std::span<const float> queries);

  int64_t weight_bytes() const { return weight_bytes_; }

  // RoPE as scorers are told it. Valid as long as this is.
  RopeView rope() const {
    return {.halves = config_.rope_pairs == RopePairs::kHalves, .frequencies = config_.rope_frequencies};
  }

 private:
  struct Layer {
    std::vector<float> attn_norm = {}, ffn_norm = {};              // [dim]
    std::unique_ptr<PackedMatrix> q = {}, k = {}, v = {}, o = {};  // see LayerWeights
    std::unique_ptr<PackedMatrix> gate = {}, up = {}, down = {};
  };
  // A lane of which somebody wants to know, and where its attention is in attend_.
  struct Watched {
    size_t task = 0;
    const Sequence* sequence = nullptr;
    int32_t layer = 0;
    int32_t head = 0;
    Needs needs = {};
    std::span<const float> column_sums = {}, last_row = {}, window = {};  // of the mean, or of the first query head
  };

  std::unique_ptr<PackedMatrix> Pack(const TensorView& tensor);
  void PrepareAngles(std::span<const Sequence> sequences);
  // Queues the attention of a lane of sequences[i], with `q` and `out` laid out as AttendTask says.
  AttendTask& QueueLane(size_t i, const Sequence& sequence, int32_t layer, int32_t head, const float* q,
                        int64_t q_stride, float* out);
  void WriteQueries(const Sequence& sequence, int32_t layer, int32_t head, const float* q, int64_t stride) const;
  void TellScorers();
  void Attention(int32_t layer, std::span<const Sequence> sequences, int32_t rows);
  void FeedForward(int32_t layer, int32_t rows);
  std::span<const float> Head(std::span<const Sequence> sequences);
  // Gives the tasks of a layer the buffers that their scorers' observations need.
  void WatchWhatScorersNeed();
  // Tells the lane's scorer what attention reported of it.
  void Tell(const Watched& lane, LaneReader& reader) const;

  ModelConfig config_;
  Ops& ops_;
  Rope rope_;
  TensorView embedding_ = {};
  std::vector<float> output_norm_ = {};
  std::unique_ptr<PackedMatrix> output_ = {};
  std::vector<Layer> layers_ = {};
  int64_t weight_bytes_ = 0;

  std::vector<int32_t> tokens_ = {};              // [T]
  std::vector<float> x_ = {};                     // [T, dim]
  std::vector<float> qkv_ = {}, attended_ = {};   // [T, (heads + 2 kv_heads) * d], [T, heads * d]
  std::vector<float> wanted_ = {}, logits_ = {};  // [rows wanted, dim], [rows wanted, vocab]
  std::vector<float> angles_ = {};                // of all sequences with a shared slot map
  std::vector<int64_t> angles_at_ = {};           // [sequences] offset into angles_, -1: none
  std::vector<float> observed_ = {};              // observations of one layer
  std::vector<AttendTask> attend_ = {};
  std::vector<Watched> watched_ = {};
  std::vector<LaneReader> readers_ = {};  // one per thread
};

}  // namespace ebb

#endif  // EBB_ENGINE_TRANSFORMER_H_
