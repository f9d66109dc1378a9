// One model on one device: prefill, decode, observation, selection and replacement in place as a sequence of launches.
//
//   fill_holes, where a prompt left many    all lanes at once
//   place                                   every session's tokens into free slots, all lanes at once
//   x = embed(tokens)                                                            [T, dim]
//   x += embed_positions, x = norm(x)       where the model has learned positions, or a norm there
//   for each layer:
//       q, k, v = Wq h, Wk h, Wv h with h = norm(x)                              [T, (heads + 2 kv_heads) * d]
//       q, k head by head under norms of their own, where the model has them; so is what is added to x
//       store k, v; attend       prompts' blocks: lay; attend_block; attend_merge; observe_block
//       x += Wo attended;  x += Wdown (act(Wgate h) * Wup h) with h = norm(x); without a gate Wdown act(Wup h); of
//       models that have it beside attention this comes first
//           or, of a mixture: router; route; the same of each row's experts, sorted by expert; combine
//   logits = Whead norm(x[wanted]); the largest of each, or the largest few, and their mass
//   caote; reduce; likeness; chance; loss; evict                      all lanes at once
//
// The host copies in the step's tokens and a few numbers of each session, launches, and copies out what was asked for:
// of who leaves nothing, unless a row wants to know; then it comes with the rest. A decode step's launches differ from
// those of the step before in nothing but what lies in the memory they read: from the second of a shape on they are
// replayed from a recording. Rows of a session that brings one token are multiplied by linear_rows and attend each for
// itself; those of longer blocks are multiplied by linear_tiles or a library, are laid out for tensor cores and attend
// together: a row's bits follow from its own block, not from who else is in the step.
//
// Lanes of layers with a window hold other numbers of tokens than the rest: all of one kind go together
// (gpu_session.h).
//
// Beside the engine of the CPU (engine.h); placed_engine.h makes one of both. Used by one thread at a time.

#ifndef EBB_ENGINE_GPU_GPU_ENGINE_H_
#define EBB_ENGINE_GPU_GPU_ENGINE_H_

#include <compare>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gpu/block_products.h"
#include "engine/gpu/gpu.h"
#include "engine/gpu/gpu_model.h"
#include "engine/gpu/gpu_session.h"
#include "engine/gpu/product_library.h"
#include "engine/model/architecture.h"
#include "engine/row_facts.h"
#include "policies/spec.h"

namespace ebb {

// How kernels call it.
gpu::Element ElementOf(KvType type);

struct GpuEngineOptions {
  int32_t device = 0;
  int64_t arena_bytes = 0;  // of K and V; 0: nine tenths of what is free beside the weights
  KvType kv_type = KvType::kBf16;
  // Shapes of decode steps that are remembered, and recorded where they come again; of more, the one longest unused is
  // forgotten. 0: each step launches anew, to compare with. The number of rows changes by one as sessions come and go,
  // and each comes in two kinds, as what a step yields is measured or weighed now and then: so many for 32 rows, up to
  // which weights are read once. What a recording, of some ten launches a layer, takes of the device's memory was not
  // measured.
  int32_t recordings_max = 64;
  OpenProductLibrary products = NoProductLibrary;  // that multiplies prompts' blocks (block_products.h)
  bool own_where_unfit = false;  // then the own kernels multiply where that is missing or unfit; else it is refused
};

// What leaves the device of a session's rows. Of kFacts the whole last row stays with the session (GpuSession::Logits).
enum class GpuWant { kToken, kFacts, kLast, kAll };

// One session's share of a step.
struct GpuRow {
  GpuSession* session = nullptr;         // each at most once
  std::span<const int32_t> tokens = {};  // ids in 0 .. vocab - 1
  bool prompt_ends = false;              // the session's first, with these tokens
  GpuWant want = GpuWant::kLast;         // logits of none, facts of the last's, of the last, or of every token
  gpu::DrawNeeds needs = {};             // of kFacts: which; REQUIRES: at least one of the largest logits
  bool tells = false;                    // who leaves
  bool measures = false;                 // what leaves with them
  // Written by Run:
  std::span<const float> logits = {};        // [0, 1 or T, vocab], valid until the next Run
  RowFacts facts = {};                       // alike; empty unless they were wanted
  int32_t next = 0;                          // the first of the last token's largest logits
  std::span<const int32_t> left = {};        // [lanes, drop] tokens, by slot; empty where nobody leaves
  std::span<const gpu::LaneLoss> loss = {};  // [lanes]; alike
};

class GpuEngine {
 public:
  // `table` outlives it. As Gpu::Open and GpuModel::Upload; INVALID_ARGUMENT ARENA_TOO_SMALL; GPU_OUT_OF_MEMORY before
  // anything is copied, with the bytes of all that stays there; as Gpu::Rehearse, of all kernels that steps may launch;
  // as GpuEngineOptions::products and BlockProducts::Make.
  static absl::StatusOr<std::unique_ptr<GpuEngine>> Open(const gpu::Table& table, const ModelConfig& config,
                                                         const Weights& weights, const GpuEngineOptions& options);

