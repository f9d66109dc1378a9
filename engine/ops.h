// The one interface between the graph and hardware. The transformer is written once over it (transformer.cc); ops/cpu
// implements it. What runs on a GPU is an engine of its own (engine/gpu): these ops report to the host after each call.
//
// Every op is a function of its arguments: the bits of a row do not depend on how many rows it is computed with, on the
// number of threads, or on who else is in the batch. Ops cannot fail: shapes are checked when a
// model is packed and a session is opened. Letters: T tokens (rows) of a batch, H KV heads, G query heads per KV head,
// d head_dim, n slots of a lane.

#ifndef EBB_ENGINE_OPS_H_
#define EBB_ENGINE_OPS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/accuracy.h"
#include "engine/model/architecture.h"
#include "engine/parallel.h"
#include "engine/tensor.h"
#include "policies/scorer.h"
#include "policies/spec.h"

namespace ebb {

// Slots of a tile: the granularity of K/V memory and of attention. Lanes of a tile are SIMD lanes.
inline constexpr int32_t kTileSlots = 16;

// How a lane's K and V lie in its pages. A page holds `page_tiles` tiles; a tile holds 16 slots:
//
//   K  [d][16]   unrotated; component-major, so that a dot product needs no sum across lanes
//   RK [d][16]   only with RopeCache::kRk: rotate-half of K (EQUIP), zero past rotary_dims
//   V  [16][d]   slot-major
//   S  [2][16]   float32, only where IsScaled: what a slot's K (and RK), and its V, are to be multiplied by
//
// in the lane's element type. Of bytes there is a scale for a slot and head, so that a token that takes another's place
// touches nothing but that slot, and so that no sum meets a scale before it is complete: q . k is multiplied once, and
// so is a slot's weight before it meets V. Whatever a byte is, it is a number: what is not finite shows in the scale.
//
//   kInt8   integers; the largest component of a head's K, or V, becomes +-127
//   kFp8    E4M3 (e4m3fn of OCP) times 2^-8; the largest component becomes +-448 times that. So a byte's sign, and its
//           other bits below a zero, are the upper bits of a binary16. Codes of no number, 7F and FF, are not written,
//           and read as +-480 times that.
//
// Slot s is lane s % 16 of tile s / 16, which is tile (s / 16) % page_tiles of page (s / 16) / page_tiles.
struct KvFormat {
  KvType type = KvType::kBf16;
  RopeCache rope_cache = RopeCache::kFused;
  int32_t head_dim = 0;
  int32_t page_tiles = 0;

  int64_t element_bytes() const { return type == KvType::kF32 ? 4 : IsScaled(type) ? 1 : 2; }
  int32_t scales() const { return IsScaled(type) ? 2 : 0; }  // of a slot
  int64_t scales_offset() const {                            // of a tile's scales: behind its elements
    return (rope_cache == RopeCache::kRk ? 3 : 2) * element_bytes() * head_dim * kTileSlots;
  }
  int64_t tile_bytes() const { return scales_offset() + int64_t{4} * scales() * kTileSlots; }
  int64_t slot_bytes() const { return tile_bytes() / kTileSlots; }
};

// RoPE of a model, ready for kernels, and what else decides its attention's scores: pair i turns by position * turns[i]
// * 2^-64 turns. Integer arithmetic reduces the angle exactly at any position below 2^31, so there is no table and no
// drift at long range.
struct Rope {
  RopePairs pairs = RopePairs::kNeighbours;
  int32_t rotary_dims = 0;           // even, 0 .. head_dim
  std::vector<uint64_t> turns = {};  // [rotary_dims / 2] round(2^64 * frequency / 2 pi)
  // [rotary_dims / 2][2] the same in half turns, -1 .. 1, as a float and what it lacks: enough for positions below 2^22
  std::vector<float> half_turns = {};
  // Behind the first set of frequencies lies that of layers with a window, where it is another.
  float scale = 0;                    // of q . k; 0: 1 / sqrt(d)
  float cap = 0;                      // scores become cap * tanh(score / cap); 0: they stay
  std::vector<int32_t> windows = {};  // [layers] ModelConfig.windows
  std::vector<float> slopes = {};  // [query heads] ALiBi: scores are lowered by slope * distance; empty: they are not

