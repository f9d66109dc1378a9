#include "engine/engine.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/cache/evictor.h"
#include "engine/cache/lane_tiles.h"
#include "engine/cache/page_pool.h"
#include "engine/edit_session.h"
#include "engine/evict_request.h"
#include "engine/lane_attention.h"
#include "engine/machine.h"
#include "engine/model/calibration_file.h"
#include "engine/model/fingerprint.h"
#include "engine/model/gguf.h"
#include "engine/model/head_gates_file.h"
#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/ops_cpu.h"
#include "engine/parallel.h"
#include "engine/policy_swap.h"
#include "engine/session_digest.h"
#include "engine/session_on_engine.h"
#include "engine/session_shape.h"
#include "engine/snapshot/session_image.h"
#include "engine/steps_sum.h"
#include "engine/transformer.h"
#include "policies/allocation.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

// The smallest power of two that holds one tile of the largest format (F32 with RK), so that every format fits a page.
int64_t PageBytes(int32_t head_dim) {
  const KvFormat largest = {.type = KvType::kF32, .rope_cache = RopeCache::kRk, .head_dim = head_dim};
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(largest.tile_bytes())));
}

// What the file says about itself but this engine could not hold to.
absl::Status CheckModel(const GgufFile& file, const ModelConfig& config, const Tokenizer& tokenizer) {
  if (config.head_dim > cpu::kMaxHeadDim) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("%s: heads of %d components; at most %d are supported", file.name(), config.head_dim,
                                  cpu::kMaxHeadDim),
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
  if (options.threads < 0 || options.threads > kThreadsMax) {
    return RefuseField("THREADS_OUT_OF_RANGE", "model.threads",
                       absl::StrFormat("%d is not in 0..%d", options.threads, kThreadsMax));
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
        rope_(MakeRope(config_)),
        transformer_(config_, weights, *ops_),
        scratch_(ops_->host_threads().threads()) {
    fingerprint_ = absl::StrFormat("%s %s %s", std::filesystem::path(file_.name()).filename().string(),
                                   config_.fingerprint, ops_->fingerprint());
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
            .pages_shared = pool_->pages_shared(),
            .pages_promised = pool_->pages_promised(),
            .pages_spared = pool_->pages_spared(),
            .pages_copied = pool_->pages_copied(),
            .weight_bytes = transformer_.weight_bytes()};
  }

  absl::StatusOr<int64_t> PagesFor(const SessionOptions& options) const override {
    EBB_ASSIGN(const CacheShape shape, ShapeFor(options, Prompt::kAhead, limits()));
    return shape.pages();
  }

  absl::StatusOr<std::unique_ptr<Session>> OpenSession(const SessionOptions& options) override {
    EBB_ASSIGN(const CacheShape shape, ShapeFor(options, Prompt::kAhead, limits()));
    EBB_ASSIGN(PageLease lease, pool_->Reserve(shape.pages()));
    SessionCache cache(shape, std::move(lease), options.policy);
    return std::make_unique<SessionOnEngine>(options.policy, std::move(cache), options.block_size_max,
                                             LengthLimit(options.policy, Prompt::kAhead, limits()));
  }

  absl::StatusOr<Fork> ForkSession(Session& session, const ForkOptions& options) override {
    EBB_TRY(Of(session).CheckSettled());
    std::unique_ptr<SessionOnEngine> branch = Of(session).Fork();
    EBB_TRY(branch->cache().ReserveShared(*pool_, options.reserve_copies));
    std::optional<PolicySwap> swap;
    if (options.policy) {
      // What it moves it takes from promises of its own; what it frees needs new ones.
      EBB_ASSIGN(swap, Swap(*branch, *options.policy, std::nullopt));
      EBB_TRY(branch->cache().ReserveShared(*pool_, options.reserve_copies));
    }
    return Fork{.session = std::move(branch), .swap = std::move(swap)};
  }

  absl::Status OwnPages(const BatchRow& row) override {
    SessionOnEngine& session = Of(*row.session);
    if (session.edit_left() > 0) return absl::OkStatus();  // they were its own before it began
    const auto tokens = static_cast<int32_t>(row.tokens.size());
    // Who is evicted between two accepted tokens leaves a slot to the next, wherever it is.
    const int32_t steps = row.draft ? std::max(0, tokens - session.steps_to_eviction()) : 0;
    return session.cache().OwnNext(*pool_, tokens, steps);
  }

  absl::Status OwnAllPages(Session& session) override { return Of(session).cache().OwnAll(*pool_); }

  void Run(std::span<BatchRow> rows) override {
    Seat(rows);
    const std::span<const float> logits = transformer_.Forward(sequences_);
    size_t at = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t wanted = (rows[i].tokens.size() - sequences_[i].logits_from) * config_.vocab;
      rows[i].logits = logits.subspan(at, wanted);
      at += wanted;
      rows[i].status = rows[i].prompt_ends ? Of(*rows[i].session).EndPrompt() : absl::OkStatus();
      if (rows[i].draft) Of(*rows[i].session).UnseatDraft();
      if (rows[i].session->edit_left() > 0) CloseEditStep(device(), Of(*rows[i].session));
    }
    EvictAll(rows);
  }

  void Accept(BatchRow& row, int32_t count) override {
    SessionOnEngine& session = Of(*row.session);
    const Draft draft = session.TakeDraft();
    EBB_CHECK(count >= 0);
    EBB_CHECK(count <= static_cast<int32_t>(draft.tokens.size()));
    StepsSum sum;
    for (int32_t i = 0; i < count; ++i) {
      session.Keep(draft, i, *ops_);
      transformer_.Observe(SequenceOf(session, session.log().last(1)), session.last_queries());
      EvictAll({&row, 1});
      sum.Add(row);
    }
    session.cache().ForgetSpare();
    sum.Write(session.cache_length(), row);
  }

  absl::StatusOr<EditPlan> PlanEdit(const Session& session, const EditRequest& request) const override {
    return PlanEditOf(static_cast<const SessionOnEngine&>(session), request);
  }

  void BeginEdit(Session& session, const EditPlan& plan) override { BeginEditOf(device(), Of(session), plan); }

  void AbandonEdit(Session& session) override { Of(session).AbandonEdit(); }

  uint64_t Digest(const Session& session) const override {
    return DigestOf(static_cast<const SessionOnEngine&>(session), *ops_);
  }

  absl::Status Save(const Session& session, SnapshotWriter& to) const override {
    EBB_TRY(session.CheckSettled());
    WriteSession(static_cast<const SessionOnEngine&>(session), image_limits(), to);
    return absl::OkStatus();
  }

  ImageLimits image_limits() const override {
    return {.engine = limits(), .pages_total = pool_->pages_total(), .arithmetic = std::string(ops_->fingerprint())};
  }

  absl::StatusOr<std::unique_ptr<Session>> Reopen(SessionImage& image) override {
    EBB_ASSIGN(PageLease lease, pool_->Reserve(image.pages()));
    SessionCache cache(image.shape, std::move(lease), std::move(image.maps));
    for (int32_t lane = 0; lane < image.shape.lanes(); ++lane) {
      WriteTiles(cache.storage(lane / config_.kv_heads, lane % config_.kv_heads), image.tiles[lane]);
    }
    return std::make_unique<SessionOnEngine>(image.policy, std::move(cache), image.block_size_max, image.length_limit,
                                             std::move(image.state));
  }

  absl::StatusOr<EvictReport> Evict(Session& session, const EvictRequest& request) override {
    EBB_TRY(Of(session).CheckSettled());
    return CarryOut(request, device(), config_.calibration, Of(session));
  }

  absl::StatusOr<PolicySwap> SetPolicy(Session& session, const ValidSpec& policy) override {
    return Swap(Of(session), policy, std::nullopt);
  }

  absl::StatusOr<PolicySwap> TryPolicy(Session& session, const ValidSpec& policy, int64_t spare) override {
    return Swap(Of(session), policy, spare);
  }

  absl::StatusOr<std::vector<LaneReport>> Describe(const Session& session, std::optional<int32_t> layer,
                                                   std::optional<int32_t> head) const override {
    EBB_TRY(CheckIndex("layer", layer, config_.layers));
    EBB_TRY(CheckIndex("head", head, config_.kv_heads));
    const auto& of = static_cast<const SessionOnEngine&>(session);
    std::vector<LaneReport> lanes;
    std::vector<int32_t> maps;  // of these lanes
    for (int32_t l = layer.value_or(0); l <= layer.value_or(config_.layers - 1); ++l) {
      for (int32_t h = head.value_or(0); h <= head.value_or(config_.kv_heads - 1); ++h) {
        lanes.push_back(DescribeLane(of, l, h));
        const int32_t map = of.cache().map_index(l, h);
        if (maps.empty() || maps.back() != map) maps.push_back(map);
      }
    }
    if (!of.policy().evicts) return lanes;
    const std::vector<std::vector<float>> scores = MapScores(device(), of, of.policy(), maps);
    size_t at = 0;
    for (LaneReport& lane : lanes) {
      if (of.cache().map_index(lane.layer, lane.head) != maps[at]) ++at;
      for (const int32_t slot : lane.slots) lane.scores.push_back(scores[at][slot]);
    }
    return lanes;
  }

  absl::Status ShiftPositions(Session& session, int32_t from, int32_t delta) override {
    EBB_TRY(Of(session).CheckSettled());
    return Of(session).ShiftPositions(from, delta);
  }

  absl::StatusOr<int32_t> RemovePositions(Session& session, int32_t start, int32_t end) override {
    if (start < 0 || start > end) {
      return RefuseField("RANGE_EMPTY", "range", absl::StrFormat("[%d, %d) is no range of positions", start, end));
    }
    SessionOnEngine& of = Of(session);
    EBB_TRY(of.CheckSettled());
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
    Candidates from = {};  // the same map
    int32_t count = 0;
    std::vector<float> probed = {};
    const LastAttention* attention = nullptr;  // null: the loss is not measured
    std::vector<int32_t> victims = {};         // tokens, where they are to be listed
    Evicted evicted = {};
    Loss loss = {};
  };

  static SessionOnEngine& Of(Session& session) { return static_cast<SessionOnEngine&>(session); }

  static absl::Status CheckIndex(const char* field, std::optional<int32_t> index, int32_t count) {
    if (!index || (*index >= 0 && *index < count)) return absl::OkStatus();
    return RefuseField("LANE_OUT_OF_RANGE", field, absl::StrFormat("%d is not in 0..%d", *index, count - 1));
  }

  // A trial changes nothing, and needs `spare` pages fewer; without one it is no trial.
  absl::StatusOr<PolicySwap> Swap(SessionOnEngine& of, const ValidSpec& policy, std::optional<int64_t> spare) {
    EBB_TRY(of.CheckSettled());
    if (policy.kv_type != of.policy().kv_type || policy.rope_cache != of.policy().rope_cache) {
      return Refuse(absl::StatusCode::kFailedPrecondition,
                    "policy.cache: a session keeps the format it was created with; leave it out",
                    {.reason = "CACHE_FORMAT_FIXED", .field = "policy.cache"});
    }
    ValidSpec next = policy;
    if (of.prompt_ended()) {
      EBB_ASSIGN(next, FixBudget(policy, static_cast<int32_t>(of.log().size())));
    }
    const Prompt prompt = of.prompt_ended() ? Prompt::kEnded : Prompt::kAhead;
    const int32_t live = of.cache_length();
    const bool prunes =
        next.evicts && next.trigger.budget > 0 && (next.schedule != Schedule::kOncePrompt || of.prompt_ended());
    EBB_TRY(CheckLength(next, prunes, live, LengthLimit(next, prompt, limits())));
    PolicySwap swap = {.length_before = live, .pages_before = of.pages()};
    MapsRestored restored(of.cache());
    SeparateLanesThatDiffer(next, of.cache());
    std::vector<int32_t> keep = KeptByLane(of.cache(), next, prunes);
    EBB_ASSIGN(swap.state, AdoptPolicy(device(), of, next));
    if (next.lanes_follow_scores() && prunes) {
      if (swap.state == StateOrigin::kEmpty) return NoScoresToShareBy(next);
      next.lanes = LanesByScores(device(), of, next);
      keep = KeptByLane(of.cache(), next, prunes);
    }
    EBB_ASSIGN(const CacheShape shape,
               ShapeFor({.policy = next, .block_size_max = of.block_size_max()}, prompt, limits()));
    EBB_TRY(CheckSize(shape));
    const bool cannot_tell = swap.state == StateOrigin::kEmpty;
    const Plan plan = cannot_tell ? FormerChoice(of, next, keep, restored.before())
                                  : PerLane(PlanPruning(device(), of, next, keep).value(), of.cache());
    swap.old_chose = cannot_tell && std::ranges::any_of(plan, [](const auto& victims) { return !victims.empty(); });
    swap.loss = MeasurePlan(device(), of, plan);
    swap.victims = VictimsOf(of.cache(), plan);
    swap.slots_evicted = FreeSlots(of.cache(), plan);
    swap.length_after = of.cache_length();
    swap.pages_after = shape.pages();
    const int64_t growth = of.cache().PagesToResize(shape);
    EBB_ASSIGN(PageLease more, pool_->Reserve(std::max<int64_t>(0, growth - spare.value_or(0))));
    if (spare) return swap;
    restored.Keep();
    of.CountEvicted(MostLost(swap.victims));
    of.cache().Resize(shape, std::move(more), *ops_);
    of.SetPolicy(next, LengthLimit(next, prompt, limits()));
    return swap;
  }

  // Who leaves where the next policy cannot tell yet: the former one's choice, by lane, on the maps that it left.
  Plan FormerChoice(SessionOnEngine& of, const ValidSpec& next, std::span<const int32_t> keep,
                    const SessionCache::Maps& former) {
    SessionCache::Maps adopted = of.cache().TakeMaps(former);
    SeparateLanesThatDiffer(next, of.cache());
    Plan plan = PerLane(PlanPruning(device(), of, FormerAt(of.policy(), next, keep), keep).value(), of.cache());
    of.cache().TakeMaps(std::move(adopted));
    return plan;
  }

  absl::Status CheckSize(const CacheShape& shape) const {
    if (shape.pages() <= pool_->pages_total()) return absl::OkStatus();
    return RefuseField("SESSION_TOO_LARGE", "policy.trigger.budget",
                       absl::StrFormat("the session would need %d pages, there are %d in all; use a smaller budget",
                                       shape.pages(), pool_->pages_total()));
  }

  EngineLimits limits() const {
    return {.model = &config_, .page_bytes = pool_->page_bytes(), .step_tokens_max = options_.step_tokens_max};
  }

  // Appends every row's tokens to its session and lays out the step.
  void Seat(std::span<BatchRow> rows) {
    sequences_.clear();
    size_t tokens = 0;
    for (BatchRow& row : rows) {
      SessionOnEngine& session = Of(*row.session);
      const auto count = static_cast<int32_t>(row.tokens.size());
      EBB_CHECK(std::none_of(rows.data(), &row, [&](const BatchRow& other) { return other.session == row.session; }));
      EBB_CHECK(session.edit_left() > 0 || session.CanAppend(count).ok());
      for (const int32_t token : row.tokens) EBB_CHECK(token >= 0 && token < config_.vocab);
      tokens += row.tokens.size();
      if (row.draft) {
        EBB_CHECK(!row.prompt_ends);
        sequences_.push_back(SequenceOf(session, session.SeatDraft(row.tokens)));
      } else if (session.edit_left() > 0) {
        EBB_CHECK(!row.prompt_ends);
        session.SeatEdit(row.tokens);
        sequences_.push_back(SequenceOf(session, row.tokens));
      } else {
        session.Append(row.tokens);
        sequences_.push_back(SequenceOf(session, session.log().last(count)));
      }
      EBB_CHECK(session.cache().OwnsPlaced());
      sequences_.back().logits_from = row.want == Want::kAll ? 0 : row.want == Want::kLast ? count - 1 : count;
    }
    EBB_CHECK(tokens > 0);
    EBB_CHECK(static_cast<int64_t>(tokens) <= options_.step_tokens_max);
  }

  // Tokens of the session's log, seated.
  static Sequence SequenceOf(SessionOnEngine& session, std::span<const int32_t> tokens) {
    return {.cache = &session.cache(),
            .policy = &session.policy(),
            .tokens = tokens,
            .log_tokens = static_cast<int32_t>(session.log().size()),
            .queries_from = static_cast<int32_t>(tokens.size()) - 1,
            .queries = &session.last_queries()};
  }

  static Sequence SequenceOf(SessionOnEngine& session, Draft& draft) {
    return {.cache = &session.cache(),
            .policy = &session.policy(),
            .tokens = draft.tokens,
            .log_tokens = static_cast<int32_t>(session.log().size() + draft.tokens.size()),
            .queries = &draft.queries,
            .observed = false};
  }

  void EvictAll(std::span<BatchRow> rows) {
    pruned_.clear();
    for (size_t i = 0; i < rows.size(); ++i) {
      SessionOnEngine& session = Of(*rows[i].session);
      rows[i].length = session.cache_length();
      if (rows[i].draft) continue;
      if (rows[i].prompt_ends && rows[i].status.ok() && session.policy().lanes_follow_scores()) {
        if (session.policy().lanes.empty()) session.SetLanes(LanesByScores(device(), session, session.policy()));
      }
      for (int32_t map = 0; map < static_cast<int32_t>(session.cache().maps().size()); ++map) {
        SlotMap& slots = session.cache().maps()[map];
        const int32_t count = session.TokensDue(map);
        if (count == 0) continue;
        pruned_.push_back(
            {.row = i, .map = &slots, .from = device().Of(session, session.policy(), map), .count = count});
      }
    }
    Witness(rows);
    // On every thread, whichever maps it will get: none allocates while it works.
    for (Pruned& lane : pruned_) {
      if (rows[lane.row].list_victims) lane.victims.reserve(lane.from.slots().live());
      for (EvictScratch& scratch : scratch_) scratch.Reserve(lane.from);
    }
    ops_->host_threads().For(static_cast<int64_t>(pruned_.size()), [this, rows](int64_t item, int32_t thread) {
      Pruned& lane = pruned_[item];
      lane.evicted = ChooseDue(lane.from, lane.count, scratch_[thread]);
      if (lane.attention != nullptr) lane.loss = LossOf(lane, scratch_[thread]);
      if (rows[lane.row].list_victims) {
        for (const int32_t slot : scratch_[thread].victims) lane.victims.push_back(lane.map->token()[slot]);
        std::sort(lane.victims.begin(), lane.victims.end());
      }
      lane.map->Free(scratch_[thread].victims);
    });
    for (BatchRow& row : rows) row.evicted = 0, row.evicted_slots = 0, row.nan_scores = 0, row.loss = {};
    for (BatchRow& row : rows) row.victims.clear();
    for (const Pruned& lane : pruned_) {
      BatchRow& row = rows[lane.row];
      row.evicted = std::max(row.evicted, lane.evicted.tokens);
      row.evicted_slots += int64_t{lane.evicted.tokens} * lane.from.cache->lanes_of_map();
      row.nan_scores += lane.evicted.nan_scores;
      row.loss.mass += lane.loss.mass;
      row.loss.error += lane.loss.error;
      if (row.list_victims) ListVictims(lane, row.victims);
    }
    for (BatchRow& row : rows) {
      Of(*row.session).CountEvicted(row.evicted);
      if (row.prompt_ends && row.status.ok()) Of(*row.session).PromptEvicted();
    }
  }

  static void ListVictims(const Pruned& pruned, std::vector<LaneVictims>& victims) {
    const SessionCache& cache = *pruned.from.cache;
    for (int32_t i = 0; i < cache.lanes_of_map(); ++i) {
      const int32_t lane = cache.first_lane(pruned.from.map) + i;
      victims.push_back(
          {.layer = lane / cache.shape().kv_heads, .head = lane % cache.shape().kv_heads, .tokens = pruned.victims});
    }
  }

  // What some of the due maps need beside K, V and states: probes of their scorers, and the newest token's attention
  // where the loss is to be measured.
  void Witness(std::span<const BatchRow> rows) {
    attention_.clear();
    attention_.resize(rows.size());
    for (Pruned& lane : pruned_) {
      lane.probed = Probe(lane.from, rope_, *ops_);
      lane.from.probed = lane.probed;
      if (!rows[lane.row].measure) continue;
      auto& attention = attention_[lane.row];
      if (!attention) attention.emplace(Of(*rows[lane.row].session), rope_, *ops_);
      lane.attention = &*attention;
    }
  }

  // A map's share of the loss of its session: a mean over all lanes.
  static Loss LossOf(const Pruned& pruned, EvictScratch& scratch) {
    Loss loss;
    const SessionCache& cache = *pruned.from.cache;
    const CacheShape& shape = cache.shape();
    for (int32_t i = 0; i < cache.lanes_of_map(); ++i) {
      const int32_t lane = cache.first_lane(pruned.from.map) + i;
      LaneView view = cache.view(lane / shape.kv_heads, lane % shape.kv_heads, *pruned.from.policy, pruned.from.tokens);
      LaneReader& reader = scratch.readers[0];
      reader.Point(*pruned.from.ops, cache.storage(lane / shape.kv_heads, lane % shape.kv_heads), pruned.from.rope);
      view.memory = &reader;
      loss.Add(MeasureEviction(view, pruned.attention->mean(lane), scratch.victims, scratch.rank.caote), shape.lanes());
    }
    return loss;
  }

  Device device() const { return {.ops = ops_.get(), .rope = &rope_, .rope_view = transformer_.rope()}; }

  // Without its scores.
  LaneReport DescribeLane(const SessionOnEngine& session, int32_t layer, int32_t head) const {
    const SlotMap& map = session.cache().map(layer, head);
    const int32_t lane = layer * config_.kv_heads + head;
    const ValidSpec& policy = session.policy();
    LaneReport report = {.layer = layer,
                         .head = head,
                         .capacity = session.cache().shape().slots(lane),
                         .budget = policy.evicts && policy.lanes_known() ? policy.rule(lane).budget : 0};
    for (int32_t slot = 0; slot < map.end(); ++slot) {
      if (map.token()[slot] < 0) continue;
      report.slots.push_back(slot);
      report.tokens.push_back(map.token()[slot]);
      report.positions.push_back(map.position()[slot]);
    }
    return report;
  }

  EngineOptions options_;
  GgufFile file_;  // the embedding is read from its mapping
  ModelConfig config_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Ops> ops_;
  Rope rope_;
  Transformer transformer_;
  std::unique_ptr<PagePool> pool_ = {};
  std::string fingerprint_ = {};
  std::vector<EvictScratch> scratch_;  // one per thread
  std::vector<Sequence> sequences_ = {};
  std::vector<Pruned> pruned_ = {};
  std::vector<std::optional<LastAttention>> attention_ = {};  // [rows]
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Open(const EngineOptions& options) {
  EBB_TRY(CheckOptions(options));
  EBB_ASSIGN(GgufFile file, GgufFile::Open(options.model_path));
  EBB_ASSIGN(ModelConfig config, ReadConfig(file));
  EBB_ASSIGN(const Weights weights, FindWeights(file, config));
  EBB_ASSIGN(std::unique_ptr<const Tokenizer> tokenizer, Tokenizer::FromGguf(file));
  EBB_TRY(CheckModel(file, config, *tokenizer));
  config.fingerprint = ModelFingerprint(file, config);
  config.calibration = ReadCalibration(
      options.calibration_path.empty() ? CalibrationPath(options.model_path) : options.calibration_path, config);
  if (absl::IsDataLoss(config.calibration.status())) return config.calibration.status();
  config.head_gates = ReadHeadGates(
      options.head_gates_path.empty() ? HeadGatesPath(options.model_path) : options.head_gates_path, config);
  if (absl::IsDataLoss(config.head_gates.status())) return config.head_gates.status();
  const int32_t threads = options.threads > 0 ? options.threads : UsableThreads();
  EBB_ASSIGN(std::unique_ptr<Ops> ops,
             MakeCpuOps({.isa = options.isa, .accuracy = options.accuracy, .threads = threads}));
  auto engine = std::make_unique<EngineOnOps>(options, std::move(file), std::move(config), weights,
                                              std::move(tokenizer), std::move(ops));
  EBB_TRY(engine->MakeArena());
  return engine;
}

}  // namespace ebb