  // A model of that shape with random weights (GpuModel::Random), and random numbers for K and V, unless they are
  // bytes: for measuring. As Open.
  static absl::StatusOr<std::unique_ptr<GpuEngine>> OpenRandom(const gpu::Table& table, const ModelConfig& config,
                                                               const GpuEngineOptions& options);

  const ModelConfig& config() const { return model_.config; }
  int64_t weight_bytes() const { return model_.bytes; }  // the embedding's among them
  int64_t embedding_bytes() const { return model_.embedding.bytes(); }
  // As GpuModel::MultipliedBytes.
  int64_t multiplied_bytes(int64_t rows) const { return model_.MultipliedBytes(rows); }
  int64_t pages_free() const { return pages_.free(); }
  int64_t pages_total() const { return pages_total_; }
  int64_t page_bytes() const { return page_bytes_; }
  KvType kv_type() const { return options_.kv_type; }
  // Whether a library multiplies, and in words, which and how, or why the own kernels do.
  bool by_library() const { return products_.has_value(); }
  const std::string& products() const { return products_text_; }
  const Gpu& gpu() const { return *gpu_; }
  // GpuModel::head_order, of the queries and keys of its sessions.
  const std::vector<int32_t>& head_order() const { return model_.head_order; }
  std::byte* page(int32_t page) const { return arena_.as<std::byte>() + page * page_bytes_; }

  // It goes before the engine does. `block_max`: most tokens of a step. As GpuSession::Open; a policy of another type
  // of K and V than the arena's is GPU_POLICY_UNSUPPORTED.
  absl::StatusOr<std::unique_ptr<GpuSession>> OpenSession(const ValidSpec& policy, int32_t block_max);
  // The same with lanes of so many slots.
  absl::StatusOr<std::unique_ptr<GpuSession>> OpenSession(const ValidSpec& policy, int32_t block_max,
                                                          const OfSight<int32_t>& slots);
  GpuSession::Shape ShapeOf(int32_t block_max, const OfSight<int32_t>& slots) const;
  GpuSight SightOf(int32_t layer) const { return model_.rope.window(layer) > 0 ? GpuSight::kWindow : GpuSight::kAll; }

  // One step. UNAVAILABLE GPU_FAULT: the step's sessions are lost, and say so from then on. RESOURCE_EXHAUSTED
  // GPU_OUT_OF_MEMORY: there is no room for a step of this size, whatever was kept of the steps before (LetGo), and
  // nothing happened. REQUIRES: every row's session CanAppend its tokens.
  absl::Status Run(std::span<GpuRow> rows);

  // Run in two parts, between which the host does as it likes: the device computes. `rows` outlive the second, which
  // comes next, unless the first refuses.
  absl::Status Start(std::span<GpuRow> rows);
  absl::Status Finish();

  // Gives back the device's memory that steps work in; the next takes what it needs. False: there was none. UNAVAILABLE
  // GPU_FAULT.
  absl::StatusOr<bool> LetGo();

  // What the step started last lacked and could do without, in words; empty: nothing.
  const std::string& shortage() const { return shortage_; }
  // Steps that the host could not pin memory for, and those that the device had no memory to record (ShortSteps).
  int64_t steps_unpinned() const { return steps_unpinned_; }
  int64_t steps_unrecorded() const { return steps_unrecorded_; }
  // Steps that were replayed from a recording.
  int64_t replays() const { return replays_; }
  // What the device took for the last step, from its first copy in to its last copy out.
  double step_seconds() const { return step_seconds_; }
  // Memory of the device that steps work in, a library's workspace among it.
  int64_t working_bytes() const { return working_bytes_ + (products_ ? products_->workspace_bytes() : 0); }