  int32_t window(int32_t layer) const { return windows.empty() ? 0 : windows[static_cast<size_t>(layer)]; }
  // Where the frequencies of a layer begin in `turns`.
  int64_t first_pair(int32_t layer) const {
    const int64_t set = rotary_dims / 2;
    return window(layer) > 0 && static_cast<int64_t>(turns.size()) > set ? set : 0;
  }
};
Rope MakeRope(const ModelConfig& config);

// The memory of one lane during one step. Pointers are valid for the call.
struct LaneStorage {
  KvFormat format = {};
  std::byte* const* pages = nullptr;  // [ceil(slots / (16 * page_tiles))]
  // [slots rounded up to 16] RoPE position, < 0 for a slot that may not be seen; what lies past `slots` is not seen.
  const int32_t* position = nullptr;
  int32_t slots = 0;              // n: every live slot is below it
  const float* angles = nullptr;  // optional, see Ops::Angles; for lanes that share their positions
  int32_t layer = 0;              // whose lane it is: what its scores are made by (Rope)
  int32_t query_head = 0;         // of the model, the first that attends to it
};

// Attention of one lane of one session in one step.
//
//   out[t, g] = sum over slots s with 0 <= position[s] <= q_position[t] of softmax_s(logit[t, g, s]) * v[s]
//   logit[t, g, s] = dot(R(q_position[t]) q[t, g], R(position[s]) k[s]) / sqrt(d)
//
// In a layer with a window w only slots with position[s] > q_position[t] - w are seen; see Rope for scales, caps and
// slopes.
//
// The tokens' own K and V are in their slots, or come with the task and go there first. Slots are added in slot order,
// whoever else is in the batch: same lane, same bits; a slot that may not be seen contributes nothing, whatever bytes
// it holds.
struct AttendTask {
  LaneStorage lane = {};
  const float* k = nullptr;  // null, or row t at k + t * stride, d floats, unrotated; v likewise
  const float* v = nullptr;
  const int32_t* slots = nullptr;       // [T] where they go
  const float* q = nullptr;             // row t, head g at q + t * stride + g * d; unrotated
  float* out = nullptr;                 // row t, head g at out + t * out_stride + g * d
  int64_t stride = 0;                   // floats from one token's q to the next, and k, and v
  int64_t out_stride = 0;               // 0: as of q
  int32_t tokens = 0;                   // T >= 1
  const int32_t* q_position = nullptr;  // [T] ascending
  // Observations, each null unless wanted; written whole ([slots]; dead slots 0). Reduced over the G heads by their
  // mean, or, where head_stride is not 0, each query head's own: head g's begin g * head_stride floats further on.
  float* column_sums = nullptr;  // [slots]
  float* last_row = nullptr;     // [slots]
  float* window = nullptr;       // [window_rows, slots] the last window_rows rows
  int32_t window_rows = 0;       // <= tokens
  int64_t head_stride = 0;
};

// K (RK) and V of one slot, to be copied to another.
struct SlotMove {
  int32_t from = 0;
  int32_t to = 0;
};

// Writes T tokens' K and V of one lane into their slots (and RK where the format has it).
struct StoreTask {
  LaneStorage lane = {};
  const float* k = nullptr;  // row t at k + t * stride, d floats, unrotated
  const float* v = nullptr;
  int64_t stride = 0;
  int32_t tokens = 0;
  const int32_t* slots = nullptr;  // [T]
};

// A weight matrix [rows = out, cols = in] in the form a device wants it.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  virtual int64_t rows() const = 0;
  virtual int64_t cols() const = 0;
  virtual int64_t bytes() const = 0;  // read by one Linear call
};

// NormKind's equation, of rows [dim].
struct Norm {
  std::span<const float> weight = {};  // [dim]
  float eps = 0;
  NormKind kind = NormKind::kRms;
  std::span<const float> bias = {};  // [dim], with kLayer
};

// What a feed-forward part multiplies with: y = Wdown (act(Wgate h) * Wup h), or y = Wdown act(Wup h) without a gate.
struct FeedForwardPart {
  Activation activation = Activation::kSilu;
  const PackedMatrix* gate = nullptr;
  const PackedMatrix* up = nullptr;
  const PackedMatrix* down = nullptr;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // For logs and the session's fingerprint: instruction set and accuracy, for example "avx512bf16 fast".
  virtual std::string_view fingerprint() const = 0;

