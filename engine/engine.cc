#include "engine/engine.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/cache/evictor.h"
#include "engine/cache/page_pool.h"
#include "engine/evict_request.h"
#include "engine/machine.h"
#include "engine/model/gguf.h"
#include "engine/ops/cpu/ops_cpu.h"
#include "engine/session_on_engine.h"
#include "engine/transformer.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr int32_t kHeadDimMax = 512;  // of ops/cpu

// The smallest power of two that holds one tile of the largest format (F32 with RK), so that every format fits a page.
int64_t PageBytes(int32_t head_dim) {
  const KvFormat largest = {.type = KvType::kF32, .rope_cache = RopeCache::kRk, .head_dim = head_dim};
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(largest.tile_bytes())));
}

// FNV-1a over what the forward pass reads of the metadata, and names, shapes and the first bytes of every tensor:
// enough to tell two models apart without reading gigabytes.
uint64_t ModelHash(const GgufFile& file, const ModelConfig& config) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](const char* bytes, size_t size) {
    for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<unsigned char>(bytes[i])) * 0x100000001b3;
  };
  const int32_t numbers[] = {config.heads, config.kv_heads, config.rotary_dims,
                             static_cast<int32_t>(config.rope_pairs)};
  add(reinterpret_cast<const char*>(numbers), sizeof numbers);
  add(reinterpret_cast<const char*>(&config.norm_eps), sizeof config.norm_eps);
  add(reinterpret_cast<const char*>(config.rope_frequencies.data()), config.rope_frequencies.size() * sizeof(double));
  for (const GgufTensor& tensor : file.tensors()) {
    add(tensor.name.data(), tensor.name.size());
    add(reinterpret_cast<const char*>(tensor.shape.data()), sizeof tensor.shape);
    add(reinterpret_cast<const char*>(tensor.data.data()), std::min<size_t>(tensor.data.size(), 4096));
  }
  return hash;
}

// What the file says about itself but this engine could not hold to.
absl::Status CheckModel(const GgufFile& file, const ModelConfig& config, const Tokenizer& tokenizer) {
  if (config.head_dim > kHeadDimMax) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("%s: heads of %d components; at most %d are supported", file.name(), config.head_dim,
                                  kHeadDimMax),
                  {.reason = "UNSUPPORTED_MODEL_FEATURE"});
  }
  if (tokenizer.size() != config.vocab) {
    return Refuse(
        absl::StatusCode::kDataLoss,
        absl::StrFormat("%s: tokenizer.ggml.tokens: expected one for each of the embedding's %d rows, found %d",
                        file.name(), config.vocab, tokenizer.size()),
        {.reason = "MODEL_DAMAGED"});
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const EngineOptions& options) {
  if (options.threads < 0 || options.threads > 256) {
    return RefuseField("THREADS_OUT_OF_RANGE", "model.threads",
                       absl::StrFormat("%d is not in 0..256", options.threads));
  }
  if (options.step_tokens_max < 1 || options.step_tokens_max > 65536) {
    return RefuseField("STEP_TOKENS_OUT_OF_RANGE", "scheduling.step_tokens_max",
                       absl::StrFormat("%d is not in 1..65536", options.step_tokens_max));
  }
  if (options.arena_bytes < 0) {
    return RefuseField("NEGATIVE_VALUE", "cache.arena", absl::StrFormat("%d is below 0", options.arena_bytes));
  }
  return absl::OkStatus();
}

class EngineOnOps final : public Engine {
 public:
  EngineOnOps(const EngineOptions& options, GgufFile file, ModelConfig config, const Weights& weights,
              std::unique_ptr<const Tokenizer> tokenizer, std::unique_ptr<Ops> ops)
      : options_(options),
        file_(std::move(file)),
        config_(std::move(config)),
        tokenizer_(std::move(tokenizer)),
        ops_(std::move(ops)),
        transformer_(config_, weights, *ops_),
        scratch_(ops_->host_threads().threads()) {
    fingerprint_ = absl::StrFormat("%s %016x %s", std::filesystem::path(file_.name()).filename().string(),
                                   ModelHash(file_, config_), ops_->fingerprint());
  }