 private:
  // Memory that grows to the largest step seen.
  struct Buffer {
    GpuMemory memory = {};
    template <typename T>
    T* as() const {
      return memory.as<T>();
    }
  };
  // Decode steps that are equal here have the same launches.
  struct Launches {
    int32_t rows = 0;                 // tokens of all sessions
    OfSight<int32_t> slots_max = {};  // of sessions that bring one token
    int32_t largest = 0;              // how many of a row, 0 where none asks
    bool weighs = false;              // a row's mass, any
    bool observes = false;            // a session that brings one token, any
    int32_t tracks_modified = 0;      // the most of a session that modifies its scores, 0 where none does
    bool reduces = false;             // several tracks to one, any
    bool likens = false;              // keys, any
    bool draws = false;               // by chance, any
    bool measures = false;            // what leaves, any
    auto operator<=>(const Launches&) const = default;
  };
  // The rows of one step, sorted: those that bring one token come first.
  struct Step : Launches {
    struct Run {
      int64_t first = 0, count = 0;
    };
    struct Kept {
      int32_t row = 0;
      float* room = nullptr;
    };
    std::vector<size_t> order = {};  // of the caller's rows
    OfSight<std::vector<gpu::SessionView>> sessions = {};
    std::vector<int32_t> tokens = {};        // [T]
    std::vector<int32_t> row_session = {};   // [T]
    std::vector<int32_t> wanted = {};        // rows whose logits are computed, ascending
    std::vector<Run> copied = {};            // of these, those whose logits leave the device
    std::vector<Kept> kept = {};             // and those that stay with their sessions
    std::vector<gpu::DrawNeeds> needs = {};  // [wanted]
    int32_t facts_copied = 0;                // of these, up to the last of which facts leave it
    int32_t single = 0;                      // rows of sessions that bring one token
    OfSight<bool> spreads = {};              // a session whose tokens are to close up, any
    bool blocks_observe = false;             // of the others, any
    OfSight<int32_t> block_slots_max = {};   // of these, who bring
    int32_t block_tokens_max = 0;            // so many
    OfSight<int32_t> block_strips = {};      // of all their lanes of a KV head
    // Of each session, where what it asks for of those who leave lies among what the device tells.
    std::vector<Run> left = {}, losses = {};
    int64_t left_count = 0, loss_count = 0;

    int32_t session_count() const { return static_cast<int32_t>(sessions.of[0].size()); }
    int32_t blocks() const { return session_count() - single; }
    bool decodes() const { return single == rows; }
  };

  struct Remembered {
    GpuRecording recording = {};  // empty where the shape was seen once
    int64_t used = 0;             // the larger, the later
  };

  // What multiplies prompts' blocks: a library, or nothing, and why.
  struct Multiplier {
    std::unique_ptr<ProductLibrary> library = {};
    std::optional<BlockProducts> products = {};  // of the library, once it was tried
    std::string why_own = "model.gpu_products is own";
  };

  GpuEngine(std::unique_ptr<Gpu> gpu, GpuModel model, Multiplier multiplier, GpuMemory arena, int32_t pages,
            GpuMoment begun, GpuMoment done, const GpuEngineOptions& options)
      : gpu_(std::move(gpu)),
        model_(std::move(model)),
        products_(std::move(multiplier.products)),
        products_text_(products_ ? products_->Describe() : "own kernels: " + multiplier.why_own),
        arena_(std::move(arena)),
        pages_(pages),
        pages_total_(pages),
        page_bytes_(arena_.bytes() / pages),
        options_(options),
        begun_(std::move(begun)),
        done_(std::move(done)) {
    SortLanes();
  }

  static absl::StatusOr<Multiplier> FindMultiplier(const Gpu& gpu, const GpuEngineOptions& options);
  static absl::StatusOr<Multiplier> TryMultiplier(const Gpu& gpu, const GpuModel& model,
                                                  const GpuEngineOptions& options, Multiplier multiplier);
  static absl::StatusOr<std::unique_ptr<GpuEngine>> Make(std::unique_ptr<Gpu> gpu, Multiplier multiplier,
                                                         GpuModel model, const GpuEngineOptions& options);
  void SortLanes();
  absl::Status Rehearse();
  Step Plan(std::span<const GpuRow> rows) const;
  absl::Status Reserve(const Step& step);
  absl::Status ReserveAll(const Step& step);
  absl::Status ReserveSplits(const Step& step);
  absl::Status ReserveExperts(const Step& step);
  absl::Status GrowCounters(Buffer& buffer, int64_t count);
  void PointToWhatIsTold(Step& step) const;
  absl::Status Grow(Buffer& buffer, int64_t bytes);
  absl::Status GrowTold(Buffer& buffer, int64_t bytes);
  absl::Status Renew(Buffer& buffer, int64_t bytes);
  int64_t RoomFor(const Step& step) const;  // rows that products write to, with those that nobody reads
  void NormRows(const GpuModel::Norm& norm, const float* x, float* y, int32_t rows) const;
  void Normalise(const GpuModel::Norm& norm, const Step& step) const;
  struct Product {
    const DeviceMatrix& w;
    const GpuMemory* bias;
    float* y;
  };
  void Linear(std::initializer_list<Product> products, const float* x, int64_t y_stride, bool add, const Step& step);
  void AddProduct(const DeviceMatrix& w, const GpuMemory& bias, const Buffer& from, const GpuMemory& post_norm,
                  const Step& step);
  gpu::RopeArgs Rotation(int32_t layer) const;
  int32_t WindowOf(int32_t layer) const;
  float AttentionScale() const;
  // Where a step's views of one kind lie, behind each other; null before there are any, as in a rehearsal.
  gpu::SessionView* SessionsOf(const Step& step, GpuSight sight) const {
    auto* const views = sessions_.as<gpu::SessionView>();
    return views == nullptr || sight == GpuSight::kAll ? views : views + step.session_count();
  }
  gpu::CacheArgs CacheOf(const Step& step, GpuSight sight) const;
  void Embed(const Step& step) const;
  void Attend(int32_t layer, const Step& step);
  void AttendBlocks(gpu::AttendArgs attend, GpuSight sight, const Step& step) const;
  void FeedForward(const GpuModel::Layer& layer, const Step& step);
  void AddExperts(const GpuModel::Layer& layer, const Step& step);
  void Activate(bool is_gated, int32_t rows) const;
  void Head(const Step& step) const;
  void LaunchEviction(const Step& step, GpuSight sight) const;
  void Launch(const Step& step);
  absl::Status LaunchRecorded(const Step& step);
  void ForgetLongestUnused();
  absl::Status Replay(Remembered& shape, const Step& step);
  absl::Status Compute(const Step& step);
  static int64_t InputBytes(const Step& step);
  absl::Status CopyInputs(const Step& step);
  void HostRoom(GpuHostMemory& buffer, int64_t bytes);
  void PinRoom(GpuHostMemory& buffer, int64_t bytes);
  absl::Status Failed(absl::Status status);