  // The host's compute threads, free between two ops: policies run on them.
  virtual Parallel& host_threads() = 0;

  // Repacks a matrix once, at load. `bias` [rows], or empty, is added to what it yields.
  virtual std::unique_ptr<PackedMatrix> Pack(const TensorView& tensor, std::span<const float> bias = {}) = 0;

  // x [T, dim] = scale * rows of `table` [vocab, dim], dequantised exactly, or x += . REQUIRES: tokens in 0..vocab-1.
  enum class Into { kSet, kAdd };
  virtual void Embed(const TensorView& table, std::span<const int32_t> tokens, float scale, Into into,
                     std::span<float> x) = 0;

  // y [T, out] = x [T, in] W^T, or y += ; see Accuracy. Several matrices of the same `in` are multiplied in one go, x
  // read and rounded once, their outputs beside each other: out is the sum of their rows.
  virtual void Linear(std::span<const PackedMatrix* const> w, std::span<const float> x, int32_t tokens, Into into,
                      std::span<float> y) = 0;
  // y = norm(x) W^T.
  virtual void NormLinear(const Norm& norm, std::span<const PackedMatrix* const> w, std::span<const float> x,
                          int32_t tokens, std::span<float> y) = 0;
  void Linear(const PackedMatrix& w, std::span<const float> x, int32_t tokens, Into into, std::span<float> y) {
    const PackedMatrix* const one = &w;
    Linear({&one, 1}, x, tokens, into, y);
  }

  // y [T, dim] = part(h), or y += , with h = norm(x), or x where there is no norm. y may be x.
  virtual void FeedForward(const Norm* norm, const FeedForwardPart& part, std::span<const float> x, int32_t tokens,
                           Into into, std::span<float> y) = 0;

  // Norms in place `each` vectors, one after another, of every row: x + row * stride.
  virtual void Normalise(const Norm& norm, int32_t rows, int32_t each, int64_t stride, float* x) = 0;

  // x += y.
  virtual void Add(std::span<const float> y, std::span<float> x) = 0;

  // x = cap * tanh(x / cap). What is not a number stays so.
  virtual void Cap(float cap, std::span<float> x) = 0;

  // Of each row of `scores` [T, experts] the `used` largest, largest first, of equal ones the first: which they are,
  // and the softmax over them, into chosen and weights [T, used]. What is not a number is larger than what is, and
  // leaves its row no weight that is one.
  virtual void Route(std::span<const float> scores, int32_t experts, int32_t used, std::span<int32_t> chosen,
                     std::span<float> weights) = 0;

  // cos and sin of 16-slot tiles, [ceil(slots/16)][rotary_dims/2][2][16], for lanes that share positions: worth
  // computing once per step instead of once per lane and layer. Attend computes the same bits itself where a task has
  // none. By the first set of frequencies.
  virtual void Angles(const Rope& rope, std::span<const int32_t> position, std::span<float> angles) = 0;

  virtual void Store(const Rope& rope, std::span<const StoreTask> tasks) = 0;

  // Rows of slots first .. first + count - 1 as floats: K, unrotated, or V; out [count, d]. What a slot holds that was
  // never written is unspecified. Called on any of the host's threads.
  enum class Part { kKeys, kValues };
  virtual void Read(const LaneStorage& lane, Part part, int32_t first, int32_t count, float* out) const = 0;

  // One move after another.
  virtual void Move(const LaneStorage& lane, std::span<const SlotMove> moves) = 0;

  // `group` = G. Lanes of tasks that bring K and V are named once. `done` is called once for each task, when all that
  // it writes is written: on one of the host's threads, whose number it gets, soon after the lane was read, while other
  // tasks may still be attended.
  using TaskDone = absl::FunctionRef<void(size_t task, int32_t thread)>;
  virtual void Attend(const Rope& rope, int32_t group, std::span<const AttendTask> tasks, TaskDone done) = 0;
  void Attend(const Rope& rope, int32_t group, std::span<const AttendTask> tasks) {
    Attend(rope, group, tasks, [](auto...) {});
  }
};

}  // namespace ebb

#endif  // EBB_ENGINE_OPS_H_