  absl::Status MakeArena() {
    const int64_t usable = UsableMemory();  // 0: unknown
    const int64_t bytes = options_.arena_bytes > 0 ? options_.arena_bytes : usable / 2;
    // The system promises more than it has, and ends who takes it at its word: an arena that does not fit is found out
    // here, not by its last session.
    if (usable > 0 && bytes > usable) {
      return Refuse(
          absl::StatusCode::kUnavailable,
          absl::StrFormat("cache.arena: %d bytes are asked for, and %d are left beside the model", bytes, usable),
          {.reason = "ARENA_UNAVAILABLE", .field = "cache.arena"});
    }
    EBB_ASSIGN(pool_, PagePool::Create(bytes, PageBytes(config_.head_dim)));
    return absl::OkStatus();
  }

  const ModelConfig& config() const override { return config_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  std::string fingerprint() const override { return fingerprint_; }
  int32_t threads() const override { return ops_->host_threads().threads(); }
  int32_t step_tokens_max() const override { return options_.step_tokens_max; }
  EngineMemory memory() const override {
    return {.page_bytes = pool_->page_bytes(),
            .pages_total = pool_->pages_total(),
            .pages_reserved = pool_->pages_total() - pool_->pages_free(),
            .weight_bytes = transformer_.weight_bytes()};
  }

  absl::StatusOr<int64_t> PagesFor(const SessionOptions& options) const override {
    EBB_ASSIGN(const CacheShape shape, Shape(options));
    return shape.pages();
  }

  absl::StatusOr<std::unique_ptr<Session>> OpenSession(const SessionOptions& options) override {
    EBB_ASSIGN(const CacheShape shape, Shape(options));
    EBB_ASSIGN(PageLease lease, pool_->Reserve(shape.pages()));
    SessionCache cache(shape, std::move(lease), options.policy);
    return std::make_unique<SessionOnEngine>(options.policy, std::move(cache), options.block_size_max,
                                             LengthLimit(options.policy));
  }

  void Run(std::span<BatchRow> rows) override {
    Seat(rows);
    const std::span<const float> logits = transformer_.Forward(sequences_);
    size_t at = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t wanted = (rows[i].tokens.size() - sequences_[i].logits_from) * config_.vocab;
      rows[i].logits = logits.subspan(at, wanted);
      at += wanted;
      rows[i].status = rows[i].prompt_ends ? Of(*rows[i].session).EndPrompt() : absl::OkStatus();
    }
    EvictAll(rows);
  }

  absl::StatusOr<EvictReport> Evict(Session& session, const EvictRequest& request) override {
    return CarryOut(request, Of(session));
  }

  absl::StatusOr<std::vector<LaneReport>> Describe(const Session& session, std::optional<int32_t> layer,
                                                   std::optional<int32_t> head) const override {
    EBB_TRY(CheckIndex("layer", layer, config_.layers));
    EBB_TRY(CheckIndex("head", head, config_.kv_heads));
    const SessionOnEngine& of = static_cast<const SessionOnEngine&>(session);
    std::vector<LaneReport> lanes;
    for (int32_t l = layer.value_or(0); l <= layer.value_or(config_.layers - 1); ++l) {
      for (int32_t h = head.value_or(0); h <= head.value_or(config_.kv_heads - 1); ++h)
        lanes.push_back(DescribeLane(of, l, h));
    }
    return lanes;
  }

  absl::Status ShiftPositions(Session& session, int32_t from, int32_t delta) override {
    return Of(session).ShiftPositions(from, delta);
  }