  std::unique_ptr<Gpu> gpu_;
  GpuModel model_;
  std::optional<BlockProducts> products_;
  std::string products_text_;
  GpuMemory arena_;
  GpuPages pages_;
  int64_t pages_total_;
  int64_t page_bytes_;
  GpuEngineOptions options_;
  OfSight<GpuSession::Lanes> lanes_ = {};
  std::vector<int32_t> order_ = {};  // GpuSession::Shape
  Buffer sessions_ = {}, tokens_ = {}, row_session_ = {};
  Buffer x_ = {}, normed_ = {}, qkv_ = {}, attended_ = {}, gate_ = {}, up_ = {};  // [T, ...] floats
  // Of a mixture: [T, experts] floats; RouteArgs, by which gate_ and up_ are [T * used, ...]; CombineArgs.
  Buffer router_scores_ = {}, expert_ = {}, expert_weight_ = {}, place_ = {}, row_of_ = {}, expert_tiles_ = {};
  Buffer parts_ = {};
  Buffer rounded_ = {};  // [T, ...] in BF16, of prompts' blocks what a library multiplies next
  Buffer linear_partial_ = {}, linear_arrived_ = {};                                                // LinearArgs
  Buffer attend_arrived_ = {};                                                                      // AttendArgs
  Buffer partial_sums_ = {}, partial_stats_ = {}, stats_ = {}, scores_ = {};                        // AttendArgs
  Buffer laid_q_ = {}, laid_kv_ = {}, laid_position_ = {}, laid_earliest_ = {}, laid_latest_ = {};  // BlockArgs
  Buffer logits_ = {}, next_ = {};                   // [rows wanted, vocab] floats, [rows wanted]
  Buffer greedy_parts_ = {}, greedy_arrived_ = {};   // GreedyArgs
  Buffer largest_ = {}, largest_scratch_ = {};       // LargestArgs
  Buffer needs_ = {}, mass_parts_ = {}, mass_ = {};  // MassArgs
  Buffer left_ = {}, losses_ = {};                   // SessionView.left and .loss of all sessions that ask
  std::set<Buffer*> grown_ = {};                     // of the buffers above, those that hold memory
  // Recordings name the buffers above, so none outlives a buffer that grows.
  std::map<Launches, Remembered> recordings_ = {};
  int64_t uses_ = 0;          // of any of them
  int64_t records_from_ = 0;  // of uses_; before, they lack memory
  int64_t replays_ = 0;
  GpuMoment begun_ = {}, done_ = {};  // of the step that runs
  double step_seconds_ = 0;
  int64_t working_bytes_ = 0;
  GpuHostMemory host_inputs_ = {};  // sessions, tokens, row_session, needs
  GpuHostMemory host_logits_ = {};
  GpuHostMemory host_next_ = {};
  GpuHostMemory host_largest_ = {};
  GpuHostMemory host_mass_ = {};
  GpuHostMemory host_left_ = {};
  GpuHostMemory host_losses_ = {};
  std::string shortage_ = {};
  int64_t steps_ = 0, steps_unpinned_ = 0, steps_unrecorded_ = 0;
  int64_t pins_from_ = 0;     // of steps_; before, the host lacks memory that can be pinned
  bool is_unpinned_ = false;  // something of the step that begins
  Step step_ = {};            // that runs, for
  std::span<GpuRow> rows_ = {};
};

}  // namespace ebb

#endif  // EBB_ENGINE_GPU_GPU_ENGINE_H_