  absl::StatusOr<int32_t> RemovePositions(Session& session, int32_t start, int32_t end) override {
    if (start < 0 || start > end) {
      return RefuseField("RANGE_EMPTY", "range", absl::StrFormat("[%d, %d) is no range of positions", start, end));
    }
    SessionOnEngine& of = Of(session);
    int32_t most = 0;
    std::vector<int32_t> slots;
    for (SlotMap& map : of.cache().maps()) {
      slots.clear();
      for (int32_t slot = 0; slot < map.end(); ++slot) {
        const int32_t position = map.position()[slot];
        if (position >= 0 && position >= start && position < end) slots.push_back(slot);
      }
      map.Free(slots);
      most = std::max(most, static_cast<int32_t>(slots.size()));
    }
    of.CountEvicted(most);
    return most;
  }

 private:
  // One slot map of one session in the batch, to be pruned after the step.
  struct Pruned {
    size_t row = 0;
    SlotMap* map = nullptr;
    const ValidSpec* policy = nullptr;
    Evicted evicted = {};
  };

  static SessionOnEngine& Of(Session& session) { return static_cast<SessionOnEngine&>(session); }

  static absl::Status CheckIndex(const char* field, std::optional<int32_t> index, int32_t count) {
    if (!index || (*index >= 0 && *index < count)) return absl::OkStatus();
    return RefuseField("LANE_OUT_OF_RANGE", field, absl::StrFormat("%d is not in 0..%d", *index, count - 1));
  }

  // What a session may hold while its policy does not evict: `full`, or a ratio that waits for the first prompt's end.
  int32_t LengthLimit(const ValidSpec& policy) const {
    return policy.trigger.budget > 0 ? policy.trigger.budget : config_.context;
  }

  absl::StatusOr<CacheShape> Shape(const SessionOptions& options) const {
    if (options.block_size_max < 1 || options.block_size_max > options_.step_tokens_max) {
      return RefuseField("BLOCK_SIZE_OUT_OF_RANGE", "block_size",
                         absl::StrFormat("%d is not in 1..%d", options.block_size_max, options_.step_tokens_max));
    }
    const ValidSpec& policy = options.policy;
    KvFormat format = {.type = policy.kv_type, .rope_cache = policy.rope_cache, .head_dim = config_.head_dim};
    format.page_tiles = static_cast<int32_t>(pool_->page_bytes() / format.tile_bytes());
    Trigger trigger = policy.trigger;
    trigger.budget = LengthLimit(policy);
    const int64_t capacity = policy.evicts ? Capacity(trigger, options.block_size_max) : trigger.budget;
    EBB_CHECK(capacity > 0);
    EBB_CHECK(capacity < (int64_t{1} << 30));  // Resolve bounds what it is made of
    return CacheShape{.layers = config_.layers,
                      .kv_heads = config_.kv_heads,
                      .format = format,
                      .capacity = static_cast<int32_t>(capacity),
                      .block_max = options.block_size_max};
  }

  // Appends every row's tokens to its session and lays out the step.
  void Seat(std::span<BatchRow> rows) {
    sequences_.clear();
    size_t tokens = 0;
    for (BatchRow& row : rows) {
      SessionOnEngine& session = Of(*row.session);
      const auto count = static_cast<int32_t>(row.tokens.size());
      EBB_CHECK(std::none_of(rows.data(), &row, [&](const BatchRow& other) { return other.session == row.session; }));
      EBB_CHECK(session.CanAppend(count).ok());
      for (const int32_t token : row.tokens) EBB_CHECK(token >= 0 && token < config_.vocab);
      session.Append(row.tokens);
      tokens += row.tokens.size();
      const int32_t from = row.want == Want::kAll ? 0 : row.want == Want::kLast ? count - 1 : count;
      sequences_.push_back({.cache = &session.cache(),
                            .scorer = session.policy().scorer.get(),
                            .tokens = session.log().last(row.tokens.size()),
                            .logits_from = from});
    }
    EBB_CHECK(tokens > 0);
    EBB_CHECK(static_cast<int64_t>(tokens) <= options_.step_tokens_max);
  }

  void EvictAll(std::span<BatchRow> rows) {
    pruned_.clear();
    for (size_t i = 0; i < rows.size(); ++i) {
      SessionOnEngine& session = Of(*rows[i].session);
      for (SlotMap& map : session.cache().maps()) {
        if (IsDue(session.policy(), map)) pruned_.push_back({.row = i, .map = &map, .policy = &session.policy()});
      }
    }
    // On every thread, whichever lanes it will get: none allocates while it works.
    int32_t slots = 0;
    for (const Pruned& lane : pruned_) slots = std::max(slots, lane.map->capacity());
    for (EvictScratch& scratch : scratch_) scratch.Reserve(slots);
    ops_->host_threads().For(static_cast<int64_t>(pruned_.size()), [this](int64_t item, int32_t thread) {
      Pruned& lane = pruned_[item];
      lane.evicted = EvictAfterStep(*lane.policy, *lane.map, scratch_[thread]);
    });
    for (BatchRow& row : rows) row.evicted = 0, row.evicted_slots = 0, row.nan_scores = 0;
    for (const Pruned& lane : pruned_) {
      BatchRow& row = rows[lane.row];
      const SessionCache& cache = Of(*row.session).cache();
      row.evicted = std::max(row.evicted, lane.evicted.tokens);
      row.evicted_slots += int64_t{lane.evicted.tokens} * (cache.maps().size() == 1 ? cache.shape().lanes() : 1);
      row.nan_scores += lane.evicted.nan_scores;
    }
    for (BatchRow& row : rows) Of(*row.session).CountEvicted(row.evicted);
  }

  static LaneReport DescribeLane(const SessionOnEngine& session, int32_t layer, int32_t head) {
    const SlotMap& map = session.cache().map(layer, head);
    LaneReport report = {.layer = layer, .head = head};
    std::vector<float> keep;
    if (session.policy().evicts) {
      keep.resize(map.end());
      session.policy().scorer->Score(map.view(session.policy().sinks, session.policy().recent), map.state(), keep);
    }
    for (int32_t slot = 0; slot < map.end(); ++slot) {
      if (map.token()[slot] < 0) continue;
      report.slots.push_back(slot);
      report.tokens.push_back(map.token()[slot]);
      report.positions.push_back(map.position()[slot]);
      if (!keep.empty()) report.scores.push_back(keep[slot]);
    }
    return report;
  }

  EngineOptions options_;
  GgufFile file_;  // the embedding is read from its mapping
  ModelConfig config_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Ops> ops_;
  Transformer transformer_;
  std::unique_ptr<PagePool> pool_ = {};
  std::string fingerprint_ = {};
  std::vector<EvictScratch> scratch_;  // one per thread
  std::vector<Sequence> sequences_ = {};
  std::vector<Pruned> pruned_ = {};
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Open(const EngineOptions& options) {
  EBB_TRY(CheckOptions(options));
  EBB_ASSIGN(GgufFile file, GgufFile::Open(options.model_path));
  EBB_ASSIGN(ModelConfig config, ReadConfig(file));
  EBB_ASSIGN(const Weights weights, FindWeights(file, config));
  EBB_ASSIGN(std::unique_ptr<const Tokenizer> tokenizer, Tokenizer::FromGguf(file));
  EBB_TRY(CheckModel(file, config, *tokenizer));
  const int32_t threads = options.threads > 0 ? options.threads : UsableThreads();
  EBB_ASSIGN(std::unique_ptr<Ops> ops, MakeCpuOps({.isa = options.isa, .threads = threads}));
  auto engine = std::make_unique<EngineOnOps>(options, std::move(file), std::move(config), weights,
                                              std::move(tokenizer), std::move(ops));
  EBB_TRY(engine->MakeArena());
  return engine;
}

}  // namespace ebb
